#include "tools/records.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/core/batch_trace.h"
#include "tools/files.h"

namespace foreshard {
namespace {

// Of a line of a trace; what is none comes last.
std::tuple<uint64_t, uint64_t> Place(absl::string_view line) {
  const std::vector<absl::string_view> fields = absl::StrSplit(line, ',');
  uint64_t worker = 0, step = 0;
  const bool good = fields.size() == 3 && absl::SimpleAtoi(fields[0], &worker) &&
                    absl::SimpleAtoi(fields[1], &step);
  return good ? std::tuple(worker, step) : std::tuple(~uint64_t{0}, ~uint64_t{0});
}

}  // namespace

std::string BatchesPath(const std::string& folder) { return absl::StrCat(folder, "/batches.csv"); }

std::string ArrivalsPath(const std::string& folder, uint32_t shard) {
  return absl::StrCat(folder, "/arrivals-", shard, ".csv");
}

void RemoveRecords(const std::string& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> old = {BatchesPath(folder)};
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (absl::StartsWith(name, "arrivals-") && absl::EndsWith(name, ".csv")) {
      old.push_back(entry.path());
    }
  }
  for (const std::filesystem::path& path : old) std::filesystem::remove(path, error);
}

absl::Status MergeBatches(const std::vector<std::string>& parts, const std::string& path) {
  std::vector<std::tuple<uint64_t, uint64_t, std::string>> lines;
  for (const std::string& part : parts) {
    const absl::StatusOr<std::string> text = ReadFile(part);
    if (absl::IsNotFound(text.status())) continue;
    if (!text.ok()) return text.status();
    for (const absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
      if (absl::StrCat(line, "\n") == kTraceHeader) continue;
      lines.push_back(std::tuple_cat(Place(line), std::tuple(std::string(line))));
    }
  }
  std::stable_sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) {
    return std::tie(std::get<0>(a), std::get<1>(a)) < std::tie(std::get<0>(b), std::get<1>(b));
  });
  std::string merged(kTraceHeader);
  for (const auto& line : lines) absl::StrAppend(&merged, std::get<2>(line), "\n");
  if (absl::Status status = WriteFileAtomically(path, merged); !status.ok()) return status;
  for (const std::string& part : parts) unlink(part.c_str());
  const absl::StatusOr<BatchTrace> trace = ParseTrace(merged, path);
  if (trace.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the record of batches is no whole trace: ", trace.status().message()));
}

}  // namespace foreshard
