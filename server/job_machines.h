// From a JobSpec (loaded) to the options of its state machines, so that daemon,
// simulator and replay make the same ones.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "common/core/shard_plan.h"
#include "foreshard/v1/job.pb.h"
#include "server/dealer.h"
#include "server/phase_control.h"
#include "server/segment.h"

namespace foreshard {

// Statistics segments never have rounds: they are averaged as they come, pushed every
// so many steps only, and no gradient depends on them.
SegmentOptions MakeSegmentOptions(const v1::JobSpec& job, const SegmentPlan& plan,
                                  uint64_t batches_per_epoch);

// INVALID_ARGUMENT, with the reason, where the rule's variance would be frozen too early: while
// the learning rate still rises, or an automatic freeze has no rounds to look at.
absl::Status CheckFreeze(const v1::JobSpec& job, uint64_t batches_per_epoch);

// Of rules that squeeze; else none.
std::optional<PhaseControlOptions> MakePhaseControlOptions(const v1::JobSpec& job,
                                                           uint64_t batches_per_epoch);

// Batches that a worker may hold.
uint32_t MaxOutstanding(const v1::JobSpec& job);

// How far the open rounds of a run's segments can be apart, on whichever servers: members that stay are in one round at
// all of them, the one that some have closed and others not; where members come and go, a segment whose members are
// all gone goes on with the round of the next, which was drawn up (Shard::kMostAheadRounds).
uint64_t MostRoundsApart(const v1::JobSpec& job);

DealerOptions MakeDealerOptions(const v1::JobSpec& job, uint64_t batches_per_epoch);

}  // namespace foreshard
