#include "tools/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace foreshard {
namespace {

constexpr size_t kProbeBytes = 256 << 10;
constexpr size_t kTailBytes = 8 << 10;

// Creates `path` with this content, on the disk when it returns.
absl::Status WriteAndSync(const std::string& path, std::string_view content) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return absl::ErrnoToStatus(errno, absl::StrCat("can't create ", path));
  int error = 0;
  while (!content.empty() && error == 0) {
    const ssize_t written = write(file, content.data(), content.size());
    if (written >= 0) {
      content.remove_prefix(written);
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (error == 0 && fsync(file) != 0 && errno != EINVAL) error = errno;
  if (close(file) != 0 && error == 0) error = errno;
  if (error == 0) return absl::OkStatus();
  unlink(path.c_str());
  return absl::ErrnoToStatus(error, absl::StrCat("can't write ", path));
}

}  // namespace

absl::Status CheckReplaceable(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status there = std::filesystem::status(path, error);
  if (!std::filesystem::exists(there) || std::filesystem::is_regular_file(there)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      path, " is no file, but ", std::filesystem::is_directory(there) ? "a folder" : "a device, a pipe or a socket",
      ", which a file is not to take the place of; give another name"));
}

absl::Status WriteFileAtomically(const std::string& path, std::string_view content) {
  if (absl::Status may = CheckReplaceable(path); !may.ok()) return may;
  const std::string beside = absl::StrCat(path, ".part");
  if (absl::Status status = WriteAndSync(beside, content); !status.ok()) return status;
  if (rename(beside.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(beside.c_str());
    return absl::ErrnoToStatus(error, absl::StrCat("can't rename ", beside, " to ", path));
  }
  return absl::OkStatus();
}

absl::Status PrepareFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  absl::Status status;
  if (error) {
    status = absl::ErrnoToStatus(error.value(), absl::StrCat("can't make the folder ", folder));
  } else {
    const std::string probe = absl::StrCat(folder, "/.writable");
    status = WriteAndSync(probe, std::string(kProbeBytes, '\0'));
    unlink(probe.c_str());
  }
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("results folder ", folder, " can't be used: ", status.message(),
                                   "; free space or give another folder with --results"));
}

absl::StatusOr<FolderLock> FolderLock::Take(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/.lock");
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return absl::ErrnoToStatus(errno, absl::StrCat("can't create ", path));
  FolderLock lock(file);
  int result;
  do {
    result = flock(file, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return lock;
  if (errno == EWOULDBLOCK) {
    return absl::FailedPreconditionError(
        absl::StrCat("results folder ", folder, " is in use by another run; wait for its end, or ",
                     "give another folder with --results"));
  }
  return absl::ErrnoToStatus(errno, absl::StrCat("can't lock ", path));
}

FolderLock::~FolderLock() {
  if (file_ >= 0) close(file_);
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::ErrnoToStatus(errno, absl::StrCat("can't read ", path));
  std::ostringstream content;
  content << file.rdbuf();
  if (file.bad()) return absl::DataLossError(absl::StrCat("can't read ", path));
  return content.str();
}

std::vector<std::string> LastLines(const std::string& path, size_t lines) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  const std::streamoff size = file.tellg();
  const std::streamoff begin = std::max<std::streamoff>(0, size - kTailBytes);
  file.seekg(begin);
  std::string text(size - begin, '\0');
  file.read(text.data(), text.size());
  text.resize(file.gcount());
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.empty()) return {};
  std::vector<std::string> all = absl::StrSplit(text, '\n');
  if (begin > 0 && all.size() > 1) all.erase(all.begin());  // cut in the middle
  if (all.size() > lines) all.erase(all.begin(), all.end() - lines);
  return all;
}

std::string ExecutableFolder() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : path.parent_path().string();
}

}  // namespace foreshard
