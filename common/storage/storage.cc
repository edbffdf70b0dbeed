#include "common/storage/storage.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace foreshard {
namespace {

constexpr size_t kLongestPart = 200;

// Code and remedy for what a person can do something about.
struct Remedy {
  absl::StatusCode code;
  absl::string_view text;
};

Remedy RemedyFor(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return {absl::StatusCode::kResourceExhausted,
              "free space on that file system or raise the quota, then start again"};
    case EFBIG:
      return {absl::StatusCode::kResourceExhausted, "raise the limit on the size of files (ulimit -f)"};
    case EMFILE:
    case ENFILE:
      return {absl::StatusCode::kResourceExhausted, "raise the limit on open files (ulimit -n)"};
    case EROFS:
      return {absl::StatusCode::kPermissionDenied,
              "mount the file system writable; if the kernel made it read-only, dmesg says why"};
    case EACCES:
    case EPERM:
      return {absl::StatusCode::kPermissionDenied, "let the user of this process read and write there"};
    case EIO:
      return {absl::StatusCode::kDataLoss, "the disk failed: dmesg says more; take another disk"};
    case ENOTEMPTY:
    case ENOTDIR:
    case EISDIR:
      return {absl::StatusCode::kFailedPrecondition,
              "look at what is there, and give another folder or clear this one"};
    default:
      return {absl::ErrnoToStatusCode(error), ""};
  }
}

}  // namespace

absl::Status StorageError(int error, absl::string_view operation, absl::string_view path) {
  const Remedy remedy = RemedyFor(error);
  return absl::Status(remedy.code, absl::StrCat("cannot ", operation, " ", path, ": ", std::strerror(error),
                                                remedy.text.empty() ? "" : "; ", remedy.text));
}

absl::Status CheckStoragePath(absl::string_view path) {
  if (path.empty()) return absl::OkStatus();
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    if (part.empty() || part.front() == '.' || part.size() > kLongestPart ||
        absl::StrContains(part, '\0')) {
      return absl::InvalidArgumentError(absl::StrCat("'", path, "' is no path of a storage: the part '",
                                                     part, "' is empty, begins with '.', is longer than ",
                                                     kLongestPart, " bytes or has a zero in it"));
    }
  }
  return absl::OkStatus();
}

std::pair<absl::string_view, absl::string_view> SplitStoragePath(absl::string_view path) {
  const size_t slash = path.rfind('/');
  if (slash == absl::string_view::npos) return {"", path};
  return {path.substr(0, slash), path.substr(slash + 1)};
}

absl::Status StorageFile::fault() const {
  absl::MutexLock lock(&mutex_);
  return fault_;
}

absl::Status StorageFile::GiveUpUnlessOk(absl::Status status) {
  if (status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  if (fault_.ok()) fault_ = status;
  return status;
}

absl::Status StorageFile::Append(absl::Span<const ByteSpan> pieces) {
  if (absl::Status given_up = fault(); !given_up.ok()) return given_up;
  if (absl::Status written = GiveUpUnlessOk(Write(pieces)); !written.ok()) return written;
  for (const ByteSpan piece : pieces) bytes_ += piece.size();
  return absl::OkStatus();
}

absl::Status StorageFile::Sync() {
  if (absl::Status given_up = fault(); !given_up.ok()) return given_up;
  return GiveUpUnlessOk(Flush());
}

absl::StatusOr<std::string> Storage::Read(absl::string_view file) const {
  const absl::StatusOr<uint64_t> bytes = Size(file);
  if (!bytes.ok()) return bytes.status();
  return ReadAt(file, 0, *bytes);
}

absl::Status Storage::RemoveFolderWithFiles(absl::string_view folder) {
  const auto entries = List(folder);
  if (!entries.ok()) return entries.status();
  for (const StorageEntry& entry : *entries) {
    if (absl::Status removed = Remove(absl::StrCat(folder, "/", entry.name)); !removed.ok()) return removed;
  }
  return RemoveFolder(folder);
}

namespace internal {

int WritePieces(const std::function<ssize_t(const iovec*, int)>& write, absl::Span<const ByteSpan> pieces) {
  // Linux takes no more at once (IOV_MAX).
  constexpr size_t kMostPieces = 1024;
  std::vector<iovec> left;
  left.reserve(pieces.size());
  for (const ByteSpan piece : pieces) {
    if (!piece.empty()) left.push_back({const_cast<uint8_t*>(piece.data()), piece.size()});
  }
  for (size_t first = 0; first < left.size();) {
    const ssize_t written =
        write(&left[first], static_cast<int>(std::min(left.size() - first, kMostPieces)));
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    // No regular file takes nothing without an error; one that does would be asked for ever.
    if (written == 0) return EIO;
    auto taken = static_cast<size_t>(written);
    while (first < left.size() && taken >= left[first].iov_len) taken -= left[first++].iov_len;
    if (first < left.size()) {
      left[first].iov_base = static_cast<char*>(left[first].iov_base) + taken;
      left[first].iov_len -= taken;
    }
  }
  return 0;
}

}  // namespace internal
}  // namespace foreshard
