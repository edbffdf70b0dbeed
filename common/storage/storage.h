// A folder of files, as what must outlive a process or a machine needs it: files are only
// ever appended to, and each call says what is safe when it has returned. Journal and
// checkpoints know nothing else of a disk, so that tests can put one under them that
// tears, drops and refuses (tests/common/storage/faulty_storage.h).
//
//   auto storage = OpenStorage("/var/lib/foreshard/shard-0").value();
//   auto file = storage->Create("a.part").value();
//   RETURN_IF_ERROR(file->Append({head, body}));     // a killed process loses nothing of it
//   RETURN_IF_ERROR(file->Sync());                   // nor does a lost machine, but for its name
//   RETURN_IF_ERROR(storage->Rename("a.part", "a"));
//   RETURN_IF_ERROR(storage->SyncFolder(""));        // nor its name
//
// Paths are relative, their parts joined by '/'; "" is the folder itself. No part is empty,
// begins with '.' or is longer than 200 bytes. Errors name operation and path, and what to
// do: RESOURCE_EXHAUSTED (the disk or a quota is full), PERMISSION_DENIED (read-only, not
// ours), DATA_LOSS (the disk failed), NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION (no
// file or folder where one belongs, a folder that is not empty), INVALID_ARGUMENT (a path
// that cannot be).
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/core/bytes.h"

namespace foreshard {

// A file that is being written; the destructor closes it and syncs nothing. One thread
// appends; Sync may be called by another one meanwhile.
//
// Once a call has failed, the file is given up: every later one fails with the same error. For after a failed
// sync the kernel may have dropped the bytes and call them clean, so that the next sync
// would succeed and mean nothing; after a failed append nobody knows where the file ends.
class StorageFile {
 public:
  virtual ~StorageFile() = default;

  // Hands the pieces, in order, to the kernel: in one call where it takes them all.
  absl::Status Append(absl::Span<const ByteSpan> pieces);
  absl::Status Append(std::initializer_list<ByteSpan> pieces) {
    return Append(absl::MakeConstSpan(pieces.begin(), pieces.size()));
  }
  // What was appended before the call is safe when it has returned.
  absl::Status Sync();

  // Bytes appended so far; of the thread that appends.
  uint64_t bytes() const { return bytes_; }

 protected:
  virtual absl::Status Write(absl::Span<const ByteSpan> pieces) = 0;
  virtual absl::Status Flush() = 0;

 private:
  absl::Status fault() const;
  absl::Status GiveUpUnlessOk(absl::Status status);

  uint64_t bytes_ = 0;
  mutable absl::Mutex mutex_;
  absl::Status fault_ ABSL_GUARDED_BY(mutex_);
};

struct StorageEntry {
  std::string name;
  bool folder = false;
};

// Thread-safe, as far as different files are meant.
class Storage {
 public:
  virtual ~Storage() = default;

  // A new, empty file.
  virtual absl::StatusOr<std::unique_ptr<StorageFile>> Create(absl::string_view path) = 0;
  // Makes safe what anybody has written to a file, a process that was killed too.
  virtual absl::Status SyncFile(absl::string_view file) = 0;
  virtual absl::Status MakeFolder(absl::string_view path) = 0;
  // Makes safe what was created, renamed and removed in this folder, not in those below it.
  virtual absl::Status SyncFolder(absl::string_view folder) = 0;
  // A file or folder, within one folder. A file that has the name is replaced.
  virtual absl::Status Rename(absl::string_view from, absl::string_view to) = 0;
  virtual absl::Status Remove(absl::string_view file) = 0;
  virtual absl::Status RemoveFolder(absl::string_view folder) = 0;  // an empty one
  // Cuts a file to this length, safely.
  virtual absl::Status Truncate(absl::string_view file, uint64_t bytes) = 0;

  // By name. What begins with '.' is left out.
  virtual absl::StatusOr<std::vector<StorageEntry>> List(absl::string_view folder) const = 0;
  virtual absl::StatusOr<uint64_t> Size(absl::string_view file) const = 0;
  // `bytes` from this offset on; fewer where the file ends.
  virtual absl::StatusOr<std::string> ReadAt(absl::string_view file, uint64_t offset,
                                             uint64_t bytes) const = 0;
  absl::StatusOr<std::string> Read(absl::string_view file) const;
  // What is left on the file system for this user.
  virtual absl::StatusOr<uint64_t> FreeBytes() const = 0;

  // The path as a person would look for it.
  virtual std::string Describe(absl::string_view path) const = 0;

  // Removes a folder with the files in it (folders in it are an error).
  absl::Status RemoveFolderWithFiles(absl::string_view folder);
};

// A folder on disk, made where it is not there, and taken for this process alone:
// UNAVAILABLE where another one has it. A lost machine does not lose its name.
absl::StatusOr<std::unique_ptr<Storage>> OpenStorage(const std::string& folder);
// To read only. NOT_FOUND. FAILED_PRECONDITION: another process writes there, which it must not as
// long as the storage lives.
enum class Others { kMayWrite, kMustNotWrite };
absl::StatusOr<std::unique_ptr<Storage>> OpenStorageToRead(const std::string& folder,
                                                           Others others = Others::kMayWrite);

// OK, or INVALID_ARGUMENT naming what is wrong with the path.
absl::Status CheckStoragePath(absl::string_view path);
// The folder of a path and the last part.
std::pair<absl::string_view, absl::string_view> SplitStoragePath(absl::string_view path);

// "cannot OPERATION PATH: what the system says; what to do".
absl::Status StorageError(int error, absl::string_view operation, absl::string_view path);

namespace internal {
// Makes a folder and those above it that are missing. Whatever has a new name is safe when it has
// returned: `sync` is called with the folder above each that was made, and above the first that was
// there, for who made that may have been killed before it was safe.
absl::Status MakeFolders(const std::string& folder, const std::function<absl::Status(const std::string&)>& sync);
// Writes all pieces by calls of `write` (writev of a file), which may take fewer bytes than
// they are given or be interrupted. Returns 0 or the errno of the call that failed.
int WritePieces(const std::function<ssize_t(const iovec*, int)>& write, absl::Span<const ByteSpan> pieces);
}  // namespace internal

}  // namespace foreshard
