// One start of a worker, as tools/simulate/replay_arrivals.h computes it anew: what it
// held, what it made of that, and how far the record has been followed. Internal.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/core/bytes.h"
#include "common/core/shard_plan.h"
#include "server/event.h"
#include "worker/gradient.h"
#include "worker/push_encoder.h"
#include "worker/statistics_average.h"

namespace foreshard {

// A push, a skip or a discard.
bool ConsumesTicket(EventKind kind);
// Whether a reply to this event is one that its worker may go on with.
bool SendsToWorker(EventKind kind);

struct ReplayWorker {
  // A reply of a segment that the worker may hold: it was sent after the worker's push
  // of this sequence.
  struct Sent {
    uint64_t sequence = 0;
    uint64_t version = 0;
    uint64_t clock = 0;
    std::vector<float> values;
  };

  ReplayWorker(const PushEncoderOptions& encoder, const ShardPlan& plan, uint64_t statistics,
               uint32_t statistics_interval);

  // The reply that step `sequence` was computed at; nullptr: not there yet.
  const Sent* HeldAt(uint32_t segment, uint64_t sequence) const;
  // Whether events of this worker come before that step's in the segment and are not
  // replayed yet.
  bool Behind(uint32_t segment, uint64_t sequence) const {
    return sequence <= events[segment].size() && done[segment] < before[segment][sequence - 1];
  }
  // Makes what HeldAt says, of each trainable segment, the parameters.
  void Hold(uint64_t sequence);
  // What the step computed last pushes to each segment; payload stays empty where the
  // gradient is not finite. `place` is the push's in all of the trainable ones.
  void MakePayloads(uint64_t ticket, const PushPlace& place, bool finite,
                    GradientComputer& computer);

  // What SegmentExchange sends with REPAIR: the momentum, once for each step of the rate.
  ByteSpan MomentumToBring(const Event& event) const;
  // As SegmentExchange does when it reads the answer; `clock` is the segment's.
  void NoteShare(const Event& event, uint64_t clock);

  const ShardPlan& plan;
  PushEncoder encoder;
  StatisticsAverage statistics;
  const uint64_t trainable_elements;
  std::vector<float> parameters;
  uint64_t steps = 0;  // computed
  uint64_t statistics_pushes = 0;
  // By segment. What consumes a ticket, by sequence from 1, and how many of the worker's
  // events come before it; how many of those have been replayed; replies; the highest
  // ticket told.
  std::vector<std::vector<const Event*>> events;
  std::vector<std::vector<uint64_t>> before;
  std::vector<uint64_t> done;
  std::vector<std::vector<Sent>> sent;
  std::vector<uint64_t> clock;
  // Rules with a worker half: at which ticket's rate the worker takes its momentum to be
  // counted, now and before its last push; none: it has not pushed.
  std::vector<std::optional<uint64_t>> share, share_before;
  // Of the step computed last, and whether it still has to arrive.
  std::vector<std::vector<uint8_t>> payload;
  std::vector<bool> waits;
};

}  // namespace foreshard
