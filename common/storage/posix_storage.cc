// Storage on a file system, by POSIX calls relative to the folder's descriptor.
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/storage/storage.h"

namespace foreshard {
namespace {

constexpr char kLockFile[] = ".lock";

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  int number() const { return number_; }
  bool ok() const { return number_ >= 0; }

 private:
  int number_;
};

// Runs a call again while it is interrupted.
template <typename Call>
auto Uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

absl::StatusOr<Descriptor> OpenFolder(const std::string& folder) {
  Descriptor opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.ok()) return StorageError(errno, "open the folder", folder);
  return opened;
}

absl::Status SyncFolderOnDisk(int folder, const std::string& path) {
  // EINVAL: a file system whose folders need no sync, or take none.
  if (fsync(folder) == 0 || errno == EINVAL) return absl::OkStatus();
  return StorageError(errno, "sync the folder", path);
}

absl::Status Lock(const Descriptor& file, int how, const std::string& folder) {
  if (Uninterrupted([&] { return flock(file.number(), how | LOCK_NB); }) == 0) return absl::OkStatus();
  if (errno != EWOULDBLOCK) return StorageError(errno, "lock", absl::StrCat(folder, "/", kLockFile));
  // Who wants to write there may wait for its end, who wants to read only is to choose another moment.
  return absl::Status(how == LOCK_EX ? absl::StatusCode::kUnavailable : absl::StatusCode::kFailedPrecondition,
                      absl::StrCat(folder, " is in use by another process; wait for its end, or give another folder"));
}

class PosixFile final : public StorageFile {
 public:
  PosixFile(Descriptor file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}

 protected:
  absl::Status Write(absl::Span<const ByteSpan> pieces) override {
    const int error = internal::WritePieces(
        [&](const iovec* vector, int count) { return writev(file_.number(), vector, count); }, pieces);
    return error == 0 ? absl::OkStatus() : StorageError(error, "append to", path_);
  }
  // Its size goes with the data, its times need not. An interrupted call is a failed one.
  absl::Status Flush() override {
    return fdatasync(file_.number()) == 0 ? absl::OkStatus() : StorageError(errno, "sync", path_);
  }

 private:
  const Descriptor file_;
  const std::string path_;
};

class PosixStorage final : public Storage {
 public:
  PosixStorage(std::string name, Descriptor folder, Descriptor lock)
      : name_(std::move(name)), folder_(std::move(folder)), lock_(std::move(lock)) {}

  absl::StatusOr<std::unique_ptr<StorageFile>> Create(absl::string_view path) override {
    auto file = OpenAt(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND, "create");
    if (!file.ok()) return file.status();
    return std::make_unique<PosixFile>(*std::move(file), Describe(path));
  }

  absl::Status SyncFile(absl::string_view file) override {
    const auto opened = OpenAt(file, O_RDONLY, "open");
    if (!opened.ok()) return opened.status();
    return fdatasync(opened->number()) == 0 ? absl::OkStatus()
                                            : StorageError(errno, "sync", Describe(file));
  }

  absl::Status MakeFolder(absl::string_view path) override {
    return Perform("make the folder", path,
                   [&](const char* at) { return mkdirat(folder_.number(), at, 0755); });
  }

  absl::Status SyncFolder(absl::string_view folder) override {
    const auto opened = OpenAt(folder, O_RDONLY | O_DIRECTORY, "open the folder");
    if (!opened.ok()) return opened.status();
    return SyncFolderOnDisk(opened->number(), Describe(folder));
  }

