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

constexpr uint32_t kNoWorker = ~uint32_t{0};

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
      held_elements_(HeldElements(options)) {
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
  const bool plain = event.kind == EventKind::kInitialise || event.kind == EventKind::kFold ||
                     event.kind == EventKind::kLearningRateRepair;
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
  if (event->kind == EventKind::kInitialise || event->kind == EventKind::kPhaseChange ||
      event->kind == EventKind::kSnapshot) {
    return absl::OkStatus();
  }
  if (event->kind == EventKind::kRoundClosed) {
    if (!options_.synchronous || event->argument != open_round_ || !RoundComplete()) {
      return absl::FailedPreconditionError(absl::StrCat(name(), "round ", event->argument,
                                                        " cannot be closed; round ", open_round_, " is open"));
    }
    return absl::OkStatus();
  }
  const bool by_reader =
      event->kind == EventKind::kRead && event->argument != static_cast<uint64_t>(ReadMode::kSlot);
  const bool moves_slot = event->kind == EventKind::kPush || event->kind == EventKind::kSkip ||
                          event->kind == EventKind::kDiscard || event->kind == EventKind::kResend;
  if (!initialised_ && event->kind != EventKind::kJoin && event->kind != EventKind::kExpire &&
      event->kind != EventKind::kLeave) {
    return absl::FailedPreconditionError(
        absl::StrCat(name(), "has no values yet; a worker must initialise it first"));
  }
  if (by_reader || event->kind == EventKind::kFold) return absl::OkStatus();
  if (event->worker >= slots_.size() || (options_.synchronous && event->worker >= options_.members)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), "worker ", event->worker, " is beyond the job's ",
                     options_.synchronous ? options_.members : slots_.size(), " slots"));
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
    return absl::InvalidArgumentError(absl::StrCat(name(), "worker ", event->worker, " claims version ",
                                                   event->held_version, "; the newest is ", version_));
  }
  const auto turn_into = [event](EventKind kind) {
    event->kind = kind;
    event->payload = {};
    event->codec = 0;
  };
  const bool known = event->incarnation == slot.incarnation;
  if (options_.synchronous) {
    if (event->argument > open_round_) {
      return absl::FailedPreconditionError(absl::StrCat(name(), "worker ", event->worker, " is at round ",
                                                        event->argument, "; round ", open_round_,
                                                        " is still open"));
    }
    // A closed round, or one this worker has contributed to: said again.
    if (event->argument < open_round_ || slot.has_pending || slot.absent) {
      turn_into(EventKind::kResend);
    }
    return absl::OkStatus();
  }
  if (known && event->sequence <= slot.sequence) {
    turn_into(EventKind::kResend);
  } else if (event->kind == EventKind::kPush && options_.delay_threshold.has_value() &&
             version_ - event->held_version > *options_.delay_threshold) {
    turn_into(EventKind::kDiscard);
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
    case EventKind::kSkip:
    case EventKind::kDiscard: {
      clock_ = std::max(clock_, event.ticket);
      if (options_.synchronous) {
        Slot& slot = JoinSlot(event);
        slot.sequence = event.sequence;
        slot.absent = true;
        return State(Result::kPending);
      }
      [[fallthrough]];
    }
    case EventKind::kResend: {
      Slot& slot = JoinSlot(event);
      if (options_.synchronous && (slot.has_pending || slot.absent) && event.argument == open_round_) {
        return State(Result::kPending);
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
      const bool reader = mode != ReadMode::kSlot;
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
      phase_ = static_cast<uint32_t>(event.argument);
      return State(Result::kCurrent);
    case EventKind::kFold: {
      reply_error_.resize(theta_.size());
      PayloadReader reader(event.payload);
      Scratch& scratch = ThreadScratch();
      for (const Block& block : options_.plan.blocks) {
        const uint8_t* bytes = reader.Next(block.elements * sizeof(float), scratch.straddle);
        kernels::Add(reply_error_.data() + block.offset,
                     PlainCodec().DecodeBlock(bytes, block.elements, {}, scratch.gradient), block.elements);
      }
      return State(Result::kApplied);
    }
    case EventKind::kLearningRateRepair:
      return Repair(event, reply);
    default:
      return State(Result::kCurrent);
  }
}

Outcome Segment::State(Result result) const {
  return {.result = result,
          .version = version_,
          .clock = clock_,
          .eta = Eta(),
          .members = options_.synchronous ? options_.members : 0};
}

Segment::Slot& Segment::JoinSlot(const Event& event) {
  Slot& slot = slots_[event.worker];
  if (slot.joined && slot.incarnation == event.incarnation) return slot;
  if (slot.joined) FreeSlot(event.worker);
  if (slot.incarnation != event.incarnation) {
    slot.sequence = 0;
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

Outcome Segment::NotePush(const Event& event) {
  Slot& slot = JoinSlot(event);
  clock_ = std::max(clock_, event.ticket);
  slot.pending.clear();
  for (const ByteSpan piece : event.payload.pieces) {
    slot.pending.insert(slot.pending.end(), piece.begin(), piece.end());
  }
  slot.pending_codec = event.codec;
  slot.has_pending = true;
  slot.sequence = event.sequence;
  return State(Result::kPending);
}

bool Segment::RoundComplete() const {
  if (!options_.synchronous) return false;
  for (uint32_t worker = 0; worker < options_.members; ++worker) {
    if (!slots_[worker].has_pending && !slots_[worker].absent) return false;
  }
  return true;
}

Outcome Segment::CloseRound() {
  std::vector<std::pair<const Codec*, const uint8_t*>> contributions;
  for (uint32_t worker = 0; worker < options_.members; ++worker) {
    const Slot& slot = slots_[worker];
    if (slot.has_pending) {
      contributions.emplace_back(codecs_.Find(static_cast<CodecId>(slot.pending_codec)), slot.pending.data());
    }
  }
  if (!contributions.empty()) {
    const UpdateContext context = {.worker = kNoWorker,
                                   .eta = Eta(),
                                   .version = version_,
                                   .contributors = static_cast<uint32_t>(contributions.size())};
    const float share = 1.0f / static_cast<float>(contributions.size());
    // What is needed to decode is the same for all workers of a round.
    const CodecKey key = PushKey(options_.seed, options_.plan.id, {.round = open_round_});
    Scratch& scratch = ThreadScratch();
    rule_->Begin(context);
    for (const Block& block : options_.plan.blocks) {
      // In slot order, so that a round gives the same bits whoever came first.
      std::fill_n(scratch.gradient, block.elements, 0.0f);
      for (auto& [codec, bytes] : contributions) {
        const Codec& by = BlockCodec(*codec, block);
        kernels::Add(scratch.gradient,
                     by.DecodeBlock(bytes, block.elements, BlockKey(key, block.offset), scratch.other),
                     block.elements);
        bytes += by.BlockBytes(block.elements);
      }
      kernels::Scale(scratch.gradient, share, block.elements);
      rule_->Update(context, RunOf(block), scratch.gradient, theta_.data(), nullptr);
    }
    ++version_;
  }
  for (uint32_t worker = 0; worker < options_.members; ++worker) {
    slots_[worker].has_pending = false;
    slots_[worker].absent = false;
  }
  ++open_round_;
  return State(Result::kApplied);
}

absl::Status Segment::Replay(const Event& event) {
  Event admitted = event;
  if (absl::Status status = CheckPayload(event); !status.ok()) return status;
  if (absl::Status status = Admit(&admitted); !status.ok()) return status;
  // The reply decides what a worker holds, so replay writes it too.
  std::vector<uint8_t> buffer(options_.plan.elements * sizeof(float));
  Reply reply{.data = buffer.data()};
  Apply(admitted, &reply);
  return absl::OkStatus();
}

}  // namespace foreshard
