#include "server/segment.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/core/catalogue.h"
#include "kernels/cpu/vector_math.h"
#include "server/segment_scratch.h"

namespace foreshard {
namespace {

const Codec& PlainCodec() {
  static const Codec* const codec = FindCodec(CodecId::kNone);
  return *codec;
}

RuleSettings EffectiveRule(const SegmentOptions& options) {
  RuleSettings rule = options.rule;
  if (options.plan.kind == TensorKind::kStatistic) rule.rule = "statistics_average";
  rule.workers = options.schedule.workers;
  rule.peak_eta = static_cast<float>(options.schedule.learning_rate);
  return rule;
}

uint64_t HeldElements(const SegmentOptions& options) {
  if (options.plan.kind == TensorKind::kStatistic) return 0;
  if (options.keep_all_held) return options.plan.elements;
  uint64_t elements = 0;
  for (size_t b = 0; b < options.plan.blocks.size(); b += options.sample_stride) {
    elements += options.plan.blocks[b].elements;
  }
  return elements;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Segment>> Segment::Create(const SegmentOptions& options) {
  if (options.sample_stride == 0 || options.rule.max_workers == 0) {
    return absl::InvalidArgumentError("segment: sample stride and worker slots must be at least 1");
  }
  if (options.synchronous &&
      (options.members == 0 || options.members > options.rule.max_workers)) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment: a synchronous rule needs 1 to ", options.rule.max_workers,
                     " members, not ", options.members));
  }
  const SqueezeOptions& squeeze = options.squeeze;
  if (squeeze.freeze_round == 0 || squeeze.fold_rounds == 0 || squeeze.measure_rounds == 0) {
    return absl::InvalidArgumentError(
        "segment: the variance cannot be frozen before a round in full precision, nor errors folded or "
        "measured every 0 rounds");
  }
  if (options.delay_threshold.has_value()) {
    const RuleTraits* traits = FindRule(options.rule.rule);
    if (options.synchronous || options.plan.kind == TensorKind::kStatistic ||
        (traits != nullptr && (traits->worker_half || traits->elastic))) {
      return absl::InvalidArgumentError(absl::StrCat(
          "segment ", options.plan.id, ": no delay threshold with rounds, running statistics or the rule '",
          options.rule.rule, "'; take it out"));
    }
  }
  std::unique_ptr<UpdateRule> rule = MakeUpdateRule(EffectiveRule(options), options.plan.elements);
  if (rule == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment: there is no update rule '", options.rule.rule, "'"));
  }
  return std::unique_ptr<Segment>(new Segment(options, std::move(rule)));
}

Segment::Segment(const SegmentOptions& options, std::unique_ptr<UpdateRule> rule)
    : options_(options),
      codecs_(options.codec),
      rule_(std::move(rule)),
      theta_(options.plan.elements),
      slots_(options.rule.max_workers),
      squeeze_(rule_->AsSqueeze()),
      held_elements_(HeldElements(options)) {
  for (uint32_t worker = 0; worker < options.members; ++worker) slots_[worker].first_round = 0;
  if (squeeze_ != nullptr && options_.squeeze.freeze_round != SqueezeOptions::kAutomatic) {
    next_phase_ = Phase::kFrozen;
    next_phase_round_ = options_.squeeze.freeze_round;
  }
  if (options_.synchronous) OpenRound(0);
  if (MomentumAtWorkers()) steps_ = options_.schedule.Steps();
  held_offsets_.assign(options_.plan.blocks.size(), kNotHeld);
  uint64_t at = 0;
  for (size_t b = 0; b < held_offsets_.size() && held_elements_ > 0; ++b) {
    if (!options_.keep_all_held && b % options_.sample_stride != 0) continue;
    held_offsets_[b] = at;
    at += options_.plan.blocks[b].elements;
  }
}