  absl::Status Rename(absl::string_view from, absl::string_view to) override {
    if (absl::Status valid = CheckStoragePath(to); !valid.ok()) return valid;
    if (SplitStoragePath(from).first != SplitStoragePath(to).first) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot rename ", Describe(from), " to ", Describe(to), ": that is another folder"));
    }
    return Perform("rename", from, [&](const char* at) {
      return renameat(folder_.number(), at, folder_.number(), std::string(to).c_str());
    });
  }

  absl::Status Remove(absl::string_view file) override {
    return Perform("remove", file, [&](const char* at) { return unlinkat(folder_.number(), at, 0); });
  }

  absl::Status RemoveFolder(absl::string_view folder) override {
    return Perform("remove the folder", folder,
                   [&](const char* at) { return unlinkat(folder_.number(), at, AT_REMOVEDIR); });
  }

  absl::Status Truncate(absl::string_view file, uint64_t bytes) override {
    const auto opened = OpenAt(file, O_WRONLY, "open");
    if (!opened.ok()) return opened.status();
    if (Uninterrupted([&] { return ftruncate(opened->number(), static_cast<off_t>(bytes)); }) != 0) {
      return StorageError(errno, "cut", Describe(file));
    }
    return fsync(opened->number()) == 0 ? absl::OkStatus() : StorageError(errno, "sync", Describe(file));
  }

  absl::StatusOr<std::vector<StorageEntry>> List(absl::string_view folder) const override {
    const auto opened = OpenAt(folder, O_RDONLY | O_DIRECTORY, "list");
    if (!opened.ok()) return opened.status();
    // The stream takes a descriptor of its own.
    const int copy = dup(opened->number());
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(copy < 0 ? nullptr : fdopendir(copy), closedir);
    if (stream == nullptr) return StorageError(errno, "list", Describe(folder));
    std::vector<StorageEntry> entries;
    for (;;) {
      errno = 0;
      const dirent* entry = readdir(stream.get());
      if (entry == nullptr) break;
      if (entry->d_name[0] == '.') continue;
      struct stat about;
      if (fstatat(opened->number(), entry->d_name, &about, 0) != 0) {
        if (errno == ENOENT) continue;  // went meanwhile
        return StorageError(errno, "look at", absl::StrCat(Describe(folder), "/", entry->d_name));
      }
      entries.push_back({entry->d_name, S_ISDIR(about.st_mode)});
    }
    if (errno != 0) return StorageError(errno, "list", Describe(folder));
    std::sort(entries.begin(), entries.end(),
              [](const StorageEntry& a, const StorageEntry& b) { return a.name < b.name; });
    return entries;
  }

  absl::StatusOr<uint64_t> Size(absl::string_view file) const override {
    if (absl::Status valid = CheckStoragePath(file); !valid.ok()) return valid;
    struct stat about;
    if (fstatat(folder_.number(), std::string(file).c_str(), &about, 0) != 0) {
      return StorageError(errno, "look at", Describe(file));
    }
    if (!S_ISREG(about.st_mode)) {
      return absl::FailedPreconditionError(
          absl::StrCat("cannot take the size of ", Describe(file), ": it is no file, but ",
                       S_ISDIR(about.st_mode) ? "a folder" : "a pipe or a device",
                       "; move it away, and put the file back from a copy"));
    }
    return static_cast<uint64_t>(about.st_size);
  }

  absl::StatusOr<std::string> ReadAt(absl::string_view file, uint64_t offset,
                                     uint64_t bytes) const override {
    const auto opened = OpenAt(file, O_RDONLY, "open");
    if (!opened.ok()) return opened.status();
    struct stat about;
    if (fstat(opened->number(), &about) != 0) return StorageError(errno, "look at", Describe(file));
    const auto size = static_cast<uint64_t>(about.st_size);
    std::string content(offset < size ? std::min(bytes, size - offset) : 0, '\0');
    for (size_t read = 0; read < content.size();) {
      const ssize_t now = Uninterrupted([&] {
        return pread(opened->number(), content.data() + read, content.size() - read,
                     static_cast<off_t>(offset + read));
      });
      if (now < 0) return StorageError(errno, "read", Describe(file));
      if (now == 0) content.resize(read);  // it was cut meanwhile
      read += static_cast<size_t>(now);
    }
    return content;
  }

  absl::StatusOr<uint64_t> FreeBytes() const override {
    struct statvfs about;
    if (Uninterrupted([&] { return fstatvfs(folder_.number(), &about); }) != 0) {
      return StorageError(errno, "take the free space of", name_);
    }
    return static_cast<uint64_t>(about.f_bavail) * about.f_frsize;
  }

  std::string Describe(absl::string_view path) const override {
    return path.empty() ? name_ : absl::StrCat(name_, "/", path);
  }

 private:
  absl::StatusOr<Descriptor> OpenAt(absl::string_view path, int flags, absl::string_view operation) const {
    if (absl::Status valid = CheckStoragePath(path); !valid.ok()) return valid;
    const std::string at = path.empty() ? "." : std::string(path);
    // Nobody may ever come to the other end of a pipe that lies there.
    Descriptor opened(
        Uninterrupted([&] { return openat(folder_.number(), at.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0644); }));
    if (opened.ok() && (flags & O_DIRECTORY) != 0) return opened;
    const int error = opened.ok() ? 0 : errno;
    struct stat about;
    // ENXIO: a pipe that nobody reads, or a socket.
    const bool other = opened.ok() ? fstat(opened.number(), &about) == 0 && !S_ISREG(about.st_mode) : error == ENXIO;
    if (other) {
      return absl::FailedPreconditionError(
          absl::StrCat("cannot ", operation, " ", Describe(path),
                       ": it is no file, but a folder, a pipe or a device; move it away, and put the file back from a copy"));
    }
    if (!opened.ok()) return StorageError(error, operation, Describe(path));
    return opened;
  }

  template <typename Call>
  absl::Status Perform(absl::string_view operation, absl::string_view path, Call call) {
    if (absl::Status valid = CheckStoragePath(path); !valid.ok()) return valid;
    const std::string at(path);
    return call(at.c_str()) == 0 ? absl::OkStatus() : StorageError(errno, operation, Describe(path));
  }

  const std::string name_;
  const Descriptor folder_;
  const Descriptor lock_;  // held as long as this lives
};

}  // namespace

