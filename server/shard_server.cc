#include "server/shard_server.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/net/channel.h"
#include "common/net/job_parts.h"
#include "common/net/live_page.h"
#include "common/net/metrics.h"
#include "glog/logging.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "server/admin_service.h"
#include "server/durability.h"
#include "server/health_port.h"
#include "server/lead.h"
#include "server/lead_service.h"
#include "server/listener.h"
#include "server/monotonic_time.h"
#include "server/parameter_service.h"

namespace foreshard {
namespace {

constexpr std::chrono::seconds kShutdownDeadline{10};
// What a message may have beside its numbers: its header, or the tensors of a schema.
constexpr uint64_t kHeaderRoomBytes = 2 << 20;
// Beside servers.inflight_bytes, which counts whole messages.
constexpr uint64_t kPartialMessageBytes = 32 << 20;
constexpr int kMostReflectionThreads = 16;
constexpr absl::Duration kLongestTick = absl::Seconds(1);
// At least so many callers can wait for the disk at once, to share a sync.
constexpr uint32_t kSyncingThreads = 16;

// Connections and files that are open at most, so that connections cannot use up the memory.
constexpr uint32_t kFilesBesideWorkers = 1024, kFilesPerWorker = 16;

absl::Status CannotListen(const std::string& address, const absl::Status& why) {
  return absl::Status(why.code(),
                      absl::StrCat("cannot listen on ", address, " (", why.message(),
                                   "): is the port taken, or the address not of this machine? Choose another "
                                   "one, or port 0 for any that is free"));
}

uint32_t ApplyThreadsFor(const ShardServerOptions& options, const Durability* durability) {
  if (durability == nullptr || !durability->slow()) return options.apply_threads;
  return std::max({options.apply_threads, kSyncingThreads, std::thread::hardware_concurrency()});
}

class GrpcShardServer final : public ShardServer {
 public:
  GrpcShardServer(const ShardServerOptions& options, std::unique_ptr<Durability> durability)
      : durability_(std::move(durability)),
        context_(options.job, options.shard, durability_ == nullptr ? options.events : durability_.get(),
                 ApplyThreadsFor(options, durability_.get()),
                 durability_ == nullptr ? 1 : durability_->least_incarnation(), options.speaks),
        lead_(options.shard == 0 ? std::make_unique<Lead>(context_) : nullptr),
        parameters_(context_, lead_.get()),
        leading_(context_, lead_.get()),
        admin_(context_, lead_.get(), options.exit_requested) {
    context_.durability = durability_.get();
  }

  ~GrpcShardServer() override { Shutdown().IgnoreError(); }

  absl::Status Restore() {
    return durability_ == nullptr ? absl::OkStatus() : durability_->Begin(&context_, lead_.get());
  }

