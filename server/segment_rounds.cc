// Segment's rounds: who contributes, views that change, and rounds that are compressed
// both ways (server/README.md).
#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/vector_math.h"
#include "server/segment.h"
#include "server/segment_scratch.h"

namespace foreshard {
namespace {

// No job has as many.
constexpr uint64_t kMostRounds = uint64_t{1} << 40;

bool SameBytes(const Payload& payload, const std::vector<uint8_t>& bytes) {
  if (payload.bytes != bytes.size()) return false;
  const uint8_t* at = bytes.data();
  for (const ByteSpan piece : payload.pieces) {
    if (!piece.empty() && std::memcmp(piece.data(), at, piece.size()) != 0) return false;
    at += piece.size();
  }
  return true;
}

}  // namespace

absl::Status Segment::AdmitToRound(Event* event) const {
  const auto refused = [&](const auto&... what) {
    return absl::StrCat("segment ", options_.plan.id, ", worker ", event->worker, ": ", what...);
  };
  const Slot& slot = slots_[event->worker];
  const uint64_t round = event->argument;
  const bool known = event->incarnation == slot.incarnation;
  if (round > open_round_) {
    return absl::FailedPreconditionError(
        refused("is at round ", round, "; round ", open_round_, " is still open"));
  }
  if (event->kind == EventKind::kResend || event->kind == EventKind::kLate) return absl::OkStatus();
  // Said again: a late one stays late.
  if (known && slot.late_sequence != 0 && event->sequence == slot.late_sequence) {
    TurnInto(EventKind::kLate, event);
    return absl::OkStatus();
  }
  if (round < slot.contributed_before) {
    if (known && round == open_round_ && slot.has_pending && event->kind == EventKind::kPush &&
        event->sequence == slot.sequence && !SameBytes(event->payload, slot.pending)) {
      return absl::InvalidArgumentError(
          refused("sends other bytes than before for push ", event->sequence, " of round ", round,
                  ": what is sent again must be what was sent"));
    }
    TurnInto(EventKind::kResend, event);
    return absl::OkStatus();
  }
  // Who is of the round no more, or not yet, is late as well: it was given up for lost.
  if (round < open_round_ || slot.first_round > round) {
    TurnInto(EventKind::kLate, event);
    return absl::OkStatus();
  }
  if (squeeze_ != nullptr && event->kind == EventKind::kPush) {
    const auto codec = static_cast<CodecId>(event->codec);
    if (codec != CodecId::kNone && (!Frozen() || folds() || codec != options_.squeeze.codec)) {
      return absl::InvalidArgumentError(refused(
          "contributes to round ", round, " as '", std::string(codecs_.Find(codec)->name()), "', which must be ",
          Frozen() && !folds()
              ? absl::StrCat("'", std::string(codecs_.Find(options_.squeeze.codec)->name()), "' or 'none'")
              : absl::StrCat("in full precision ('none'): ",
                             Frozen() ? "errors are folded in it" : "the variance is not frozen yet")));
    }
  }
  return absl::OkStatus();
}

absl::Status Segment::CheckView(const Event& event) const {
  const auto bad = [&](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment ", options_.plan.id, ": view ", event.argument, ": ", what...));
  };
  if (event.payload.bytes % kMemberBytes != 0) {
    return bad(event.payload.bytes, " bytes are no list of members of ", kMemberBytes, " bytes each");
  }
  std::set<uint32_t> seen;
  for (const Member& member : ParseMembers(event.payload)) {
    if (member.worker >= slots_.size()) {
      return bad("worker ", member.worker, " is beyond the job's ", slots_.size(), " slots");
    }
    if (!seen.insert(member.worker).second) return bad("worker ", member.worker, " is in it twice");
    if (member.first_round > kMostRounds) {
      return bad("worker ", member.worker, " is to take part from round ", member.first_round, " on");
    }
  }
  return absl::OkStatus();
}

absl::Status Segment::CheckPhaseChange(const Event& event) const {
  const auto refused = [&](const auto&... what) {
    return absl::FailedPreconditionError(absl::StrCat(
        "segment ", options_.plan.id, ": phase ", event.argument, " from round ", event.ticket, ": ", what...));
  };
  if (squeeze_ == nullptr) return refused("the rule '", options_.rule.rule, "' has one phase only");
  if (event.argument > static_cast<uint64_t>(Phase::kFrozen)) return refused("there is no such phase");
  // A return to full precision needs a round before it that takes all errors in.
  const uint64_t least = open_round_ + (event.argument == static_cast<uint64_t>(Phase::kFull) ? 2 : 1);
  if (event.ticket < least) {
    return refused("round ", open_round_, " is open; round ", least, " is the first that can begin it");
  }
  return absl::OkStatus();
}

bool Segment::folds() const {
  if (!Frozen()) return false;
  if (next_phase_ == Phase::kFull && next_phase_round_ == open_round_ + 1) return true;
  return open_round_ > phase_round_ && (open_round_ - phase_round_) % options_.squeeze.fold_rounds == 0;
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
  slot.contributed_before = open_round_ + 1;
  return State(Result::kPending);
}

Outcome Segment::NoteSkip(const Event& event) {
  Slot& slot = JoinSlot(event);
  slot.sequence = event.sequence;
  slot.contributed_before = open_round_ + 1;
  return State(Result::kPending);
}

Outcome Segment::NoteLate(const Event& event, Reply* reply) {
  Slot& slot = JoinSlot(event);
  slot.sequence = event.sequence;
  slot.late_sequence = event.sequence;
  Outcome outcome = State(Result::kLate);
  if (Frozen()) {
    WriteRound(event, reply, &outcome);
  } else {
    WriteParameters({.worker = event.worker, .eta = Eta(), .version = version_}, ReadMode::kSlot,
                    *codecs_.Find(CodecId::kNone), &slot, reply);
  }
  return outcome;
}

Outcome Segment::ChangeView(const Event& event) {
  view_ = event.argument;
  std::vector<uint64_t> first_rounds(slots_.size(), kNever);
  uint64_t earliest = kNever;
  bool goes_on = false;  // some member of the open round is still there
  for (const Member& member : ParseMembers(event.payload)) {
    Slot& slot = slots_[member.worker];
    // A slot that nobody has used yet is not another's.
    const bool same = slot.first_round != kNever &&
                      (slot.incarnation == 0 || slot.incarnation == member.incarnation);
    if (!same) slot.absent_before = 0;
    // Who was no member of the open round cannot become one.
    const bool in_round = slot.in_round && same && member.first_round <= open_round_;
    first_rounds[member.worker] =
        in_round ? member.first_round : std::max(member.first_round, open_round_ + 1);
    earliest = std::min(earliest, first_rounds[member.worker]);
    goes_on |= in_round;
  }
  for (uint32_t worker = 0; worker < slots_.size(); ++worker) {
    Slot& slot = slots_[worker];
    slot.first_round = first_rounds[worker];
    if (slot.in_round && slot.first_round > open_round_) slot.absent_before = open_round_ + 1;
  }
  // Nobody is left who could close the open round: what was contributed to it is given up.
  if (!goes_on && earliest != kNever) OpenRound(earliest);
  return State(Result::kCurrent);
}

bool Segment::RoundComplete() const {
  if (!options_.synchronous) return false;
  bool any = false;
  for (const Slot& slot : slots_) {
    if (Awaited(slot)) return false;
    any |= ContributedNow(slot);
  }
  return any || NextRoundWithMembers() != kNever;
}

uint64_t Segment::NextRoundWithMembers() const {
  uint64_t next = kNever;
  for (const Slot& slot : slots_) {
    if (slot.first_round == kNever) continue;
    next = std::min(next, std::max({slot.first_round, slot.absent_before, open_round_ + 1}));
  }
  return next;
}

std::vector<uint32_t> Segment::MissingMembers() const {
  std::vector<uint32_t> missing;
  for (uint32_t worker = 0; worker < slots_.size(); ++worker) {
    if (Awaited(slots_[worker])) missing.push_back(worker);
  }
  return missing;
}

void Segment::OpenRound(uint64_t round) {
  open_round_ = round;
  round_members_ = 0;
  for (Slot& slot : slots_) {
    slot.has_pending = false;
    // Only compressed rounds come again and again; those in full precision are no measure
    // for what to keep.
    if (Frozen() && slot.pending_codec != static_cast<uint8_t>(options_.squeeze.codec)) {
      std::vector<uint8_t>().swap(slot.pending);
    }
    slot.in_round = slot.first_round <= round;
    round_members_ += slot.in_round;
  }
  if (squeeze_ == nullptr) return;
  if (next_phase_.has_value() && next_phase_round_ <= round) {
    if (*next_phase_ != phase_) {
      phase_round_ = next_phase_round_;
      ChangePhase(*next_phase_);
    }
    next_phase_.reset();
  }
}

void Segment::ChangePhase(Phase phase) {
  phase_ = phase;
  for (Slot& slot : slots_) std::vector<uint8_t>().swap(slot.pending);
  if (Frozen()) {
    squeeze_->Freeze(options_.plan.blocks);
  } else {
    squeeze_->Thaw();
  }
  // Nobody can follow by results over a change of phase.
  has_result_ = false;
  result_.clear();
}

void Segment::SumContributions(const Block& block, const CodecKey& key,
                               absl::Span<const uint8_t*> cursors, float* sum) const {
  // In slot order, so that a round gives the same bits whoever came first.
  std::fill_n(sum, block.elements, 0.0f);
  float* const scratch = ThreadScratch().other;
  size_t k = 0;
  for (const Slot& slot : slots_) {
    if (!slot.in_round) continue;
    if (slot.has_pending) {
      const Codec& codec = BlockCodec(*codecs_.Find(static_cast<CodecId>(slot.pending_codec)), block);
      const uint8_t*& bytes = cursors[k++];
      kernels::Add(sum, codec.DecodeBlock(bytes, block.elements, key, scratch), block.elements);
      bytes += codec.BlockBytes(block.elements);
    } else if (Frozen()) {
      squeeze_->AddAbsent(RunOf(block), sum);
    }
  }
}

Outcome Segment::CloseRound() {
  std::vector<const uint8_t*> cursors;
  for (const Slot& slot : slots_) {
    if (slot.has_pending) cursors.push_back(slot.pending.data());
  }
  if (!cursors.empty()) {
    const auto contributors = static_cast<uint32_t>(cursors.size());
    const UpdateContext context = {
        .worker = kNoWorker, .eta = Eta(), .version = version_, .contributors = contributors};
    // Frozen, an absent member counts; else the mean is of those that are there.
    const float share = 1.0f / static_cast<float>(Frozen() ? round_members_ : contributors);
    const Codec& codec = *codecs_.Find(options_.squeeze.codec);
    // What is needed to decode is the same for all workers of a round.
    const CodecKey push_key = PushKey(options_.seed, options_.plan.id, {.round = open_round_});
    const CodecKey result_key = ResultKey(options_.seed, options_.plan.id, version_ + 1);
    float* const mean = ThreadScratch().gradient;
    result_folded_ = folds();
    has_result_ = Frozen();
    if (has_result_) result_.resize(EncodedBytes(codec, options_.plan.blocks));
    uint8_t* result = result_.data();
    rule_->Begin(context);
    for (const Block& block : options_.plan.blocks) {
      SumContributions(block, BlockKey(push_key, block.offset), absl::MakeSpan(cursors), mean);
      kernels::Scale(mean, share, block.elements);
      if (Frozen()) {
        const Codec& by = BlockCodec(codec, block);
        squeeze_->Close(context, RunOf(block), by, BlockKey(result_key, block.offset), mean, theta_.data(),
                        result);
        result += by.BlockBytes(block.elements);
      } else {
        rule_->Update(context, RunOf(block), mean, theta_.data(), nullptr);
      }
    }
    result_eta_ = context.eta;
    ++version_;
  }
  Measure();
  const bool any = std::any_of(slots_.begin(), slots_.end(), [this](const Slot& slot) { return ContributedNow(slot); });
  // Without a contribution the rounds up to where somebody takes part again are nobody's.
  OpenRound(any ? open_round_ + 1 : NextRoundWithMembers());
  return State(Result::kApplied);
}

void Segment::Measure() {
  if (squeeze_ == nullptr || (open_round_ + 1) % options_.squeeze.measure_rounds != 0) return;
  measure_ = {.round = open_round_};
  if (!Frozen()) {
    measure_.variance_sum = squeeze_->VarianceSum(options_.plan.blocks);
    return;
  }
  const absl::Span<const float> error = squeeze_->error(), momentum = squeeze_->momentum();
  measure_.error_squares = kernels::SumOfSquares(error.data(), error.size());
  measure_.momentum_squares = kernels::SumOfSquares(momentum.data(), momentum.size());
}

uint64_t Segment::max_reply_bytes() const {
  const uint64_t fp32 = options_.plan.elements * sizeof(float);
  return squeeze_ == nullptr ? fp32 : 3 * fp32;
}

void Segment::WriteRound(const Event& event, Reply* reply, Outcome* outcome) {
  if (reply == nullptr || reply->data == nullptr) return;
  const bool read = event.kind == EventKind::kRead &&
                    event.argument == static_cast<uint64_t>(ReadMode::kSlot);
  reply->codec = CodecId::kNone;
  if (read || event.held_version + 1 != version_ || !has_result_) {
    // A round in which nobody contributed leaves all as it was; a change of phase does not.
    if (!read && event.held_version == version_ && has_result_) {
      reply->bytes = 0;
      reply->parts = 0;
      return;
    }
    reply->parts = kParametersPart | kMomentumPart | kDenominatorPart;
  } else {
    reply->codec = options_.squeeze.codec;
    reply->parts = kResultPart | (result_folded_ ? kParametersPart : 0u);
    outcome->eta = result_eta_;
  }
  uint8_t* out = reply->data;
  const auto append = [&](uint32_t part, const void* bytes, uint64_t size) {
    if ((reply->parts & part) == 0 || size == 0) return;
    std::memcpy(out, bytes, size);
    out += size;
  };
  append(kResultPart, result_.data(), result_.size());
  append(kParametersPart, theta_.data(), theta_.size() * sizeof(float));
  append(kMomentumPart, squeeze_->momentum().data(), theta_.size() * sizeof(float));
  append(kDenominatorPart, squeeze_->denominator().data(), theta_.size() * sizeof(float));
  reply->bytes = static_cast<uint64_t>(out - reply->data);
}

}  // namespace foreshard
