// Segment at steps of the learning rate, for rules with a worker half: shares of
// momentum that workers bring, and what must wait for them (server/README.md).
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/core/catalogue.h"
#include "server/segment.h"

namespace foreshard {

bool Segment::MomentumAtWorkers() const {
  const RuleTraits* traits = FindRule(options_.rule.rule);
  return options_.plan.kind == TensorKind::kTrainable && traits != nullptr && traits->worker_half;
}

absl::Status Segment::AdmitAtStep(const Event& event) const {
  const auto refused = [&](const auto&... what) {
    return absl::StrCat("segment ", options_.plan.id, ", worker ", event.worker, ": ", what...);
  };
  const Slot& slot = slots_[event.worker];
  const bool has_share = slot.has_share && slot.incarnation == event.incarnation;
  if (event.kind == EventKind::kLearningRateRepair) {
    if (!MomentumAtWorkers()) {
      return absl::InvalidArgumentError(
          refused("rule '", options_.rule.rule,
                  "' keeps no momentum of this segment at workers; there is nothing to repair"));
    }
    if (!std::binary_search(steps_.begin(), steps_.end(), event.ticket)) {
      return absl::InvalidArgumentError(
          refused("the learning rate does not jump at ticket ", event.ticket, ", but at ",
                  steps_.empty() ? "none" : absl::StrJoin(steps_, ", ")));
    }
    if (event.payload.bytes == 0 && has_share && slot.share_ticket < event.ticket) {
      return absl::FailedPreconditionError(
          refused("its momentum is needed at the learning rate's step at ticket ", event.ticket));
    }
    return absl::OkStatus();
  }
  if (steps_.empty()) return absl::OkStatus();
  const uint64_t clock = std::max(clock_, event.ticket);
  const uint64_t step = NewestStep(steps_, clock);
  if (step > clock_) {
    std::vector<uint32_t> missing = MissingShares(step);
    if (missing.empty() && has_share && slot.share_ticket < step) missing.push_back(event.worker);
    if (!missing.empty()) {
      return absl::FailedPreconditionError(refused(
          "ticket ", event.ticket, " lies beyond the learning rate's step at ticket ", step,
          ", for which the momentum of workers ", absl::StrJoin(missing, ", "),
          " is missing: send REPAIR first, until it is answered with CURRENT"));
    }
  }
  if (event.kind == EventKind::kPush && has_share && slot.share_ticket > clock) {
    return absl::FailedPreconditionError(
        refused("has brought its momentum for the learning rate's step at ticket ", slot.share_ticket,
                " and must wait until REPAIR is answered with CURRENT"));
  }
  return absl::OkStatus();
}

std::vector<uint32_t> Segment::MissingShares(uint64_t step) const {
  std::vector<uint32_t> missing;
  for (uint32_t worker = 0; worker < slots_.size(); ++worker) {
    const Slot& slot = slots_[worker];
    if (slot.joined && slot.has_share && slot.share_ticket < step) missing.push_back(worker);
  }
  return missing;
}

uint64_t Segment::RepairUnderWay() const {
  uint64_t step = 0;
  for (const Slot& slot : slots_) {
    if (slot.joined && slot.has_share && slot.share_ticket > clock_) step = std::max(step, slot.share_ticket);
  }
  return step;
}

Outcome Segment::Repair(const Event& event, Reply* reply) {
  Slot& slot = JoinSlot(event);
  ApplyShare(event, &slot);
  if (event.ticket > clock_ && !MissingShares(event.ticket).empty()) return State(Result::kPending);
  clock_ = std::max(clock_, event.ticket);
  WriteParameters({.worker = event.worker, .eta = Eta(), .version = version_}, ReadMode::kSlot,
                  ReplyCodec(event, slot), &slot, reply);
  return State(Result::kCurrent);
}

// Linear in v, so that shares are applied as they come; a second one finds its own rate.
void Segment::ApplyShare(const Event& event, Slot* slot) {
  if (!slot->has_share || slot->share_ticket >= event.ticket) return;
  const Schedule& schedule = options_.schedule;
  const float factor =
      (schedule.At(event.ticket) - schedule.At(slot->share_ticket)) * options_.rule.momentum;
  slot->share_ticket = event.ticket;
  PayloadReader reader(event.payload);
  const Codec& plain = *FindCodec(CodecId::kNone);
  alignas(64) uint8_t straddle[kMaxBlockElements * sizeof(float)];
  alignas(64) float scratch[kMaxBlockElements];
  for (const Block& block : options_.plan.blocks) {
    const uint8_t* bytes = reader.Next(block.elements * sizeof(float), straddle);
    const float* momentum = plain.DecodeBlock(bytes, block.elements, {}, scratch);
    float* theta = theta_.data() + block.offset;
    for (uint32_t k = 0; k < block.elements; ++k) theta[k] -= factor * momentum[k];
  }
}

}  // namespace foreshard
