#include "server/apply_threads.h"

#include <algorithm>
#include <utility>

namespace foreshard {

ApplyThreads::ApplyThreads(uint32_t threads) {
  if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
  for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

ApplyThreads::~ApplyThreads() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void ApplyThreads::Run(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
}

void ApplyThreads::Work() {
  const auto wanted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closing_ || !tasks_.empty();
  };
  for (;;) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&wanted));
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace foreshard
