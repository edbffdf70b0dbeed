#include "worker/patience.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/net/exchange_message.h"
#include "glog/logging.h"

namespace foreshard {
namespace {

// A short hiccup is not worth a line; then one every so often.
constexpr absl::Duration kSilentFor = absl::Milliseconds(200);
constexpr absl::Duration kLineEvery = absl::Seconds(5);
constexpr absl::Duration kSmallCallDeadline = absl::Seconds(10);
constexpr absl::Duration kConnectionWait = absl::Seconds(1);
constexpr absl::Duration kStopCheckEvery = absl::Milliseconds(100);

}  // namespace

bool IsTransient(absl::StatusCode code) {
  return code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kDeadlineExceeded ||
         code == absl::StatusCode::kResourceExhausted || code == absl::StatusCode::kCancelled;
}

std::string ServerName(size_t shard, const std::string& address) {
  return absl::StrCat("server ", shard, " at ", address);
}

absl::StatusOr<absl::Duration> Patience::Failed(const absl::Status& failure, SteadyTime now) {
  if (!failing_) {
    failing_ = true;
    announced_ = false;
    first_failure_ = now;
    next_line_ = now + std::min(kSilentFor, limit_ / 2);
    backoff_ = kFirstBackoff;
  }
  const absl::Duration waited = now - first_failure_;
  if (waited >= limit_) {
    return absl::UnavailableError(absl::StrFormat(
        "%s has not answered for %.0f s (timeouts.connect_seconds): %s%s", server_,
        absl::ToDoubleSeconds(limit_), failure.message(),
        Explained(failure, ". Is it running, and is the address right?")));
  }
  if (now >= next_line_) {
    LOG(WARNING) << absl::StrFormat("waiting for %s: %s%s (%.0f s of %.0f s)", server_,
                                    failure.ToString(), Explained(failure, ""),
                                    absl::ToDoubleSeconds(waited), absl::ToDoubleSeconds(limit_));
    announced_ = true;
    next_line_ = now + kLineEvery;
  }
  const absl::Duration wait = std::min(backoff_, limit_ - waited);
  backoff_ = std::min(backoff_ * 2, kLongestBackoff);
  return wait;
}

std::string Patience::Explained(const absl::Status& failure, absl::string_view otherwise) const {
  const std::string why =
      explain_ != nullptr && absl::IsUnavailable(failure) ? explain_() : std::string();
  return why.empty() ? std::string(otherwise) : absl::StrCat(": ", why);
}

void Patience::Succeeded() {
  if (failing_ && announced_) LOG(INFO) << server_ << " answers again";
  failing_ = false;
}

absl::Status CallPatiently(Patience& patience, absl::Duration limit,
                           absl::FunctionRef<bool()> stopped,
                           absl::FunctionRef<grpc::Status(grpc::ClientContext&)> attempt) {
  absl::Status unreachable;  // the last UNAVAILABLE, while nothing else was heard
  for (;;) {
    grpc::ClientContext context;
    // Nobody was there: wait on the connection itself, which notices at once when
    // that changes. What ends such a wait says less than what began it.
    const bool connecting = absl::IsUnavailable(unreachable);
    context.set_wait_for_ready(connecting);
    context.set_deadline(std::chrono::system_clock::now() +
                         absl::ToChronoNanoseconds(std::min(
                             limit, connecting ? kConnectionWait : kSmallCallDeadline)));
    absl::Status status = FromGrpc(attempt(context));
    if (connecting && absl::IsDeadlineExceeded(status)) {
      status = std::exchange(unreachable, absl::OkStatus());
    } else {
      unreachable = absl::IsUnavailable(status) ? status : absl::OkStatus();
    }
    if (status.ok()) {
      patience.Succeeded();
      return status;
    }
    if (!IsTransient(status.code())) return AtServer(patience.server(), status);
    const auto wait = patience.Failed(status, SteadyTime::Now());
    if (!wait.ok()) return wait.status();
    for (SteadyTime end = SteadyTime::Now() + *wait;;) {
      if (stopped()) {
        return absl::CancelledError(
            absl::StrCat("interrupted while waiting for ", patience.server()));
      }
      const absl::Duration left = end - SteadyTime::Now();
      if (left <= absl::ZeroDuration()) break;
      absl::SleepFor(std::min(left, kStopCheckEvery));
    }
  }
}

absl::Status AtServer(const std::string& server, const absl::Status& failure) {
  return absl::Status(failure.code(), absl::StrCat(server, ": ", failure.message()));
}

}  // namespace foreshard
