// A segment of a shard: the unit of version, lock, de-duplication and round. A
// deterministic state machine: the same events in the same order give the same
// bits, in the daemon, in tests and in replay. Reads no clock, no random source
// and no network.
//
//   auto segment = Segment::Create(options).value();
//   Event push = ...;
//   RETURN_IF_ERROR(segment->Admit(&push));   // may turn it into a resend
//   Outcome outcome = segment->Apply(push, &reply);
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/core/bytes.h"
#include "common/core/reply_part.h"
#include "common/core/schedule.h"
#include "common/core/shard_plan.h"
#include "kernels/codecs/codec.h"
#include "server/event.h"
#include "server/update_rules/update_rule.h"

namespace foreshard {

// The compressed phase of a SqueezeRule.
struct SqueezeOptions {
  // The first one in which contributions are compressed; at least 1.
  // kAutomatic: when a kPhaseChange says so.
  static constexpr uint64_t kAutomatic = ~uint64_t{0};
  uint64_t freeze_round = kAutomatic;
  // Every so many rounds contributions are in full precision, which takes all that workers
  // have kept back to the server.
  uint64_t fold_rounds = 1000;
  // Every so many rounds one is measured (RoundMeasure): 15, 31 and so on for 16.
  uint64_t measure_rounds = 16;
  CodecId codec = CodecId::kOneBit;
};

// What a segment whose rule squeezes had come to when a round closed.
struct RoundMeasure {
  uint64_t round = ~uint64_t{0};  // none yet
  double variance_sum = 0;        // first phase: of v as it would be frozen
  double error_squares = 0;       // second phase: of the server's error
  double momentum_squares = 0;    // second phase
};

struct SegmentOptions {
  SegmentPlan plan;
  RuleSettings rule;       // statistics segments use their average instead
  Schedule schedule;
  bool synchronous = false;
  // Synchronous: slots 0..members-1 are the members until a kViewChange says otherwise.
  uint32_t members = 0;
  SqueezeOptions squeeze;  // rules that squeeze
  bool keep_all_held = false;   // keep every x_i whole, not only the sampled blocks;
                                // needed for replies that carry differences
  uint32_t sample_stride = 64;  // one block in so many is sampled; 1: exact
  // A push of a larger lag is discarded (Ringmaster ASGD, ICML 2025); none: no push is.
  // Not where the worker's momentum holds the gradient already.
  std::optional<uint64_t> delay_threshold;
  CodecSettings codec;
  uint64_t seed = 0;  // the job's, for codecs that choose at random
};

// Where the reply goes. The caller gives a buffer of Segment::max_reply_bytes(); the
// segment says what it wrote.
struct Reply {
  uint8_t* data = nullptr;  // null: no parameters wanted
  uint64_t bytes = 0;       // written
  CodecId codec = CodecId::kNone;  // of the parameters or the result
  uint32_t parts = 0;              // ReplyParts
  // What was written is to be added to the parameters of version delta_base, which the
  // worker holds; else it takes their place.
  bool delta = false;
  uint64_t delta_base = 0;
};

enum class Result : uint8_t {
  kApplied, kDuplicate, kDiscarded, kSkipped, kCurrent, kInitialised, kPending, kLate
};

struct Outcome {
  Result result = Result::kCurrent;
  uint64_t version = 0;
  uint64_t clock = 0;
  uint64_t lag = 0;  // of an applied or discarded push
  float eta = 0;     // where the reply has a result: the rate of its round
  // Over the sampled elements, in fp64; zero where nothing was measured.
  double gap_squares = 0;
  double surprise_squares = 0;
  uint64_t sampled_elements = 0;
  // Synchronous: the open round, and how contributions to it must be.
  uint64_t round = 0;
  uint32_t members = 0;
  Phase phase = Phase::kFull;
  bool fold = false;  // in full precision, although the phase is kFrozen
  // Rules that squeeze: of the round before the open one, where that was measured.
  std::optional<RoundMeasure> measure;

  // RMS distances; 0 where nothing was measured.
  double gap() const { return Rms(gap_squares); }
  double surprise() const { return Rms(surprise_squares); }

 private:
  double Rms(double squares) const {
    return sampled_elements == 0 ? 0 : std::sqrt(squares / static_cast<double>(sampled_elements));
  }
};

// Thread-compatible: the owner keeps one mutex a segment.
class Segment {
 public:
  // INVALID_ARGUMENT: unknown rule, synchronous rule without members, a delay
  // threshold where there can be none.
  static absl::StatusOr<std::unique_ptr<Segment>> Create(const SegmentOptions& options);

  // Checks an event against the state before anything changes, and settles what
  // it is: a push already applied becomes kResend, one beyond the delay threshold
  // kDiscard without its payload; one of an expired slot will join first. Errors:
  // FAILED_PRECONDITION (no values yet, a share of momentum that must come first),
  // ABORTED (an older incarnation, a round that is closed), INVALID_ARGUMENT (worker
  // out of range, payload of the wrong size, a version never sent). Payload values must
  // have been checked with CheckPayload.
  absl::Status Admit(Event* event) const;

