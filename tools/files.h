// Files as the launcher writes them: whole or not at all, with errors that name
// the path and say what to do.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace foreshard {

// OK where nothing is at `path`, or a file, which another one may take the place of.
// FAILED_PRECONDITION: a folder, a device (/dev/full), a pipe; or a link to one.
absl::Status CheckReplaceable(const std::string& path);

// Writes beside `path`, syncs, renames over it: a reader sees the old content or
// the new, and a full disk leaves the old. RESOURCE_EXHAUSTED for a full disk,
// PERMISSION_DENIED and so on otherwise; the text names the path. FAILED_PRECONDITION: as CheckReplaceable.
absl::Status WriteFileAtomically(const std::string& path, std::string_view content);

// Makes the folder (and those above it) and proves that it takes data, by writing
// and removing a file of 256 KiB. The error names folder, reason and remedy.
absl::Status PrepareFolder(const std::string& folder);

// Holds a folder for one run: an exclusive lock on FOLDER/.lock, which ends with the
// object or the process, and which children do not inherit. The file stays.
class FolderLock {
 public:
  // Never waits. FAILED_PRECONDITION where another process holds it; the error names
  // the folder and the remedy.
  static absl::StatusOr<FolderLock> Take(const std::string& folder);

  FolderLock(FolderLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  FolderLock& operator=(FolderLock&&) = delete;
  ~FolderLock();

 private:
  explicit FolderLock(int file) : file_(file) {}
  int file_;
};

absl::StatusOr<std::string> ReadFile(const std::string& path);

// The last `lines` lines of a text file, at most 8 KiB of them; empty when it
// can't be read.
std::vector<std::string> LastLines(const std::string& path, size_t lines);

// The folder of the running executable.
std::string ExecutableFolder();

}  // namespace foreshard
