// The transport under the parameter client: raw unary Exchange calls to all
// servers from one own thread, a bounded window of them in flight to each, with
// back-off, deadlines and an end to every wait. Knows no parameters.
//
//   ExchangeCalls calls(options, &handler);
//   calls.Start();          // whenever handler.Next has something to send
//
// The thread that polls the completion queue also makes the messages and reads
// the replies: a byte is touched while it is in that core's cache, and no
// hand-off between threads lies between a reply and the next send.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/core/steady_time.h"
#include "grpcpp/alarm.h"
#include "grpcpp/channel.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "worker/patience.h"

namespace foreshard {

// One message to send.
struct Outgoing {
  uint32_t shard = 0;
  uint32_t token = 0;  // the handler's; comes back with the reply
  grpc::ByteBuffer message;
  uint64_t bytes = 0;  // both ways, for the deadline
};

// What becomes of a call after its reply was read.
struct FollowUp {
  enum class What { kNone, kSend, kAgain, kRestarted };
  What what = What::kNone;
  grpc::ByteBuffer message;  // kSend: goes out in the same place of the window
  // kAgain: the same message once more, after a back-off, because of this. kRestarted: the server
  // was started again; the same message once more if Refused allows it.
  absl::Status reason;
};

// All calls come one at a time, under the lock of ExchangeCalls; but those of Refused, which come one at a
// time from a thread of their own, beside the others.
class ExchangeHandler {
 public:
  virtual ~ExchangeHandler() = default;
  // The most urgent message to a server whose `room` is true; nullopt: none.
  virtual std::optional<Outgoing> Next(const std::vector<bool>& room) = 0;
  // A reply. An error ends everything.
  virtual absl::StatusOr<FollowUp> Received(uint32_t token, const grpc::ByteBuffer& reply) = 0;
  // A server refused a message, or its answer was not read because the server is another one
  // now: the error to end with; else what is to be sent instead; none: the same again. May wait for that
  // server; what the others say is read meanwhile. After Failed it may still be under way.
  virtual absl::StatusOr<std::optional<grpc::ByteBuffer>> Refused(uint32_t token, const absl::Status& refusal) = 0;
  // Once, at the end: no call is outstanding any more and none will be made.
  virtual void Failed(const absl::Status& status) = 0;
};

// Thread-safe.
class ExchangeCalls {
 public:
  struct Options {
    std::vector<std::shared_ptr<grpc::Channel>> channels;  // by shard
    std::vector<std::string> addresses;                    // by shard, for messages
    uint32_t window = 3;                                   // calls in flight to one server
    absl::Duration patience = absl::Seconds(60);
    const std::atomic<bool>* stop = nullptr;
  };

  // `handler` must outlive this object.
  ExchangeCalls(const Options& options, ExchangeHandler* handler);
  // Cancels what is in flight; waits for the threads, and so for a Refused that is under way.
  ~ExchangeCalls();

  // Asks the handler for messages: on the calling thread when `here` (worth it
  // where making them costs less than waking another thread), else on the own one.
  void Start(bool here);

  // Ends everything with this error, as a server's refusal would.
  void Fail(const absl::Status& status);

 private:
  struct Call;
  // For the handler's Refused.
  struct Question {
    uint64_t call = 0;  // its number
    uint32_t token = 0;
    absl::Status refusal;
  };

  void Run();
  void Ask();
  void Answered(const Question& question, absl::StatusOr<std::optional<grpc::ByteBuffer>> instead)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool SendOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Issue(Call* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finished(Call* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Refused(Call* call, const absl::Status& refusal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `at_least`: what the server has asked for.
  void Retry(Call* call, const absl::Status& failure, absl::Duration at_least = absl::ZeroDuration())
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void IssueDue(SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckStop(SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(Call* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  SteadyTime WakeTime() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  ExchangeHandler* const handler_;
  std::vector<grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer>> stubs_;
  grpc::CompletionQueue queue_;

  absl::Mutex mutex_;
  std::vector<Patience> patience_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> in_flight_ ABSL_GUARDED_BY(mutex_);  // waiting retries included
  std::vector<bool> room_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Call>> calls_ ABSL_GUARDED_BY(mutex_);
  uint64_t calls_made_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Question> questions_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool told_ ABSL_GUARDED_BY(mutex_) = false;  // handler_->Failed was called
  SteadyTime stop_seen_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfiniteFuture();
  // Of waits that a server has asked for; no result depends on it.
  std::minstd_rand jitter_ ABSL_GUARDED_BY(mutex_){std::random_device()()};
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);  // set: a wake-up is on its way

  std::thread thread_, asking_;
};

}  // namespace foreshard
