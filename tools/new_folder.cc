#include "tools/new_folder.h"

#include <errno.h>
#include <stdio.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

constexpr char kPart[] = ".part";

// Refuses what is none of ours.
absl::Status ClearPart(const std::string& folder, absl::FunctionRef<bool(const std::string&)> ours) {
  std::error_code error;
  if (!fs::exists(folder, error)) return absl::OkStatus();
  for (fs::recursive_directory_iterator each(folder, error); !error && each != fs::recursive_directory_iterator();
       each.increment(error)) {
    const std::string name = each->path().filename().string();
    if (ours(name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--output: ", folder, " is needed, and ", name, " is in it; move it away"));
  }
  fs::remove_all(folder, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("--output: can't remove ", folder, ": ", error.message()));
}

}  // namespace

absl::Status CheckNewFolder(const std::string& output) {
  std::error_code error;
  if (!fs::exists(output, error) || (fs::is_directory(output, error) && fs::is_empty(output, error))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--output: ", output, " is there already; remove it, or name another folder"));
}

absl::Status MakeFolderWhole(const std::string& output, absl::FunctionRef<bool(const std::string& name)> ours,
                             absl::FunctionRef<absl::Status(const std::string& part)> fill) {
  const std::string part = output + kPart;
  if (absl::Status s = ClearPart(part, ours); !s.ok()) return s;
  absl::Status status = fill(part);
  if (status.ok() && rename(part.c_str(), output.c_str()) != 0) {
    status = absl::ErrnoToStatus(errno, absl::StrCat("can't rename ", part, " to ", output));
  }
  std::error_code error;
  if (!status.ok()) fs::remove_all(part, error);
  return status;
}

}  // namespace foreshard
