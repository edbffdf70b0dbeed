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
#include "common/core/schedule.h"
#include "common/core/shard_plan.h"
#include "kernels/codecs/codec.h"
#include "server/event.h"
#include "server/update_rules/update_rule.h"

namespace foreshard {

struct SegmentOptions {
  SegmentPlan plan;
  RuleSettings rule;       // statistics segments use their average instead
  Schedule schedule;
  bool synchronous = false;
  uint32_t members = 0;    // synchronous: the fixed view is slots 0..members-1
  bool keep_all_held = false;   // keep every x_i whole, not only the sampled blocks;
                                // needed for replies that carry differences
  uint32_t sample_stride = 64;  // one block in so many is sampled; 1: exact
  // A push of a larger lag is discarded (Ringmaster ASGD, ICML 2025); none: no push is.
  // Not where the worker's momentum holds the gradient already.
  std::optional<uint64_t> delay_threshold;
  CodecSettings codec;
  uint64_t seed = 0;  // the job's, for codecs that choose at random
};

// Where the reply goes. The caller gives a buffer of EncodedBytes(fp32) length
// at most; the segment says what it wrote.
struct Reply {
  uint8_t* data = nullptr;  // null: no parameters wanted
  uint64_t bytes = 0;       // written
  CodecId codec = CodecId::kNone;
  // What was written is to be added to the parameters of version delta_base, which the
  // worker holds; else it takes their place.
  bool delta = false;
  uint64_t delta_base = 0;
};

enum class Result : uint8_t {
  kApplied, kDuplicate, kDiscarded, kSkipped, kCurrent, kInitialised, kPending
};

struct Outcome {
  Result result = Result::kCurrent;
  uint64_t version = 0;
  uint64_t clock = 0;
  uint64_t lag = 0;  // of an applied or discarded push
  float eta = 0;
  // Over the sampled elements, in fp64; zero where nothing was measured.
  double gap_squares = 0;
  double surprise_squares = 0;
  uint64_t sampled_elements = 0;
  uint32_t members = 0;  // synchronous: of the view

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
  // -eta gamma v_i of every worker i; at a step eta changes in all of them at once,
  // so that each worker brings its v_i, its share, with kLearningRateRepair, by which theta -= (eta_new - eta_i) gamma v_i, eta_i being the
  // rate of that worker's last applied push. kPending: noted, others' are missing, ask
  // again with an empty payload. kCurrent: nothing is missing any more; the clock is at
  // the step and the reply the parameters. The clock never passes a step while a joined
  // slot's share is missing: Admit refuses such a push.

  // The joined slots whose v_i theta holds at a rate from before this step.
  std::vector<uint32_t> MissingShares(uint64_t step) const;
  // The newest step beyond the clock to which a joined slot has brought its share; 0:
  // nobody waits.
  uint64_t RepairUnderWay() const;

  // Synchronous: true when every member's push of the open round is there, so
  // that kRoundClosed may be applied.
  bool RoundComplete() const;
  uint64_t open_round() const { return open_round_; }

  bool initialised() const { return initialised_; }
  uint64_t version() const { return version_; }
  uint64_t clock() const { return clock_; }
  uint32_t phase() const { return phase_; }
  const SegmentPlan& plan() const { return options_.plan; }
  absl::Span<const float> theta() const { return theta_; }
  const UpdateRule& rule() const { return *rule_; }
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
  // DATA_LOSS, INVALID_ARGUMENT (another segment, rule or length).
  std::string Save() const;
  absl::Status Load(std::string_view bytes);

  // Bytes of memory that a segment with these options takes at most.
  static uint64_t MemoryBytes(const SegmentOptions& options);

  // Feeds one recorded event in: Admit (so that a record is never trusted) and
  // Apply, the reply thrown away.
  absl::Status Replay(const Event& event);

 private:
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
    bool absent = false;  // synchronous: skipped the open round
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
  Outcome NotePush(const Event& event);
  Outcome CloseRound();

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
  std::vector<float> reply_error_;  // e-bar; empty until a fold brings one
  bool initialised_ = false;
  uint64_t version_ = 0;
  uint64_t clock_ = 0;
  uint64_t open_round_ = 0;
  uint32_t phase_ = 0;
  // By block: where its held values begin in Slot::held, or kNotHeld.
  static constexpr uint64_t kNotHeld = ~uint64_t{0};
  std::vector<uint64_t> held_offsets_;
  uint64_t held_elements_ = 0;
};

}  // namespace foreshard
