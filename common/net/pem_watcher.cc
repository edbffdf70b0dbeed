#include "common/net/pem_watcher.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "common/net/secret_file.h"
#include "glog/logging.h"
#include "openssl/crypto.h"

namespace foreshard {
namespace {

constexpr absl::Duration kLook = absl::Seconds(1);
constexpr absl::Duration kEndsSoon = absl::Hours(14 * 24);
constexpr absl::Duration kWarnEvery = absl::Hours(24);

std::string PathOf(int descriptor) { return absl::StrCat("/proc/self/fd/", descriptor); }

// A file of memory, which this process alone can open.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(memfd_create("foreshard-pem", MFD_CLOEXEC)) {}
  ~MemoryFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  absl::Status Write(const std::string& text) {
    if (descriptor_ < 0 || fchmod(descriptor_, 0600) != 0) {
      return absl::ErrnoToStatus(errno, "cannot make a file in memory for certificates");
    }
    for (size_t at = 0; at < text.size();) {
      const ssize_t written = write(descriptor_, text.data() + at, text.size() - at);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return absl::ErrnoToStatus(errno, "cannot write to a file in memory for certificates");
      at += static_cast<size_t>(written);
    }
    return absl::OkStatus();
  }
  int descriptor() const { return descriptor_; }
  std::string path() const { return PathOf(descriptor_); }
  int Release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

// Puts `file` where `*descriptor` is, at once; the first time that is a new one.
absl::Status Replace(MemoryFile* file, int* descriptor) {
  if (*descriptor < 0) {
    *descriptor = file->Release();
    return absl::OkStatus();
  }
  if (dup3(file->descriptor(), *descriptor, O_CLOEXEC) >= 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "cannot replace certificates in memory");
}

// Changes whenever one of the files does: its file, length or times.
std::string Look(const PemFiles& files) {
  std::string look;
  for (const std::string* path : {&files.certificate, &files.key, &files.ca}) {
    struct stat found = {};
    if (stat(path->c_str(), &found) != 0) {
      absl::StrAppend(&look, "missing ");
      continue;
    }
    absl::StrAppend(&look, found.st_dev, ":", found.st_ino, ":", found.st_size, ":", found.st_mode, ":");
    absl::StrAppend(&look, found.st_mtim.tv_sec, ".", found.st_mtim.tv_nsec, ":", found.st_ctim.tv_sec, ".",
                    found.st_ctim.tv_nsec, " ");
  }
  return look;
}

}  // namespace

absl::StatusOr<const PemWatcher*> PemWatcher::Start(const PemFiles& files, TlsSide side) {
  std::unique_ptr<PemWatcher> watcher(new PemWatcher(files, side));
  watcher->last_look_ = Look(files);
  if (absl::Status taken = watcher->Take(); !taken.ok()) return taken;
  watcher->served_ = {.certificate = PathOf(watcher->pair_),
                      .key = PathOf(watcher->pair_),
                      .ca = PathOf(watcher->ca_)};
  PemWatcher* const lives = watcher.release();
  std::thread([lives] { lives->Watch(); }).detach();
  return lives;
}

absl::Status PemWatcher::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

// The files are read once, and what was read is what is looked at and served.
absl::Status PemWatcher::Take() {
  const auto certificate = ReadPublicFile("--tls-certificate", files_.certificate);
  if (!certificate.ok()) return certificate.status();
  auto key = ReadSecretFile("--tls-key", files_.key);
  if (!key.ok()) return key.status();
  const auto ca = ReadPublicFile("--tls-ca", files_.ca);
  if (!ca.ok()) return ca.status();

  MemoryFile certificate_file, key_file, ca_file, pair_file;
  absl::Status status = certificate_file.Write(*certificate);
  status.Update(key_file.Write(*key));
  status.Update(ca_file.Write(*ca));
  std::string pair = absl::StrCat(*certificate, "\n", *key);
  status.Update(pair_file.Write(pair));
  OPENSSL_cleanse(pair.data(), pair.size());
  OPENSSL_cleanse(key->data(), key->size());
  if (!status.ok()) return status;

  const PemFiles copies = {.certificate = certificate_file.path(), .key = key_file.path(), .ca = ca_file.path()};
  const absl::StatusOr<absl::Time> end = CheckPemFiles(copies, side_);
  if (!end.ok()) {
    return absl::Status(end.status().code(),
                        absl::StrReplaceAll(end.status().message(), {{copies.certificate, files_.certificate},
                                                                     {copies.key, files_.key},
                                                                     {copies.ca, files_.ca}}));
  }
  const absl::Time now = absl::Now();
  if (*end - now < kEndsSoon && now - warned_ >= kWarnEvery) {
    LOG(WARNING) << "the certificate in " << files_.certificate << " expires in "
                 << absl::ToInt64Hours(*end - now) << " hours; renew it: tools/make-certificates --renew";
    warned_ = now;
  }
  if (absl::Status replaced = Replace(&ca_file, &ca_); !replaced.ok()) return replaced;
  return Replace(&pair_file, &pair_);
}

void PemWatcher::Note(const absl::Status& taken) {
  absl::MutexLock lock(&mutex_);
  if (taken == status_) return;
  if (taken.ok()) {
    LOG(INFO) << "new connections are served with the certificate that is now in " << files_.certificate;
  } else {
    LOG(ERROR) << "the files for TLS are not taken as they are now, the ones before them are served on: "
               << taken.message();
  }
  status_ = taken;
}

void PemWatcher::Watch() {
  absl::Time looked_closely = absl::Now();
  for (;;) {
    absl::SleepFor(kLook);
    const bool bad = !status().ok();
    const std::string look = Look(files_);
    const absl::Time now = absl::Now();
    // Once a day also where nothing has changed: certificates end.
    if (look == last_look_ && !bad && now - looked_closely < kWarnEvery) continue;
    last_look_ = look;
    looked_closely = now;
    Note(Take());
  }
}

}  // namespace foreshard
