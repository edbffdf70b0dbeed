#include "tools/text_files.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/data/gz_reader.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPieceBytes = 1 << 20;
constexpr uint64_t kMostLineBytes = 64 << 20;

bool Hidden(const fs::path& path) { return absl::StartsWith(path.filename().string(), "."); }

}  // namespace

absl::StatusOr<std::vector<TextFile>> FindTextFiles(const std::vector<std::string>& inputs) {
  std::vector<TextFile> files;
  const auto add = [&](const fs::path& path) {
    std::error_code none;
    files.push_back({path.string(), fs::file_size(path, none)});
  };
  for (const std::string& input : inputs) {
    std::error_code error, none;
    if (fs::is_regular_file(input, none)) {
      add(input);
      continue;
    }
    if (!fs::is_directory(input, none)) {
      return absl::NotFoundError(absl::StrCat("--input: ", input, " is neither a file nor a folder"));
    }
    std::vector<fs::path> found;
    fs::recursive_directory_iterator each(input, error);
    for (; !error && each != fs::recursive_directory_iterator(); each.increment(error)) {
      if (Hidden(each->path())) {
        if (each->is_directory(none)) each.disable_recursion_pending();
      } else if (each->is_regular_file(none)) {
        found.push_back(each->path());
      }
    }
    if (error) {
      return absl::InvalidArgumentError(absl::StrCat("--input: ", input, ": can't be listed: ", error.message()));
    }
    std::sort(found.begin(), found.end());
    for (const fs::path& path : found) add(path);
  }
  if (files.empty()) {
    return absl::InvalidArgumentError("--input: there are no files in it; give plain text in UTF-8");
  }
  return files;
}

absl::Status ReadText(const std::string& path,
                      const std::function<absl::Status(std::string_view text, uint64_t offset)>& each) {
  auto reader = GzReader::Open(path, "text");
  if (!reader.ok()) return reader.status();
  std::vector<uint8_t> held;
  for (uint64_t offset = 0;;) {
    const auto got = (*reader)->Append(kPieceBytes, &held);
    // A damaged file is the user's to replace, as one that is no text.
    if (absl::IsDataLoss(got.status())) return absl::InvalidArgumentError(got.status().message());
    if (!got.ok()) return got.status();
    const std::string_view text(reinterpret_cast<const char*>(held.data()), held.size());
    const bool end = *got < kPieceBytes;
    size_t whole = text.size();
    if (!end) {
      const size_t line = text.rfind('\n');
      whole = line == std::string_view::npos ? 0 : line + 1;
    }
    if (whole == 0 && text.size() > kMostLineBytes) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": byte ", offset, " begins a line of more than ",
                                                     kMostLineBytes >> 20, " MiB; is it a text?"));
    }
    if (whole > 0) {
      if (absl::Status status = each(text.substr(0, whole), offset); !status.ok()) return status;
      held.erase(held.begin(), held.begin() + static_cast<int64_t>(whole));
      offset += whole;
    }
    if (end) return absl::OkStatus();
  }
}

}  // namespace foreshard
