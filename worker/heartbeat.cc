#include "worker/heartbeat.h"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "common/net/exchange_message.h"
#include "common/net/pending_calls.h"
#include "foreshard/v1/exchange.grpc.pb.h"
#include "glog/logging.h"
#include "worker/patience.h"

namespace foreshard {

Heartbeat::Heartbeat(const Options& options)
    : options_(options), interval_(absl::Seconds(options.lease_seconds) / 3) {
  thread_ = std::thread([this] { Run(); });
}

Heartbeat::~Heartbeat() { End(false); }

void Heartbeat::End(bool leave) {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  if (!thread_.joinable()) return;
  thread_.join();
  if (leave) Beat(true);
}

absl::Status Heartbeat::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

void Heartbeat::Run() {
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&closing_), interval_)) return;
    }
    Beat(false);
  }
}

// All servers at once: one that hangs must not cost the leases on the others.
void Heartbeat::Beat(bool leaving) {
  struct Call {
    grpc::ClientContext context;
    v1::HeartbeatReply reply;
    absl::Status status;
  };
  v1::HeartbeatRequest request;
  request.set_worker(options_.worker);
  request.set_incarnation(options_.incarnation);
  request.set_leaving(leaving);
  std::vector<std::unique_ptr<v1::ParameterServer::Stub>> stubs;
  std::vector<std::unique_ptr<Call>> calls;
  const auto pending = std::make_shared<PendingCalls>(options_.channels.size());
  for (const auto& channel : options_.channels) {
    stubs.push_back(v1::ParameterServer::NewStub(channel));
    calls.push_back(std::make_unique<Call>());
    Call* call = calls.back().get();
    call->context.set_deadline(std::chrono::system_clock::now() +
                               absl::ToChronoNanoseconds(interval_));
    stubs.back()->async()->Heartbeat(&call->context, &request, &call->reply,
                                     [call, pending](const grpc::Status& status) {
                                       pending->Done([&] { call->status = FromGrpc(status); });
                                     });
  }
  pending->Wait();
  for (size_t shard = 0; shard < calls.size(); ++shard) {
    const absl::Status& status = calls[shard]->status;
    if (status.ok() || IsTransient(status.code())) continue;
    const std::string server = ServerName(shard, options_.addresses[shard]);
    absl::MutexLock lock(&mutex_);
    if (status.code() == absl::StatusCode::kAborted) {
      status_ = AtServer(server, status);
    } else {
      LOG_EVERY_N(WARNING, 10) << server << " does not take the heartbeat: " << status.message();
    }
  }
}

}  // namespace foreshard
