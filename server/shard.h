// The part of the parameter vector that this server owns: the segments, one mutex
// each, and what must be agreed before there are any. Knows no gRPC.
//
//   Shard shard(job, 0, &sink);
//   RETURN_IF_ERROR(shard.Agree(contract, job.name(), model, train_examples));
//   Shard::Cell* cell = shard.FindCell(segment_id);
//   Event event = {.kind = EventKind::kPush, ...};
//   auto performed = shard.Perform(*cell, event, &reply);
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/core/schema.h"
#include "common/core/shard_plan.h"
#include "common/net/protocol.h"
#include "foreshard/v1/exchange.pb.h"
#include "foreshard/v1/job.pb.h"
#include "server/event_sink.h"
#include "server/segment.h"

namespace foreshard {

// Somebody who waits, without a thread, for a round to close.
class RoundWaiter {
 public:
  virtual ~RoundWaiter() = default;
  uint64_t round = 0;
  uint32_t worker = 0;
  // It takes no part before: its round may be beyond the open one.
  bool absent = false;
  int64_t deadline = 0;  // monotonic nanoseconds
};

// Thread-safe.
class Shard {
 public:
  // What a segment's pushes came to since the start.
  struct Measures {
    uint64_t pushes = 0, stale = 0, lag_sum = 0, lag_max = 0, gap_count = 0;
    double gap_sum = 0, surprise_sum = 0;
    void Note(const Outcome& outcome);
  };

  struct Cell {
    absl::Mutex mutex;
    std::unique_ptr<Segment> segment ABSL_GUARDED_BY(mutex);
    // Synchronous: who waits for the open round, and since when it is open.
    std::vector<RoundWaiter*> waiters ABSL_GUARDED_BY(mutex);
    int64_t round_opened ABSL_GUARDED_BY(mutex) = 0;
    Measures measures ABSL_GUARDED_BY(mutex);
    // Constant.
    const SegmentPlan* plan = nullptr;
    const Segment* checks = nullptr;  // for CheckPayload, which reads no state
    bool trainable = false;
    bool synchronous = false;
    uint8_t reply_codec = 0;   // the job's, a CodecId
    uint64_t reply_bytes = 0;  // at most
  };

  // What the first Hello settled; constant from then on.
  struct Agreement {
    Schema schema;
    ShardPlan plan;
    v1::Contract contract;
    uint64_t train_examples = 0;
    uint64_t batches_per_epoch = 0;
    uint64_t tickets = 0;        // beyond the highest
    uint64_t memory_bytes = 0;
    uint32_t first_segment = 0;  // of this shard; their ids are contiguous
    std::vector<std::unique_ptr<Cell>> cells;
  };

  struct Performed {
    Outcome outcome;
    EventKind kind = EventKind::kRead;  // what Admit made of it
    double apply_seconds = 0;
    // Synchronous: the event completed its round.
    bool round_closed = false;
    double round_seconds = 0;
    // Whose round is over: they are the caller's to resume.
    std::vector<RoundWaiter*> released;
    // A repair that is pending: whose momentum is missing.
    std::vector<uint32_t> missing_workers;
  };

  // `job` is loaded and outlives this; `sink` too, and may be null.
  Shard(const v1::JobSpec& job, uint32_t shard, EventSink* sink, const ProtocolRange& speaks = {});

  // What every caller must match. The first brings the schema, by which segments
  // are made, and of what the data must agree in (0: nothing is said) the first who says it since this
  // server's start decides. FAILED_PRECONDITION names what differs (the field, where the caller's
  // job is given as text), or how much memory is missing.
  absl::Status Agree(const v1::Contract& contract, const std::string& job_name,
                     const v1::ModelSchema& model, uint64_t train_examples,
                     const std::string& job_text = "", uint64_t data_identity = 0);

  // Called by the Agree that settles all, before anybody else can see it; an error refuses the
  // caller, and the next one is as the first. To be set before there are callers.
  void set_agreed(std::function<absl::Status(const Agreement&)> agreed) { agreed_ = std::move(agreed); }

  // nullptr until the first Agree.
  const Agreement* agreement() const { return agreement_.load(std::memory_order_acquire); }

  // INVALID_ARGUMENT for a segment that is not of this shard.
  absl::StatusOr<Cell*> FindCell(uint32_t segment) const;

  // Admits the event, applies it and, where it changes state, numbers and records it.
  // What completes a round closes it, and the next one where all its members are absent. Errors are those of Segment::Admit.
  // Payloads must have passed CheckPayload.
  absl::StatusOr<Performed> Perform(Cell& cell, Event event, Reply* reply);

