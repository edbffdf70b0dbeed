#include "tools/state/replay.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/core/bytes.h"
#include "server/available_memory.h"
#include "server/job_machines.h"

namespace foreshard {

absl::StatusOr<std::unique_ptr<ShardMachines>> ShardMachines::Create(const StoredRun& run, uint32_t shard) {
  std::unique_ptr<ShardMachines> made(new ShardMachines(run));
  uint64_t needed = 0;
  for (const uint32_t id : run.plan.SegmentsOfShard(shard)) {
    const SegmentOptions& options =
        made->options_
            .emplace(id, MakeSegmentOptions(run.job, run.plan.segments()[id], run.batches_per_epoch))
            .first->second;
    needed += Segment::MemoryBytes(options);
  }
  if (const uint64_t available = AvailableMemoryBytes(); needed > available) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "shard %d needs %d MiB of memory and %d MiB are available; do it on a larger machine, or give one "
        "shard at a time", shard, needed >> 20, available >> 20));
  }
  uint64_t reply_bytes = 0;
  for (const auto& [id, options] : made->options_) {
    auto segment = Segment::Create(options);
    if (!segment.ok()) return segment.status();
    reply_bytes = std::max(reply_bytes, (*segment)->max_reply_bytes());
    made->segments_.push_back(*std::move(segment));
  }
  made->reply_.resize(reply_bytes);
  if (shard == 0) {
    const DealerOptions options = MakeDealerOptions(run.job, run.batches_per_epoch);
    if (absl::Status good = Dealer::Check(options); !good.ok()) return good;
    made->dealer_ = std::make_unique<Dealer>(options);
    made->slots_ = LeadSlots(run.job.training().max_workers());
  }
  return made;
}

void ShardMachines::WatchAt(std::map<uint32_t, uint64_t> numbers,
                            std::function<absl::Status(uint32_t, const std::string&)> reached) {
  watched_ = std::move(numbers);
  reached_ = std::move(reached);
}

absl::Status ShardMachines::Pass(uint32_t machine) {
  watched_.erase(machine);
  return reached_(machine, Save(machine));
}

absl::Status ShardMachines::FinishWatch(uint64_t last) {
  const std::map<uint32_t, uint64_t> left = watched_;
  for (const auto& [machine, number] : left) {
    if (number > last) continue;
    if (absl::Status passed = Pass(machine); !passed.ok()) return passed;
  }
  return absl::OkStatus();
}

std::vector<uint32_t> ShardMachines::machines() const {
  std::vector<uint32_t> ids;
  for (const auto& segment : segments_) ids.push_back(segment->plan().id);
  if (dealer_ != nullptr) ids.push_back(kDealerSegment);
  return ids;
}

void ShardMachines::Begin(const CheckpointManifest& checkpoint) { lead_ = LeadStateOf(checkpoint); }

v1::LeadState ShardMachines::lead() const {
  v1::LeadState state = lead_.ok() ? *lead_ : v1::LeadState();
  slots_.Save(&state);
  return state;
}

absl::Status ShardMachines::Load(uint32_t machine, const std::string& saved) {
  if (machine == kDealerSegment) {
    if (dealer_ == nullptr) return absl::InvalidArgumentError("a dealer's state, and this shard has no dealer");
    if (!lead_.ok()) return lead_.status();
    if (absl::Status loaded = slots_.Load(*lead_); !loaded.ok()) return loaded;
    return dealer_->Load(saved);
  }
  Segment* const segment = Find(machine);
  if (segment == nullptr) return absl::InvalidArgumentError("a segment of another shard");
  return segment->Load(saved);
}