  absl::Status Listen(const ShardServerOptions& options) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    // No message is larger than a segment in fp32 with its header, or a Hello.
    ConfigureServer(builder, static_cast<int>(std::min<uint64_t>(
                                 uint64_t{context_.job.servers().segment_elements()} * sizeof(float) +
                                     kHeaderRoomBytes,
                                 kMaxMessageBytes)));
    // What has arrived of messages that are not whole yet is gRPC's. Beyond this it reads less, and
    // in the end gives up calls.
    grpc::ResourceQuota quota("foreshard-server");
    quota.Resize(context_.job.servers().inflight_bytes() + kPartialMessageBytes);
    // Of gRPC's own services, reflection takes a thread for every call.
    quota.SetMaxThreads(kMostReflectionThreads);
    builder.SetResourceQuota(quota);
    auto listener = Listener::Bind(options.listen);
    if (!listener.ok()) return CannotListen(options.listen, listener.status());
    listener_ = *std::move(listener);
    listener_->AddTo(builder, options.credentials.Server());
    builder.RegisterService(&parameters_);
    builder.RegisterService(&leading_);
    builder.RegisterService(&admin_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return CannotListen(options.listen, absl::InternalError("gRPC makes no server"));
    listener_->Start(kFilesBesideWorkers + kFilesPerWorker * context_.job.training().max_workers());
    address_ = WithPort(options.listen, listener_->port());
    ServerMetrics& figures = context_.figures.metrics();
    figures.inflight_limit_bytes->Set(static_cast<double>(context_.job.servers().inflight_bytes()));
    figures.shards->Set(context_.job.servers().shards());
    if (!options.metrics_listen.empty()) {
      auto metrics = MetricsEndpoint::Start(
          options.metrics_listen, context_.figures.metrics().registry,
          LivePages([this] { return LiveJson({.role = "server"}, {address_}, {status()}); }));
      if (!metrics.ok()) return metrics.status();
      metrics_ = *std::move(metrics);
      metrics_address_ = metrics_->address();
      admin_.set_metrics_address(metrics_address_);
    }
    if (!options.health_listen.empty()) {
      auto health = HealthPort::Start(options.health_listen);
      if (!health.ok()) return health.status();
      health_ = *std::move(health);
      health_address_ = health_->address();
    }
    // The server as a whole, and each service by its name.
    server_->GetHealthCheckService()->SetServingStatus(true);
    for (const char* service : {v1::ParameterServer::service_full_name(), v1::Lead::service_full_name(),
                                v1::Admin::service_full_name()}) {
      server_->GetHealthCheckService()->SetServingStatus(service, true);
    }
    if (health_ != nullptr) health_->SetServing(true);
    sweeper_ = std::thread([this] { Sweep(); });
    return absl::OkStatus();
  }

  const std::string& address() const override { return address_; }
  const std::string& metrics_address() const override { return metrics_address_; }
  const std::string& health_address() const override { return health_address_; }
  v1::StatusReply status() const override {
    v1::StatusReply reply;
    admin_.FillStatus(&reply);
    return reply;
  }
  uint64_t reply_allocations() const override { return context_.buffers.allocations(); }

  std::vector<std::string> SaveSegments() const override {
    std::vector<std::string> saved;
    if (const Shard::Agreement* agreed = context_.shard.agreement(); agreed != nullptr) {
      for (const auto& cell : agreed->cells) {
        absl::MutexLock lock(&cell->mutex);
        saved.push_back(cell->segment->Save());
      }
    }
    return saved;
  }

  absl::Status Shutdown() override {
    {
      absl::MutexLock lock(&mutex_);
      if (closing_) return absl::OkStatus();
      closing_ = true;
    }
    if (server_ != nullptr) server_->GetHealthCheckService()->SetServingStatus(false);
    if (health_ != nullptr) health_->SetServing(false);
    context_.stopping = true;
    if (sweeper_.joinable()) sweeper_.join();
    parameters_.AnswerWaiters(true, "");
    if (listener_ != nullptr) listener_->Stop();
    if (server_ != nullptr) {
      server_->Shutdown(std::chrono::system_clock::now() + kShutdownDeadline);
      server_->Wait();
    }
    // Nobody changes anything any more.
    return durability_ == nullptr ? absl::OkStatus() : durability_->Finish();
  }

 private:
  // Leases, waits that are over, and rates: all that happens by the clock.
  void Sweep() {
    const float lease = context_.job.timeouts().lease_seconds();
    absl::Duration tick = std::min(kLongestTick, absl::Seconds(lease / 4));
    if (const float straggler = context_.job.training().straggler_seconds(); straggler > 0) {
      tick = std::min(tick, absl::Seconds(straggler / 4));
    }
    int64_t last = MonotonicNanoseconds();
    for (;;) {
      {
        absl::MutexLock lock(&mutex_);
        if (mutex_.AwaitWithTimeout(absl::Condition(&closing_), tick)) return;
      }
      const int64_t now = MonotonicNanoseconds();
      ExpireSilent(now);
      parameters_.CloseWithoutStragglers(now);
      context_.figures.UpdateRates(SecondsBetween(std::exchange(last, now), now));
      ServerMetrics& metrics = context_.figures.metrics();
      using State = Membership::State;
      metrics.workers_training->Set(context_.members.Count(State::kTraining));
      metrics.workers_left->Set(context_.members.Count(State::kLeft));
      metrics.workers_expired->Set(context_.members.Count(State::kExpired));
      metrics.job_finished->Set(lead_ != nullptr && lead_->finished() ? 1 : 0);
      metrics.inflight_bytes->Set(static_cast<double>(context_.buffers.used_bytes()));
      metrics.server_error_ratio->Set(context_.shard.ErrorRatio());
      if (durability_ != nullptr) durability_->UpdateMetrics(&metrics);
      const std::string lost = LostMember(now);
      if (!lost.empty() && lead_ != nullptr) lead_->Stop(lost);
      parameters_.AnswerWaiters(false, lost);
    }
  }

