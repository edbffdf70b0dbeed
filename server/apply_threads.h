// The threads on which a server does arithmetic on more than 64 KiB, one for each
// core, so that gRPC's own threads stay free to move bytes.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace foreshard {

// Thread-safe. The queue is bounded by what is given: requests count against the
// server's byte budget before they come here.
class ApplyThreads {
 public:
  // 0: as many as there are cores.
  explicit ApplyThreads(uint32_t threads);
  // Runs what is queued, then ends.
  ~ApplyThreads();
  ApplyThreads(const ApplyThreads&) = delete;
  ApplyThreads& operator=(const ApplyThreads&) = delete;

  void Run(std::function<void()> task);

 private:
  void Work();

  absl::Mutex mutex_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace foreshard
