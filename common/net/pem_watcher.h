// Certificates and keys that are replaced on disk under running programs. gRPC's own watcher gives
// to its handshakes whatever lies there, and ends the process over an empty file, as a copy onto the
// old one leaves for a moment. This one looks first, and keeps the last good set.
//
//   auto watcher = PemWatcher::Start(files, TlsSide::kServer);
//   RETURN_IF_ERROR(watcher.status());  // else it is there until the process ends
//   FileWatcherCertificateProvider((*watcher)->served().key, ...);
#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/net/pem_files.h"

namespace foreshard {

// Looks at the files in a thread of its own, every second. Thread-safe.
class PemWatcher {
 public:
  // Errors: those of CheckPemFiles; INTERNAL where the system has no memory files.
  // It is never destroyed, since servers and channels of gRPC go on reading what it serves.
  static absl::StatusOr<const PemWatcher*> Start(const PemFiles& files, TlsSide side);
  PemWatcher(const PemWatcher&) = delete;
  PemWatcher& operator=(const PemWatcher&) = delete;

  // Where the last good set lies, in this process alone and never half written: certificate and
  // key are one file. Below /proc/self/fd.
  const PemFiles& served() const { return served_; }

  // Why the files as they are now are not served; OK where they are. Also logged, once for each
  // reason. A certificate that ends soon is warned of once a day.
  absl::Status status() const;

 private:
  PemWatcher(const PemFiles& files, TlsSide side) : files_(files), side_(side) {}
  absl::Status Take();
  [[noreturn]] void Watch();
  void Note(const absl::Status& taken);

  const PemFiles files_;
  const TlsSide side_;
  PemFiles served_;
  int pair_ = -1, ca_ = -1;  // descriptors
  std::string last_look_;    // of the files that were taken, or refused
  absl::Time warned_ = absl::InfinitePast();

  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace foreshard