  void ExpireSilent(int64_t now) {
    for (const Membership::Member& member : context_.members.ExpireSilent(now)) {
      LOG(WARNING) << "worker " << member.worker << " ('" << member.name
                   << "') has been silent for " << SecondsBetween(member.last_seen, now)
                   << " s: its lease is over";
      if (lead_ != nullptr) lead_->NoteLost(member.worker, member.incarnation);
      context_.Release(EventKind::kExpire, member.worker, member.incarnation);
    }
  }

  // Elastic averaging in rounds has a fixed view: where a member stays away for two leases,
  // no round can close any more. Says which; "" for none.
  std::string LostMember(int64_t now) const {
    if (!context_.shard.synchronous() || HasViews(context_.job)) return "";
    const double lease = context_.job.timeouts().lease_seconds();
    for (const Membership::Member& member : context_.members.Members()) {
      const double silent = SecondsBetween(member.last_seen, now);
      if (member.state != Membership::State::kTraining && silent > 2 * lease) {
        return absl::StrCat(
            "worker ", member.worker, " ('", member.name, "') ",
            member.state == Membership::State::kLeft ? "has left" : "was lost",
            ": nothing heard from it for more than ", 2 * lease, " s, and the synchronous rule ",
            context_.job.update().rule(), " needs all of its ", context_.job.training().workers(),
            " workers");
      }
    }
    return "";
  }

  const std::unique_ptr<Durability> durability_;
  ServerContext context_;
  std::unique_ptr<Lead> lead_;
  ParameterService parameters_;
  LeadService leading_;
  AdminService admin_;
  std::unique_ptr<MetricsEndpoint> metrics_;
  std::unique_ptr<HealthPort> health_;
  std::string address_, metrics_address_, health_address_;
  absl::Mutex mutex_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread sweeper_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<grpc::Server> server_;  // ends before the services
};

}  // namespace

absl::StatusOr<std::unique_ptr<ShardServer>> ShardServer::Start(
    const ShardServerOptions& options) {
  if (options.shard >= options.job.servers().shards()) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard ", options.shard, ": the job has ", options.job.servers().shards(),
                     " (servers.shards), counted from 0"));
  }
  if (absl::Status status = options.credentials.CheckListen(options.listen); !status.ok()) {
    return status;
  }
  if (!options.metrics_listen.empty()) {
    if (absl::Status status = CheckBindAddress(options.metrics_listen, options.credentials.insecure());
        !status.ok()) {
      return status;
    }
  }
  std::unique_ptr<Durability> durability;
  if (!options.state_directory.empty()) {
    auto opened = Durability::Open({.folder = options.state_directory,
                                    .shard = options.shard,
                                    .also = options.events,
                                    .failed = options.failed},
                                   options.job);
    if (!opened.ok()) return opened.status();
    durability = *std::move(opened);
  }
  auto server = std::make_unique<GrpcShardServer>(options, std::move(durability));
  if (absl::Status status = server->Restore(); !status.ok()) return status;
  if (absl::Status status = server->Listen(options); !status.ok()) return status;
  return std::unique_ptr<ShardServer>(std::move(server));
}

}  // namespace foreshard
