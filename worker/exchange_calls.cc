#include "worker/exchange_calls.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/channel.h"
#include "common/net/exchange_message.h"
#include "common/net/retry_after.h"
#include "glog/logging.h"
#include "grpcpp/client_context.h"

namespace foreshard {
namespace {

constexpr char kExchangeMethod[] = "/foreshard.v1.ParameterServer/Exchange";
// How long a stop may wait for calls in flight before they are cancelled, and
// how often a thread that waits for them looks whether it was asked to stop.
constexpr absl::Duration kStopGrace = absl::Seconds(3);
constexpr absl::Duration kStopCheckEvery = absl::Milliseconds(250);
constexpr absl::Duration kIdleCheckEvery = absl::Seconds(1);
// The same message is sent again this often because it or its reply was damaged.
constexpr int kDamagedMessages = 3;
// Beside the time for a call's bytes. A server holds a fetch for 20 s at most.
constexpr absl::Duration kFetchDeadline = absl::Seconds(30);
constexpr absl::Duration kShortestDeadline = absl::Seconds(2);
constexpr absl::Duration kLongestDeadline = absl::Seconds(30);

}  // namespace

struct ExchangeCalls::Call {
  Outgoing out;
  uint64_t number = 0;
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> reader;
  grpc::ByteBuffer reply;
  grpc::Status status;
  enum class State { kRunning, kWaiting, kAsking, kDone } state = State::kRunning;
  int damaged = 0;
  bool fetching = false;  // waits for a round
  SteadyTime retry_at;  // kWaiting
};

ExchangeCalls::ExchangeCalls(const Options& options, ExchangeHandler* handler)
    : options_(options),
      handler_(handler),
      in_flight_(options.channels.size()),
      room_(options.channels.size(), true) {
  for (size_t shard = 0; shard < options.channels.size(); ++shard) {
    stubs_.emplace_back(options.channels[shard]);
    patience_.emplace_back(ServerName(shard, options.addresses[shard]), options.patience);
  }
  thread_ = std::thread([this] { Run(); });
  asking_ = std::thread([this] { Ask(); });
}

ExchangeCalls::~ExchangeCalls() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    End(absl::CancelledError("the parameter client was closed"));
  }
  Start(false);
  thread_.join();
  asking_.join();
  queue_.Shutdown();
  void* tag;
  bool ok;
  while (queue_.Next(&tag, &ok)) {
  }
}

void ExchangeCalls::Start(bool here) {
  absl::MutexLock lock(&mutex_);
  if (here) {
    while (SendOne()) {
    }
    return;
  }
  Wake();
}

void ExchangeCalls::Wake() {
  if (alarm_ != nullptr) return;
  alarm_ = std::make_unique<grpc::Alarm>();
  alarm_->Set(&queue_, gpr_time_0(GPR_CLOCK_MONOTONIC), nullptr);
}

void ExchangeCalls::Fail(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    End(status);
  }
  Start(false);
}

void ExchangeCalls::Run() {
  for (;;) {
    SteadyTime wake;
    {
      absl::MutexLock lock(&mutex_);
      const SteadyTime now = SteadyTime::Now();
      CheckStop(now);
      IssueDue(now);
      // Nothing left of a failed client: say so once.
      if (end_.has_value() && calls_.empty()) {
        if (!told_) {
          told_ = true;
          handler_->Failed(*end_);
        }
        if (closing_) return;
      }
      // One message at a time, so that replies that are there are read between.
      wake = SendOne() ? SteadyTime::InfinitePast() : WakeTime();
    }
    void* tag = nullptr;
    bool ok = false;
    const auto next = queue_.AsyncNext(
        &tag, &ok,
        wake == SteadyTime::InfinitePast()     ? gpr_time_0(GPR_CLOCK_MONOTONIC)
        : wake == SteadyTime::InfiniteFuture() ? gpr_inf_future(GPR_CLOCK_MONOTONIC)
                                         : gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                                        gpr_time_from_nanos(
                                                            absl::ToInt64Nanoseconds(std::max(
                                                                wake - SteadyTime::Now(),
                                                                absl::ZeroDuration())),
                                                            GPR_TIMESPAN)));
    if (next != grpc::CompletionQueue::GOT_EVENT) continue;
    absl::MutexLock lock(&mutex_);
    if (tag == nullptr) {
      alarm_.reset();
    } else {
      Finished(static_cast<Call*>(tag));
    }
  }
}

bool ExchangeCalls::SendOne() {
  if (end_.has_value()) return false;
  std::optional<Outgoing> out = handler_->Next(room_);
  if (!out.has_value()) return false;
  auto call = std::make_unique<Call>();
  call->out = std::move(*out);
  call->number = ++calls_made_;
  const uint32_t shard = call->out.shard;
  room_[shard] = ++in_flight_[shard] < options_.window;
  calls_.push_back(std::move(call));
  Issue(calls_.back().get());
  return true;
}

void ExchangeCalls::Issue(Call* call) {
  call->context = std::make_unique<grpc::ClientContext>();
  // A fetch may be held for its round; of anything else an answer is due soon, so
  // that a frozen server is noticed and named within the patience.
  const absl::Duration base =
      call->fetching ? kFetchDeadline
                     : std::clamp(options_.patience / 4, kShortestDeadline, kLongestDeadline);
  SetDeadline(*call->context, call->out.bytes, base);
  call->reply.Clear();
  call->state = Call::State::kRunning;
  call->reader = stubs_[call->out.shard].PrepareUnaryCall(call->context.get(), kExchangeMethod,
                                                          call->out.message, &queue_);
  call->reader->StartCall();
  call->reader->Finish(&call->reply, &call->status, call);
}