  // Performs kExpire or kLeave on every segment; in rounds, who leaves is absent from now
  // on. Returns whom that releases.
  std::vector<RoundWaiter*> Release(EventKind kind, uint32_t worker, uint64_t incarnation);
  // The members of rounds (AppendMember) from now on, and the newest change of phase;
  // segments that know the view keep it. Adds whom that releases, also where it fails.
  // INVALID_ARGUMENT: members that cannot be. FAILED_PRECONDITION: too late for the phase.
  struct View {
    uint64_t number = 0;
    std::string members;
    Phase phase = Phase::kFull;
    uint64_t phase_round = 0;  // the first in that phase; 0: none was announced
  };
  absl::Status ChangeView(const View& view, std::vector<RoundWaiter*>* released);
  // Rounds that have been open for so long and lack some members go on without them.
  std::vector<RoundWaiter*> CloseWithoutStragglers(int64_t now, double seconds, uint64_t* absences);

  // Synchronous. INVALID_ARGUMENT: nobody of this job can speak of a round so far beyond the segment's open
  // one, or, of a whole server, beyond the open round of the segment that is furthest behind.
  //
  // The book of rounds (server/round_book.h) deals a member at most MaxOutstanding batches, so draws up no
  // more rounds beyond the one that a member is at; a joiner takes part two later, a phase three. A member is at one
  // round in all segments, and goes on when all have closed it or told it of a later one, which is again a round
  // that was drawn up: two segments are no further apart than those. A server that was away has what it has
  // acknowledged, and is as far as its workers, who waited for it. Only one that has lost what came after its
  // checkpoint can be far behind, by what its segments did while that was written: `after_loss`.
  static constexpr uint64_t kMostAheadRounds = 1024;
  static constexpr uint64_t kMostAheadRoundsAfterLoss = 1 << 20;
  absl::Status CheckRound(Cell& cell, uint64_t round, bool after_loss) const;
  absl::Status CheckRound(uint64_t round, bool after_loss) const;

  // Parks a waiter until its round closes, by which it comes back from Perform.
  // False: the round is closed. RESOURCE_EXHAUSTED: many wait, and too many of this worker's.
  absl::StatusOr<bool> Park(Cell& cell, RoundWaiter* waiter);
  // True where the waiter was still parked, and now is the caller's.
  bool Unpark(Cell& cell, RoundWaiter* waiter);
  // Takes out waiters whose deadline has passed (`all`: every one).
  std::vector<RoundWaiter*> TakeWaiters(Cell& cell, int64_t now, bool all);

  // A number for an event that is not a segment's, and that must be recorded.
  uint64_t NextNumber() { return number_.fetch_add(1) + 1; }
  void Record(const Event& event);
  // Not OK: what was recorded last may be lost, and nothing may be told of it.
  absl::Status recorded() const { return sink_ == nullptr ? absl::OkStatus() : sink_->status(); }

  // For recovery, before there are callers: events are numbered from `number` + 1 on.
  void set_last_number(uint64_t number) { number_.store(number, std::memory_order_relaxed); }
  // Every event that has taken effect has a number up to this one. In one order with what else is
  // sequentially consistent: who says something before asking is seen by whoever gets a later number.
  uint64_t last_number() const { return number_.load(); }
  // Closes rounds that are complete: what a server that was killed has not come to do.
  // Returns how many.
  uint64_t CloseCompleteRounds();

  // A segment as it is at one moment, and the number of the last event that may be in it.
  struct Snapshot {
    uint64_t number = 0;
    std::vector<float> theta;
    std::string state;
    double held_seconds = 0;  // for so long the segment took no push
  };
  // Into the memory of `snapshot`, so that of several segments only the first has to get it while
  // that segment is held; the checksum comes after that.
  void TakeSnapshot(Cell& cell, Snapshot* snapshot) const;

  // Rules that squeeze: norm of the error over that of the momentum, over the shard, in the
  // newest measured round; else 0.
  double ErrorRatio() const;

  std::vector<uint32_t> MissingSegments() const;
  bool synchronous() const { return synchronous_; }
  uint32_t index() const { return shard_; }
  const ProtocolRange& speaks() const { return speaks_; }

 private:
  // Performs an event that no call has brought; adds whom it releases. False: refused.
  bool PerformOwn(Cell& cell, const Event& event, std::vector<RoundWaiter*>* released);
  // A segment's part of ChangeView.
  absl::Status ChangeView(Cell& cell, const View& view, std::vector<RoundWaiter*>* released);
  absl::StatusOr<std::unique_ptr<Agreement>> MakeAgreement(const v1::Contract& contract,
                                                           const v1::ModelSchema& model,
                                                           uint64_t train_examples) const;
  absl::Status CheckMemory(const Schema& schema) const;

  const v1::JobSpec& job_;
  const uint32_t shard_;
  EventSink* const sink_;
  const ProtocolRange speaks_;
  const bool synchronous_;
  const uint64_t job_fingerprint_;
  std::function<absl::Status(const Agreement&)> agreed_;
  absl::Mutex agree_mutex_;
  std::unique_ptr<Agreement> owned_ ABSL_GUARDED_BY(agree_mutex_);
  uint64_t data_identity_ ABSL_GUARDED_BY(agree_mutex_) = 0;  // as callers have said; 0: none has
  std::atomic<const Agreement*> agreement_{nullptr};
  std::atomic<uint64_t> number_{0};
};

}  // namespace foreshard
