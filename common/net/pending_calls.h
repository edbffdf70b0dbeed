// Waits for calls of gRPC's callback API that were made together.
//
//   const auto pending = std::make_shared<PendingCalls>(stubs.size());
//   for (Call& call : calls) {
//     stub->async()->Method(&call.context, &call.request, &call.reply,
//                           [&call, pending](const grpc::Status& status) {
//                             pending->Done([&] { call.status = status; });
//                           });
//   }
//   pending->Wait();  // from here on the calls are the waiter's alone
//
// A callback touches what belongs to the waiter under the lock only, and keeps the rest,
// this object, alive for itself: so the waiter may go on, and be gone, at once. (With an
// absl::BlockingCounter on the waiter's stack that held too, but could not be seen from
// here, nor by thread sanitizer, since abseil as packaged is not built for it.)
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace foreshard {

// Thread-safe.
class PendingCalls {
 public:
  explicit PendingCalls(size_t calls) : left_(calls) {}
  PendingCalls(const PendingCalls&) = delete;
  PendingCalls& operator=(const PendingCalls&) = delete;

  // Once a call, as the last thing that its callback does: `note` runs under the lock, and
  // what it writes is there when Wait returns.
  template <typename Note>
  void Done(Note note) {
    const std::lock_guard<std::mutex> lock(mutex_);
    note();
    if (--left_ == 0) none_left_.notify_all();
  }

  // Returns when all are done; at once where there are none.
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    none_left_.wait(lock, [this] { return left_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_left_;
  size_t left_;  // calls
};

}  // namespace foreshard