void ExchangeCalls::Finished(Call* call) {
  call->state = Call::State::kDone;
  if (end_.has_value()) return Drop(call);
  const uint32_t shard = call->out.shard;
  if (!call->status.ok()) {
    const absl::Status status = FromGrpc(call->status);
    if (IsTransient(status.code())) {
      return Retry(call, status, RetryAfter(call->context->GetServerTrailingMetadata()));
    }
    if (status.code() == absl::StatusCode::kDataLoss && ++call->damaged <= kDamagedMessages) {
      return Retry(call, status);
    }
    return Refused(call, AtServer(patience_[shard].server(), status));
  }
  auto follow_up = handler_->Received(call->out.token, call->reply);
  if (!follow_up.ok()) {
    End(AtServer(patience_[shard].server(), follow_up.status()));
    return Drop(call);
  }
  switch (follow_up->what) {
    case FollowUp::What::kRestarted:
      return Refused(call, AtServer(patience_[shard].server(), follow_up->reason));
    case FollowUp::What::kNone:
      patience_[shard].Succeeded();
      return Drop(call);
    case FollowUp::What::kSend:
      patience_[shard].Succeeded();
      call->out.message = std::move(follow_up->message);
      call->fetching = true;
      return Issue(call);
    case FollowUp::What::kAgain:
      if (++call->damaged > kDamagedMessages) {
        End(AtServer(patience_[shard].server(), follow_up->reason));
        return Drop(call);
      }
      return Retry(call, follow_up->reason);
  }
}

void ExchangeCalls::Refused(Call* call, const absl::Status& refusal) {
  call->state = Call::State::kAsking;
  questions_.push_back({.call = call->number, .token = call->out.token, .refusal = refusal});
}

void ExchangeCalls::Ask() {
  const auto due = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return closing_ || !questions_.empty(); };
  absl::MutexLock lock(&mutex_);
  for (;;) {
    mutex_.Await(absl::Condition(&due));
    if (closing_) return;
    const Question question = std::move(questions_.front());
    questions_.pop_front();
    mutex_.Unlock();
    auto instead = handler_->Refused(question.token, question.refusal);
    mutex_.Lock();
    Answered(question, std::move(instead));
    Wake();
  }
}

void ExchangeCalls::Answered(const Question& question, absl::StatusOr<std::optional<grpc::ByteBuffer>> instead) {
  const auto place = std::find_if(calls_.begin(), calls_.end(),
                                  [&](const auto& call) { return call->number == question.call; });
  if (place == calls_.end()) return;  // all has ended meanwhile
  Call* const call = place->get();
  if (!instead.ok()) return End(instead.status());
  if (instead->has_value()) call->out.message = **std::move(instead);
  Retry(call, question.refusal);
}

void ExchangeCalls::Retry(Call* call, const absl::Status& failure, absl::Duration at_least) {
  const SteadyTime now = SteadyTime::Now();
  const auto wait = patience_[call->out.shard].Failed(failure, now);
  if (!wait.ok()) {
    End(wait.status());
    return Drop(call);
  }
  call->state = Call::State::kWaiting;
  call->retry_at = now + std::max(*wait, at_least * std::uniform_real_distribution(1.0, 1.5)(jitter_));
}

void ExchangeCalls::IssueDue(SteadyTime now) {
  if (end_.has_value()) return;
  for (const auto& call : calls_) {
    if (call->state == Call::State::kWaiting && call->retry_at <= now) Issue(call.get());
  }
}

void ExchangeCalls::CheckStop(SteadyTime now) {
  if (end_.has_value() || calls_.empty() || options_.stop == nullptr || !options_.stop->load()) {
    return;
  }
  stop_seen_ = std::min(stop_seen_, now);
  for (const Patience& patience : patience_) {
    if (patience.waiting() || now - stop_seen_ > kStopGrace) {
      return End(absl::CancelledError(
          absl::StrCat("interrupted while waiting for ", patience.server())));
    }
  }
}

void ExchangeCalls::End(const absl::Status& status) {
  if (end_.has_value()) return;
  end_ = status;
  for (size_t i = calls_.size(); i-- > 0;) {
    if (calls_[i]->state == Call::State::kRunning) {
      calls_[i]->context->TryCancel();
    } else if (calls_[i]->state == Call::State::kWaiting || calls_[i]->state == Call::State::kAsking) {
      Drop(calls_[i].get());
    }
  }
}

void ExchangeCalls::Drop(Call* call) {
  const uint32_t shard = call->out.shard;
  room_[shard] = --in_flight_[shard] < options_.window;
  const auto place = std::find_if(calls_.begin(), calls_.end(),
                                  [&](const auto& other) { return other.get() == call; });
  std::swap(*place, calls_.back());
  calls_.pop_back();
}

SteadyTime ExchangeCalls::WakeTime() const {
  SteadyTime wake = SteadyTime::InfiniteFuture();
  if (end_.has_value()) return wake;
  for (const auto& call : calls_) {
    if (call->state == Call::State::kWaiting) wake = std::min(wake, call->retry_at);
  }
  if (options_.stop != nullptr) {
    wake = std::min(wake, SteadyTime::Now() + (calls_.empty() ? kIdleCheckEvery : kStopCheckEvery));
  }
  return wake;
}

}  // namespace foreshard