absl::Status Segment::CheckPayload(const Event& event) const {
  const SegmentPlan& plan = options_.plan;
  if (event.kind == EventKind::kViewChange) return CheckView(event);
  const bool plain =
      event.kind == EventKind::kInitialise || event.kind == EventKind::kLearningRateRepair;
  if (!plain && event.kind != EventKind::kPush) {
    if (event.payload.bytes != 0) {
      return absl::InvalidArgumentError(absl::StrCat("segment ", plan.id, ": ", event.payload.bytes,
                                                     " bytes of payload where none belong"));
    }
    return absl::OkStatus();
  }
  const Codec* codec = codecs_.Find(static_cast<CodecId>(event.codec));
  if (codec == nullptr || (plain && codec->id() != CodecId::kNone)) {
    return absl::InvalidArgumentError(absl::StrCat("segment ", plan.id, ": codec ", event.codec,
                                                   plain ? " where plain fp32 is needed"
                                                         : " is unknown to this server"));
  }
  if (event.kind == EventKind::kLearningRateRepair && event.payload.bytes == 0) return absl::OkStatus();
  const uint64_t expected = EncodedBytes(*codec, plan.blocks);
  if (event.payload.bytes != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment ", plan.id, ": a payload of ", event.payload.bytes, " bytes; ",
                     plan.elements, " elements as ", std::string(codec->name()), " are ", expected));
  }
  Scratch& scratch = ThreadScratch();
  PayloadReader reader(event.payload);
  for (const Block& block : plan.blocks) {
    const Codec& by = BlockCodec(*codec, block);
    const uint8_t* bytes = reader.Next(by.BlockBytes(block.elements), scratch.straddle);
    const std::string_view fault = by.Fault(bytes, block.elements);
    if (fault.empty()) continue;
    uint64_t element = plan.begin + block.offset;
    if (fault == kNotFinite) {
      const CodecKey key = BlockKey(KeyOf(event), block.offset);
      const float* values = by.DecodeBlock(bytes, block.elements, key, scratch.gradient);
      element += std::find_if(values, values + block.elements, [](float v) { return !std::isfinite(v); }) - values;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "segment ", plan.id, ": worker ", event.worker, " sent ", std::string(fault),
        fault == kNotFinite ? ", element " : ", in the block from element ", element,
        " of the parameter vector (block ", &block - plan.blocks.data(), ", codec ",
        std::string(by.name()), ")"));
  }
  return absl::OkStatus();
}

absl::Status Segment::Admit(Event* event) const {
  const auto name = [&] { return absl::StrCat("segment ", options_.plan.id, ": "); };
  if (event->kind == EventKind::kInitialise || event->kind == EventKind::kSnapshot) {
    return absl::OkStatus();
  }
  if (event->kind == EventKind::kPhaseChange) return CheckPhaseChange(*event);
  if (event->kind == EventKind::kViewChange) {
    // No fleet has so many changes of members while a segment hears of none.
    constexpr uint64_t kLongestLeap = 1 << 20;
    if (options_.synchronous && event->argument > view_ && event->argument - view_ <= kLongestLeap) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(
        absl::StrCat(name(), "view ", event->argument, " does not follow view ", view_));
  }
  if (event->kind == EventKind::kRoundClosed) {
    if (!options_.synchronous || event->argument != open_round_ || !RoundComplete()) {
      return absl::FailedPreconditionError(absl::StrCat(name(), "round ", event->argument,
                                                        " cannot be closed; round ", open_round_, " is open"));
    }
    return absl::OkStatus();
  }
  const bool moves_slot = event->kind == EventKind::kPush || event->kind == EventKind::kSkip ||
                          event->kind == EventKind::kDiscard || event->kind == EventKind::kResend ||
                          event->kind == EventKind::kLate;
  if (!initialised_ && event->kind != EventKind::kJoin && event->kind != EventKind::kExpire &&
      event->kind != EventKind::kLeave) {
    return absl::FailedPreconditionError(
        absl::StrCat(name(), "has no values yet; a worker must initialise it first"));
  }
  if (ByReader(*event)) return absl::OkStatus();
  if (event->worker >= slots_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(name(), "worker ", event->worker,
                                                   " is beyond the job's ", slots_.size(), " slots"));
  }
  const Slot& slot = slots_[event->worker];
  if (event->incarnation < slot.incarnation) {
    return absl::AbortedError(absl::StrCat(name(), "worker ", event->worker, " has a newer incarnation ",
                                           slot.incarnation, "; ", event->incarnation,
                                           " is fenced and must end"));
  }
  if (event->kind == EventKind::kLearningRateRepair) return AdmitAtStep(*event);
  if (!moves_slot) return absl::OkStatus();
  if (event->held_version > version_) {
    // So it is where this server has lost what the worker has read, and does not know it.
    return absl::OutOfRangeError(absl::StrCat(
        name(), "worker ", event->worker, " claims version ", event->held_version, "; the newest is ", version_,
        ": unless the worker errs, this server goes on from an older state than the one that worker has seen; start the "
        "worker again, which then takes the parameters that there are"));
  }
  const bool known = event->incarnation == slot.incarnation;
  if (options_.synchronous) return AdmitToRound(event);
  if (known && event->sequence <= slot.sequence) {
    TurnInto(EventKind::kResend, event);
  } else if (event->kind == EventKind::kPush && options_.delay_threshold.has_value() &&
             version_ - event->held_version > *options_.delay_threshold) {
    TurnInto(EventKind::kDiscard, event);
  }
  return event->kind == EventKind::kResend ? absl::OkStatus() : AdmitAtStep(*event);
}