  // Size and contents of a payload, from its own fields; reads no state and may run
  // without the lock. INVALID_ARGUMENT names segment, worker, block and what lies.
  absl::Status CheckPayload(const Event& event) const;

  // Performs an admitted event. Cannot fail.
  Outcome Apply(const Event& event, Reply* reply);

  // Rules with a worker half, where the rate jumps (Schedule::Steps). theta holds
  // -eta gamma v_i of every worker i; at a step eta changes in all of them at once, so that
  // each worker brings its v_i, its share, with kLearningRateRepair, by which
  // theta -= (eta_new - eta_i) gamma v_i, eta_i being the rate of that worker's last applied
  // push. kPending: noted, others' are missing, ask
  // again with an empty payload. kCurrent: nothing is missing any more; the clock is at
  // the step and the reply the parameters. The clock never passes a step while a joined
  // slot's share is missing: Admit refuses such a push.

  // The joined slots whose v_i theta holds at a rate from before this step.
  std::vector<uint32_t> MissingShares(uint64_t step) const;
  // The newest step beyond the clock to which a joined slot has brought its share; 0:
  // nobody waits.
  uint64_t RepairUnderWay() const;

  // Rounds (segment_rounds.cc). A round's members are those of the view when it opened. One
  // of them contributes by a push, or is absent: it skips (kSkip), or has said or is said
  // (kAbsent) to take no part, or is of the view no more. A push for a round that closed
  // without it is late (kLate): nothing is applied, and the worker, which still has what
  // it sent, keeps it for its next contribution.

  // Whether every member has contributed or is absent, so that kRoundClosed may be applied. Where
  // all are absent, one must have said when it takes part again: that round is opened then.
  bool RoundComplete() const;
  uint64_t open_round() const { return open_round_; }
  // Members of the open round.
  uint32_t round_members() const { return round_members_; }
  // Members that the open round waits for.
  std::vector<uint32_t> MissingMembers() const;
  uint64_t view() const { return view_; }
  Phase phase() const { return phase_; }
  // Whether contributions to the open round must be in full precision.
  bool folds() const;
  // The newest.
  const RoundMeasure& measure() const { return measure_; }
  // The first round of the newest phase that was announced with kPhaseChange; 0: none was.
  uint64_t announced_round() const { return announced_round_; }

  bool initialised() const { return initialised_; }
  uint64_t version() const { return version_; }
  uint64_t clock() const { return clock_; }
  const SegmentPlan& plan() const { return options_.plan; }
  absl::Span<const float> theta() const { return theta_; }
  const UpdateRule& rule() const { return *rule_; }
  // Of the longest reply there can be.
  uint64_t max_reply_bytes() const;
  // x_i, what a slot holds after the last reply: whole with keep_all_held, else the
  // sampled blocks.
  absl::Span<const float> held(uint32_t worker) const { return slots_[worker].held; }
  // Version of the parameters last sent to a slot. Over a run without reads in
  // between, the sum over updates of (lag + 1) is the sum over slots of this minus
  // the version at which the slot first received parameters.
  uint64_t version_sent(uint32_t worker) const { return slots_[worker].version_sent; }
  uint64_t last_sequence(uint32_t worker) const { return slots_[worker].sequence; }
  bool joined(uint32_t worker) const { return slots_[worker].joined; }
  uint64_t incarnation(uint32_t worker) const { return slots_[worker].incarnation; }

  // The whole state as bytes with format version, plan fingerprint fields and
  // checksum; Load restores it into a segment created with the same options.
  // DATA_LOSS, INVALID_ARGUMENT (another segment, rule or length), FAILED_PRECONDITION (a format that
  // this program does not read).
  std::string Save() const;
  // The same without the checksum, which the writer's TakeSealed sets behind it.
  void Save(ByteWriter* writer) const;
  absl::Status Load(std::string_view bytes);

  // Bytes of memory that a segment with these options takes at most.
  static uint64_t MemoryBytes(const SegmentOptions& options);

  // Feeds one recorded event in: Admit (so that a record is never trusted) and
  // Apply, the reply thrown away.
  absl::Status Replay(const Event& event);

 private:
  static constexpr uint64_t kNever = ~uint64_t{0};

  struct Slot {
    bool joined = false;
    uint64_t incarnation = 0;
    uint64_t sequence = 0;      // last one consumed
    uint64_t version_sent = 0;  // version of the last reply
    bool has_held = false;
    std::vector<float> held;    // x_i
    // The version says not for certain what the worker holds: it was sent other
    // parameters of version_sent too, or `held` lacks a part of the rule's reply.
    bool unsure = false;
    std::vector<uint8_t> pending;  // synchronous: the open round's encoded push
    uint8_t pending_codec = 0;
    bool has_pending = false;
    bool in_round = false;             // a member of the open round
    uint64_t first_round = kNever;     // of the view; kNever: not in it
    uint64_t contributed_before = 0;   // one beyond the last round it pushed to or skipped
    uint64_t absent_before = 0;        // takes no part in rounds before this one
    uint64_t late_sequence = 0;        // of its last late push
    // Rules with a worker half: theta holds this incarnation's momentum, at the rate of
    // this ticket. Outlives the lease: the worker keeps its v, theta its share.
    bool has_share = false;
    uint64_t share_ticket = 0;
  };

