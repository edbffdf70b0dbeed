// Renews a worker's lease on every server, also while a step takes long.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"

namespace foreshard {

// Thread-safe. Beats three times a lease, from construction on.
class Heartbeat {
 public:
  struct Options {
    std::vector<std::shared_ptr<grpc::Channel>> channels;  // by shard
    std::vector<std::string> addresses;
    uint32_t worker = 0;
    uint64_t incarnation = 0;
    double lease_seconds = 15;
  };
  explicit Heartbeat(const Options& options);
  ~Heartbeat();  // as End(false)

  // The last beat. Takes leave of every server that answers, so that it frees what
  // it keeps for this worker at once, and not when the lease is over.
  void End(bool leave);

  // ABORTED once a server has said that a newer incarnation holds the slot.
  // Servers that do not answer are no concern of this class.
  absl::Status status() const;

 private:
  void Run();
  void Beat(bool leaving) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const absl::Duration interval_;
  mutable absl::Mutex mutex_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace foreshard