Outcome Segment::Apply(const Event& event, Reply* reply) {
  switch (event.kind) {
    case EventKind::kInitialise: {
      if (!initialised_) {
        PayloadReader reader(event.payload);
        Scratch& scratch = ThreadScratch();
        for (const Block& block : options_.plan.blocks) {
          const uint64_t bytes = block.elements * sizeof(float);
          std::memcpy(theta_.data() + block.offset, reader.Next(bytes, scratch.straddle), bytes);
        }
        initialised_ = true;
      }
      return State(Result::kInitialised);
    }
    case EventKind::kJoin:
      JoinSlot(event);
      return State(Result::kCurrent);
    case EventKind::kPush:
      return options_.synchronous ? NotePush(event) : Push(event, reply);
    case EventKind::kLate:
      return NoteLate(event, reply);
    case EventKind::kSkip:
    case EventKind::kDiscard: {
      clock_ = std::max(clock_, event.ticket);
      if (options_.synchronous) return NoteSkip(event);
      [[fallthrough]];
    }
    case EventKind::kResend: {
      Slot& slot = JoinSlot(event);
      if (options_.synchronous && event.argument == open_round_) return State(Result::kPending);
      if (Frozen()) {
        Outcome outcome = State(Result::kDuplicate);
        WriteRound(event, reply, &outcome);
        return outcome;
      }
      const Codec& codec = ReplyCodec(event, slot);
      if (event.kind != EventKind::kResend) slot.sequence = event.sequence;
      WriteParameters({.worker = event.worker, .eta = Eta(), .version = version_}, ReadMode::kSlot, codec,
                      &slot, reply);
      Outcome outcome = State(event.kind == EventKind::kSkip      ? Result::kSkipped
                              : event.kind == EventKind::kDiscard ? Result::kDiscarded
                                                                  : Result::kDuplicate);
      if (event.kind == EventKind::kDiscard) outcome.lag = version_ - event.held_version;
      return outcome;
    }
    case EventKind::kRead: {
      const auto mode = static_cast<ReadMode>(event.argument);
      const bool reader = ByReader(event);
      if (!reader && Frozen()) {
        JoinSlot(event);
        Outcome outcome = State(Result::kCurrent);
        WriteRound(event, reply, &outcome);
        return outcome;
      }
      Slot* slot = reader ? nullptr : &JoinSlot(event);
      const Codec& codec = reader ? PlainCodec() : ReplyCodec(event, *slot);
      WriteParameters({.worker = reader ? kNoWorker : event.worker, .eta = Eta(), .version = version_}, mode,
                      codec, slot, reply);
      return State(Result::kCurrent);
    }
    case EventKind::kExpire:
    case EventKind::kLeave:
      if (slots_[event.worker].joined && slots_[event.worker].incarnation == event.incarnation) {
        FreeSlot(event.worker);
      }
      return State(Result::kCurrent);
    case EventKind::kRoundClosed:
      return CloseRound();
    case EventKind::kPhaseChange:
      next_phase_ = static_cast<Phase>(event.argument);
      next_phase_round_ = event.ticket;
      announced_round_ = event.ticket;
      return State(Result::kCurrent);
    case EventKind::kViewChange:
      return ChangeView(event);
    case EventKind::kAbsent:
      slots_[event.worker].absent_before = std::max(slots_[event.worker].absent_before, event.argument);
      return State(Result::kCurrent);
    case EventKind::kLearningRateRepair:
      return Repair(event, reply);
    default:
      return State(Result::kCurrent);
  }
}

Outcome Segment::State(Result result) const {
  Outcome outcome = {.result = result,
                     .version = version_,
                     .clock = clock_,
                     .eta = Eta(),
                     .round = open_round_,
                     .members = round_members_,
                     .phase = phase_,
                     .fold = folds()};
  if (squeeze_ != nullptr && measure_.round + 1 == open_round_) outcome.measure = measure_;
  return outcome;
}