  Segment(const SegmentOptions& options, std::unique_ptr<UpdateRule> rule);

  Outcome Push(const Event& event, Reply* reply);
  // Both distances of what the slot holds, just before an update.
  void MeasureGap(const UpdateContext& context, const Slot& slot, Outcome* outcome) const;
  bool MomentumAtWorkers() const;
  // What of a push or repair stands against the steps of the rate.
  absl::Status AdmitAtStep(const Event& event) const;
  Outcome Repair(const Event& event, Reply* reply);
  void ApplyShare(const Event& event, Slot* slot);

  absl::Status AdmitToRound(Event* event) const;
  // Whether the open round waits for the slot.
  bool Awaited(const Slot& slot) const {
    return slot.in_round && slot.contributed_before <= open_round_ && slot.absent_before <= open_round_;
  }
  // To the open round.
  bool ContributedNow(const Slot& slot) const {
    return slot.in_round && slot.contributed_before > open_round_;
  }
  // Behind the open one, the first in which a member of the view takes part; kNever: none does.
  uint64_t NextRoundWithMembers() const;
  absl::Status CheckView(const Event& event) const;
  absl::Status CheckPhaseChange(const Event& event) const;
  Outcome NotePush(const Event& event);
  Outcome NoteSkip(const Event& event);
  Outcome NoteLate(const Event& event, Reply* reply);
  Outcome ChangeView(const Event& event);
  Outcome CloseRound();
  // One run of the open round: adds up what the members have contributed, in slot order.
  void SumContributions(const Block& block, const CodecKey& key, absl::Span<const uint8_t*> cursors,
                        float* sum) const;
  void OpenRound(uint64_t round);
  void ChangePhase(Phase phase);
  // Of the round that closes, where it is to be measured.
  void Measure();
  bool Frozen() const { return phase_ == Phase::kFrozen; }
  // The way from the version a worker holds to the newest; for the frozen phase.
  void WriteRound(const Event& event, Reply* reply, Outcome* outcome);

  // Replies (segment_replies.cc).
  // One on its way out, block by block.
  struct Outgoing {
    const Codec* codec;
    Slot* slot;         // null for readers
    uint8_t* out;       // where the next block goes; null: no reply is wanted
    CodecKey key = {};
    bool whole = true;  // false: a difference could not be coded
  };
  const Codec& ReplyCodec(const Event& event, const Slot& slot) const;
  // `version`: of the parameters that it brings.
  Outgoing BeginReply(const Codec& codec, uint64_t version, uint32_t worker, Slot* slot,
                      const Reply* reply) const;
  // Where the rule is to write the next block's parameters.
  float* BlockTarget(const Block& block, const Outgoing& outgoing) const;
  // Writes a block of the reply and keeps what the worker will hold. `values`, of
  // BlockTarget, are lost.
  void EmitBlock(size_t block, float* values, Outgoing* outgoing);
  void EndReply(const Outgoing& outgoing, Reply* reply);
  // Writes what the mode says; slot null for readers.
  void WriteParameters(const UpdateContext& context, ReadMode mode, const Codec& codec, Slot* slot,
                       Reply* reply);

  // The event's slot, joined by the event's incarnation where it was not already.
  Slot& JoinSlot(const Event& event);
  void FreeSlot(uint32_t worker);
  Outcome State(Result result) const;
  // The key of a push that was admitted.
  CodecKey KeyOf(const Event& push) const;
  float Eta() const { return options_.schedule.At(clock_); }

  SegmentOptions options_;
  CodecSet codecs_;
  std::unique_ptr<UpdateRule> rule_;
  std::vector<uint64_t> steps_;  // rules with a worker half: where the rate jumps
  std::vector<float> theta_;
  std::vector<Slot> slots_;
  bool initialised_ = false;
  uint64_t version_ = 0;
  uint64_t clock_ = 0;
  SqueezeRule* squeeze_;  // rule_, where it is one
  uint64_t open_round_ = 0;
  uint32_t round_members_ = 0;
  uint64_t view_ = 0;
  Phase phase_ = Phase::kFull;
  // Announced with kPhaseChange: from this round on, where one is.
  std::optional<Phase> next_phase_;
  uint64_t next_phase_round_ = 0;
  uint64_t announced_round_ = 0;
  uint64_t phase_round_ = 0;  // the first of the phase it is in
  RoundMeasure measure_;
  // Frozen: whether the last round had a result; its bytes (none where all tensors here are
  // dead), its rate, and whether it was a fold, after which workers take the parameters anew.
  bool has_result_ = false;
  std::vector<uint8_t> result_;
  float result_eta_ = 0;
  bool result_folded_ = false;
  // By block: where its held values begin in Slot::held, or kNotHeld.
  static constexpr uint64_t kNotHeld = ~uint64_t{0};
  std::vector<uint64_t> held_offsets_;
  uint64_t held_elements_ = 0;
};

}  // namespace foreshard