namespace internal {

absl::Status MakeFolders(const std::string& folder, const std::function<absl::Status(const std::string&)>& sync) {
  std::filesystem::path path = folder;
  if (!path.has_filename() && path.has_relative_path()) path = path.parent_path();  // "state/"
  const std::filesystem::path above = path.has_parent_path() ? path.parent_path() : ".";
  std::error_code error;
  const bool there = std::filesystem::is_directory(path, error);
  if (!there) {
    if (above != path) {
      if (absl::Status made = MakeFolders(above.string(), sync); !made.ok()) return made;
    }
    // It may have come meanwhile.
    if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) {
      return StorageError(errno, "make the folder", path.string());
    }
  }
  const absl::Status synced = sync(above.string());
  // Where only others may look at the folder above, it was for them to make this one.
  return there && absl::IsPermissionDenied(synced) ? absl::OkStatus() : synced;
}

}  // namespace internal

absl::StatusOr<std::unique_ptr<Storage>> OpenStorage(const std::string& folder) {
  const absl::Status made = internal::MakeFolders(folder, [](const std::string& above) {
    const auto opened = OpenFolder(above);
    return opened.ok() ? SyncFolderOnDisk(opened->number(), above) : opened.status();
  });
  if (!made.ok()) return made;
  auto opened = OpenFolder(folder);
  if (!opened.ok()) return opened.status();
  Descriptor lock(openat(opened->number(), kLockFile, O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock.ok()) return StorageError(errno, "create", absl::StrCat(folder, "/", kLockFile));
  if (absl::Status locked = Lock(lock, LOCK_EX, folder); !locked.ok()) return locked;
  return std::make_unique<PosixStorage>(folder, *std::move(opened), std::move(lock));
}

absl::StatusOr<std::unique_ptr<Storage>> OpenStorageToRead(const std::string& folder, Others others) {
  auto opened = OpenFolder(folder);
  if (!opened.ok()) return opened.status();
  if (others == Others::kMayWrite) {
    return std::make_unique<PosixStorage>(folder, *std::move(opened), Descriptor(-1));
  }
  Descriptor lock(openat(opened->number(), kLockFile, O_RDONLY | O_CLOEXEC));
  if (lock.ok()) {
    if (absl::Status locked = Lock(lock, LOCK_SH, folder); !locked.ok()) return locked;
  } else if (errno != ENOENT) {  // without the file it is a copy, which nobody has written to
    return StorageError(errno, "open", absl::StrCat(folder, "/", kLockFile));
  }
  return std::make_unique<PosixStorage>(folder, *std::move(opened), std::move(lock));
}

}  // namespace foreshard