Segment::Slot& Segment::JoinSlot(const Event& event) {
  Slot& slot = slots_[event.worker];
  if (slot.joined && slot.incarnation == event.incarnation) return slot;
  if (slot.joined) FreeSlot(event.worker);
  if (slot.incarnation != event.incarnation) {
    slot.sequence = 0;
    slot.late_sequence = 0;
    slot.has_share = false;
    slot.unsure = false;
  }
  slot.joined = true;
  slot.incarnation = event.incarnation;
  rule_->Join(event.worker);
  return slot;
}

void Segment::FreeSlot(uint32_t worker) {
  Slot& slot = slots_[worker];
  rule_->Leave(worker);
  slot.joined = false;
  // The incarnation may come back with what it holds.
  slot.unsure = slot.unsure || slot.has_held;
  slot.has_held = false;
}

CodecKey Segment::KeyOf(const Event& push) const {
  PushPlace place = {.worker = push.worker, .sequence = push.sequence};
  if (options_.synchronous) place.round = push.argument;
  return PushKey(options_.seed, options_.plan.id, place);
}

void Segment::MeasureGap(const UpdateContext& context, const Slot& slot, Outcome* outcome) const {
  Scratch& scratch = ThreadScratch();
  for (size_t b = 0; b < options_.plan.blocks.size(); b += options_.sample_stride) {
    const Block& block = options_.plan.blocks[b];
    const float* held = slot.held.data() + held_offsets_[b];
    rule_->Reply(context, RunOf(block), theta_.data(), scratch.other);
    outcome->gap_squares +=
        kernels::SumOfSquaredDifferences(theta_.data() + block.offset, held, block.elements);
    outcome->surprise_squares += kernels::SumOfSquaredDifferences(scratch.other, held, block.elements);
    outcome->sampled_elements += block.elements;
  }
}

Outcome Segment::Push(const Event& event, Reply* reply) {
  Slot& slot = JoinSlot(event);
  clock_ = std::max(clock_, event.ticket);
  const UpdateContext context = {.worker = event.worker,
                                 .eta = Eta(),
                                 .version = version_,
                                 .lag = version_ - event.held_version};
  Outcome outcome;
  const Codec& codec = *codecs_.Find(static_cast<CodecId>(event.codec));
  const CodecKey key = KeyOf(event);
  // Whether slot.held is what the gradient was computed at.
  const bool knows_held = slot.has_held && held_elements_ > 0 && event.held_version == slot.version_sent;
  if (knows_held) MeasureGap(context, slot, &outcome);
  Outgoing outgoing =
      BeginReply(ReplyCodec(event, slot), version_ + 1, event.worker, &slot, reply);
  Scratch& scratch = ThreadScratch();
  PayloadReader reader(event.payload);
  rule_->Begin(context);
  for (size_t b = 0; b < options_.plan.blocks.size(); ++b) {
    const Block& block = options_.plan.blocks[b];
    Run run = RunOf(block);
    if (knows_held && options_.keep_all_held) run.held = slot.held.data() + held_offsets_[b];
    const Codec& by = BlockCodec(codec, block);
    const uint8_t* bytes = reader.Next(by.BlockBytes(block.elements), scratch.straddle);
    const float* gradient =
        by.DecodeBlock(bytes, block.elements, BlockKey(key, block.offset), scratch.gradient);
    float* values = outgoing.out != nullptr ? BlockTarget(block, outgoing) : nullptr;
    rule_->Update(context, run, gradient, theta_.data(), values);
    if (values != nullptr) EmitBlock(b, values, &outgoing);
  }
  ++version_;
  slot.sequence = event.sequence;
  if (!steps_.empty()) {
    slot.has_share = true;
    slot.share_ticket = clock_;
  }
  if (outgoing.out != nullptr) EndReply(outgoing, reply);
  outcome.result = Result::kApplied;
  outcome.version = version_;
  outcome.clock = clock_;
  outcome.lag = context.lag;
  outcome.eta = context.eta;
  return outcome;
}

absl::Status Segment::Replay(const Event& event) {
  Event admitted = event;
  if (absl::Status status = CheckPayload(event); !status.ok()) return status;
  if (absl::Status status = Admit(&admitted); !status.ok()) return status;
  // The reply decides what a worker holds, so replay writes it too.
  std::vector<uint8_t> buffer(max_reply_bytes());
  Reply reply{.data = buffer.data()};
  Apply(admitted, &reply);
  return absl::OkStatus();
}

}  // namespace foreshard
