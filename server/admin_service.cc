#include "server/admin_service.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/net/wire_limits.h"
#include "glog/logging.h"
#include "server/durability.h"
#include "server/monotonic_time.h"
#include "server/typed_call.h"

namespace foreshard {

grpc::ServerUnaryReactor* AdminService::GetStatus(grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer* message, grpc::ByteBuffer* out) {
  return ServeTyped<v1::StatusRequest, v1::StatusReply>(
      context_.buffers, context, message, out, Turn::kAtOnce, [this](const auto& call) {
        FillStatus(&call->reply);
        call->Finish(absl::OkStatus());
      });
}

grpc::ServerUnaryReactor* AdminService::Stop(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* message, grpc::ByteBuffer* out) {
  return ServeTyped<v1::StopRequest, v1::StopReply>(
      context_.buffers, context, message, out, Turn::kAtOnce, [this](const auto& call) {
        const v1::StopRequest& request = call->request;
        if (absl::Status status = CheckLimits(request); !status.ok()) return call->Finish(status);
        const std::string reason = request.reason().empty() ? "asked to stop" : request.reason();
        LOG(INFO) << "stop" << (request.exit_process() ? " and exit" : "") << ": " << reason;
        if (lead_ != nullptr) lead_->Stop(reason);
        call->Finish(absl::OkStatus());
        if (request.exit_process() && exit_) exit_();
      });
}

grpc::ServerUnaryReactor* AdminService::Checkpoint(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* message, grpc::ByteBuffer* out) {
  return ServeTyped<v1::CheckpointRequest, v1::CheckpointReply>(
      context_.buffers, context, message, out, Turn::kLater, [this](const auto& call) {
        if (context_.durability == nullptr) {
          return call->Finish(absl::FailedPreconditionError(
              "this server keeps nothing: start it with --state-directory"));
        }
        context_.durability->RequestCheckpoint([call](const absl::StatusOr<Durability::Written>& written) {
          if (written.ok()) {
            call->reply.set_path(written->path);
            call->reply.set_step(written->step);
            call->reply.set_epoch(written->epoch);
            call->reply.set_bytes(written->bytes);
            call->reply.set_seconds(written->seconds);
            call->reply.set_longest_hold_seconds(written->longest_hold_seconds);
          }
          call->Finish(written.status());
        });
      });
}

void AdminService::set_metrics_address(const std::string& address) {
  absl::MutexLock lock(&mutex_);
  metrics_address_ = address;
}

void AdminService::FillStatus(v1::StatusReply* reply) const {
  reply->set_job_name(context_.job.name());
  reply->set_rule(context_.job.update().rule());
  reply->set_shard(context_.shard.index());
  reply->set_shards(context_.job.servers().shards());
  reply->set_protocol(context_.shard.speaks().newest);
  reply->set_oldest_protocol(context_.shard.speaks().oldest);
  reply->set_server_incarnation(context_.incarnation);
  reply->set_uptime_seconds(SecondsBetween(context_.started, MonotonicNanoseconds()));
  {
    absl::MutexLock lock(&mutex_);
    reply->set_metrics_address(metrics_address_);
  }
  if (context_.durability != nullptr) context_.durability->FillStatus(reply);
  context_.figures.FillStatus(reply);
  if (const Shard::Agreement* agreed = context_.shard.agreement(); agreed != nullptr) {
    reply->set_train_examples(agreed->train_examples);
    reply->set_shard_imbalance(agreed->plan.imbalance());
  }
  reply->set_server_error_ratio(context_.shard.ErrorRatio());
  FillSegments(reply);
  FillWorkers(reply);
  if (lead_ != nullptr) lead_->FillStatus(reply);
  FillState(reply);
}

void AdminService::FillSegments(v1::StatusReply* reply) const {
  const Shard::Agreement* agreed = context_.shard.agreement();
  if (agreed == nullptr) return;
  for (const auto& cell : agreed->cells) {
    v1::SegmentStatus& status = *reply->add_segments();
    status.set_segment(cell->plan->id);
    status.set_elements(cell->plan->elements);
    status.set_statistic(!cell->trainable);
    absl::MutexLock lock(&cell->mutex);
    status.set_version(cell->segment->version());
    status.set_clock(cell->segment->clock());
    status.set_initialised(cell->segment->initialised());
    if (cell->synchronous && reply->round_members() == 0) {
      reply->set_round(cell->segment->open_round());
      reply->set_round_members(cell->segment->round_members());
      reply->set_compressed_phase(cell->segment->phase() == Phase::kFrozen);
    }
    const Shard::Measures& measures = cell->measures;
    status.set_pushes(measures.pushes);
    status.set_pushes_stale(measures.stale);
    status.set_staleness_max(measures.lag_max);
    if (measures.pushes > 0) {
      status.set_staleness_mean(static_cast<double>(measures.lag_sum) /
                                static_cast<double>(measures.pushes));
    }
    if (measures.gap_count > 0) {
      status.set_gap_mean(measures.gap_sum / static_cast<double>(measures.gap_count));
      status.set_surprise_mean(measures.surprise_sum / static_cast<double>(measures.gap_count));
    }
  }
}

void AdminService::FillWorkers(v1::StatusReply* reply) const {
  for (const Membership::Member& member : context_.members.Members()) {
    *reply->add_workers() = context_.Describe(member);
  }
}

void AdminService::FillState(v1::StatusReply* reply) const {
  const uint64_t missing = std::count_if(
      reply->segments().begin(), reply->segments().end(),
      [](const v1::SegmentStatus& segment) { return !segment.initialised(); });
  std::vector<std::string> training;
  for (const v1::WorkerStatus& worker : reply->workers()) {
    if (worker.state() == "training") {
      training.push_back(absl::StrCat(worker.worker(), " ('", worker.name(), "')"));
    }
  }
  if (context_.stopping) {
    reply->set_state("stopping");
  } else if (reply->finished()) {
    reply->set_state("finished");
    if (!training.empty()) {
      reply->set_waiting_for(absl::StrCat("workers to leave: ", absl::StrJoin(training, ", ")));
    }
  } else if (context_.shard.agreement() == nullptr) {
    reply->set_state("waiting for schema");
    reply->set_waiting_for("the first worker to say Hello and bring the model's schema");
  } else if (missing > 0) {
    reply->set_state("initialising");
    reply->set_waiting_for(absl::StrCat("first values of ", missing, " of ",
                                        reply->segments_size(), " segments from a worker"));
  } else {
    reply->set_state("training");
    if (training.empty()) {
      reply->set_waiting_for("a worker: none is training");
    } else {
      reply->set_waiting_for(MissingContribution());
    }
  }
}

std::string AdminService::MissingShares() const {
  for (const auto& cell : context_.shard.agreement()->cells) {
    absl::MutexLock lock(&cell->mutex);
    const uint64_t step = cell->segment->RepairUnderWay();
    const std::vector<uint32_t> missing = cell->segment->MissingShares(step);
    if (missing.empty()) continue;
    return absl::StrCat("the momentum of workers ", absl::StrJoin(missing, ", "),
                        ", for the learning rate's step at ticket ", step, " (segment ",
                        cell->plan->id, "): each brings it when its batch is done");
  }
  return "";
}

std::string AdminService::MissingContribution() const {
  if (!context_.shard.synchronous()) return MissingShares();
  for (const auto& cell : context_.shard.agreement()->cells) {
    absl::MutexLock lock(&cell->mutex);
    if (!cell->synchronous) continue;
    const std::vector<uint32_t> missing = cell->segment->MissingMembers();
    // Before anybody has pushed, nobody waits.
    if (missing.size() == cell->segment->round_members()) continue;
    if (missing.empty()) {
      return absl::StrCat("round ", cell->segment->open_round(), " of segment ", cell->plan->id,
                          ": members, which the lead has to name: all that it had have gone");
    }
    return absl::StrCat("round ", cell->segment->open_round(), " of segment ", cell->plan->id,
                        ": pushes of workers ", absl::StrJoin(missing, ", "));
  }
  return "";
}

}  // namespace foreshard
