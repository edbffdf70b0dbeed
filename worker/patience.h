// How long a program puts up with a server that does not answer: bounded
// exponential back-off, a visible line, and an error that names the server.
//
//   Patience patience("server 1 at 10.0.0.7:7000", absl::Seconds(60));
//   absl::StatusOr<absl::Duration> wait = patience.Failed(status, SteadyTime::Now());
//   if (!wait.ok()) return wait.status();   // the bound is over
//   absl::SleepFor(*wait);                  // then try again
#pragma once

#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/core/steady_time.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"

namespace foreshard {

inline constexpr absl::Duration kFirstBackoff = absl::Milliseconds(20);
inline constexpr absl::Duration kLongestBackoff = absl::Seconds(1);

// Failures that another attempt may cure: UNAVAILABLE, DEADLINE_EXCEEDED,
// RESOURCE_EXHAUSTED, CANCELLED (a server that shuts down cancels its calls).
bool IsTransient(absl::StatusCode code);

// "server 1 at 127.0.0.1:7001": how every message names a server.
std::string ServerName(size_t shard, const std::string& address);

// Thread-compatible; reads no clock of its own.
class Patience {
 public:
  // `explain` looks why a server is UNAVAILABLE (Credentials::Explainer), whenever that is said;
  // it may take seconds and find nothing (""). Null: nobody looks.
  Patience(std::string server, absl::Duration limit, std::function<std::string()> explain = nullptr)
      : server_(std::move(server)), limit_(limit), explain_(std::move(explain)) {}

  // Notes a transient failure and says how long to wait before the next attempt.
  // UNAVAILABLE, naming the server, once nothing has succeeded for `limit`.
  absl::StatusOr<absl::Duration> Failed(const absl::Status& failure, SteadyTime now);
  void Succeeded();

  // True between a failure and the next success.
  bool waiting() const { return failing_; }
  const std::string& server() const { return server_; }

 private:
  // ": why", or what else to say.
  std::string Explained(const absl::Status& failure, absl::string_view otherwise) const;

  std::string server_;
  absl::Duration limit_;
  std::function<std::string()> explain_;
  absl::Duration backoff_ = kFirstBackoff;
  bool failing_ = false;
  bool announced_ = false;
  SteadyTime first_failure_;
  SteadyTime next_line_;
};

// Calls `attempt` with a fresh context (deadline: 10 s or what is left of the
// bound) until it succeeds, fails for good, or patience ends. CANCELLED once
// `stopped` says so while it waits. For small blocking calls.
absl::Status CallPatiently(Patience& patience, absl::Duration limit,
                           absl::FunctionRef<bool()> stopped,
                           absl::FunctionRef<grpc::Status(grpc::ClientContext&)> attempt);

// `failure` with the server's name in front of its text, code kept.
absl::Status AtServer(const std::string& server, const absl::Status& failure);

}  // namespace foreshard