absl::Status ShardMachines::Replay(const Event& event) {
  if (const auto watched = watched_.find(event.segment);
      watched != watched_.end() && event.number > watched->second) {
    if (absl::Status passed = Pass(event.segment); !passed.ok()) return passed;
  }
  Effect effect = {.kind = event.kind};
  if (event.segment == kDealerSegment) {
    if (dealer_ == nullptr) return absl::InvalidArgumentError("an event of the dealer, and this shard has none");
    absl::StatusOr<Deal> deal = slots_.Replay(event, run_.job, run_.train_examples, dealer_.get());
    if (!deal.ok()) return deal.status();
    effect.deal = *std::move(deal);
    effect.dealer = dealer_.get();
  } else {
    Segment* const segment = Find(event.segment);
    if (segment == nullptr) return absl::InvalidArgumentError("an event of a segment of another shard");
    // As Segment::Replay, and the outcome is kept.
    Event admitted = event;
    if (absl::Status status = segment->CheckPayload(event); !status.ok()) return status;
    if (absl::Status status = segment->Admit(&admitted); !status.ok()) return status;
    Reply reply = {.data = reply_.data()};
    effect.outcome = segment->Apply(admitted, &reply);
    effect.kind = admitted.kind;
    effect.segment = segment;
  }
  if (observer_) observer_(event, effect);
  return absl::OkStatus();
}

std::vector<uint32_t> ShardMachines::CompleteRounds() const {
  std::vector<uint32_t> ids;
  for (const auto& segment : segments_) {
    if (options(segment->plan().id).synchronous && segment->RoundComplete()) ids.push_back(segment->plan().id);
  }
  return ids;
}

std::vector<uint32_t> ShardMachines::CloseCompleteRounds() {
  const std::vector<uint32_t> ids = CompleteRounds();
  for (const uint32_t id : ids) {
    Segment& segment = *Find(id);
    segment.Apply({.kind = EventKind::kRoundClosed, .segment = id, .argument = segment.open_round()}, nullptr);
  }
  return ids;
}

Segment* ShardMachines::Find(uint32_t id) const {
  if (segments_.empty() || id < segments_.front()->plan().id) return nullptr;
  const uint64_t index = uint64_t{id} - segments_.front()->plan().id;
  return index < segments_.size() ? segments_[index].get() : nullptr;
}

std::string ShardMachines::Save(uint32_t machine) const {
  return machine == kDealerSegment ? dealer_->Save() : Find(machine)->Save();
}

absl::StatusOr<std::vector<std::unique_ptr<ShardMachines>>> ReplayRun(const StoredRun& run, WorkWatch* watch) {
  std::vector<std::unique_ptr<ShardMachines>> all;
  for (const StateDirectory& shard : run.shards) {
    auto machines = ShardMachines::Create(run, shard.shard);
    if (!machines.ok()) return machines.status();
    RecoveryOptions options;
    options.proceed = [&](const Event& event, uint64_t) {
      return watch->Proceed(absl::StrCat(shard.folder, ": replaying, event"), event.number);
    };
    const auto recovered = Recover(*shard.storage, shard.identity, machines->get(), options);
    if (!recovered.ok()) return recovered.status();
    all.push_back(*std::move(machines));
  }
  return all;
}

std::string Difference(const ShardMachines& machines, uint32_t machine, const std::string& state,
                       const std::string& expected) {
  if (state == expected) return "";
  if (machine == kDealerSegment) return "the dealer's state is another";
  const SegmentOptions& options = machines.options(machine);
  std::unique_ptr<Segment> segments[2];
  for (int k = 0; k < 2; ++k) {
    auto segment = Segment::Create(options);
    if (!segment.ok()) return std::string(segment.status().message());
    if (absl::Status loaded = (*segment)->Load(k == 0 ? state : expected); !loaded.ok()) {
      return absl::StrCat(k == 0 ? "replayed: " : "checkpoint: ", loaded.message());
    }
    segments[k] = *std::move(segment);
  }
  const auto replayed = segments[0]->theta(), wanted = segments[1]->theta();
  for (size_t k = 0; k < replayed.size(); ++k) {
    if (std::memcmp(&replayed[k], &wanted[k], sizeof(float)) == 0) continue;
    return absl::StrFormat("element %d (%d of the model's vector) is %.9g after replay, and %.9g in the checkpoint",
                           k, options.plan.begin + k, replayed[k], wanted[k]);
  }
  return "the parameters are the same, the rest of the state (momentum, workers' slots) is not";
}

uint64_t ParametersChecksum(const Segment& segment) {
  return Checksum(ByteSpan(reinterpret_cast<const uint8_t*>(segment.theta().data()),
                           segment.theta().size() * sizeof(float)));
}

}  // namespace foreshard
