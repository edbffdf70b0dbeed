// Computes a recorded asynchronous run once more, without its daemons: what every server
// applied, in the order in which it did, with every gradient computed anew at the
// parameters that its worker held.
//
//   std::vector<std::vector<Event>> arrivals = {LoadArrivals("arrivals-0.csv").value(), ...};
//   auto replayed = ReplayArrivals(job, *train, arrivals).value();
//   // replayed.parameters: what the servers ended with, bit for bit
//
// Each segment has an order of its own. A worker's push needs the replies to its push
// before, from all segments, so the replay goes from segment to segment and applies
// what is ready. It uses the daemons' own Segment, PushEncoder and GradientComputer;
// same bits need the same kind of CPU and libraries.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "foreshard/v1/job.pb.h"
#include "server/event.h"
#include "worker/data/dataset.h"

namespace foreshard {

struct ReplayOptions {
  // Numbers of updates, rising, after which the parameters are kept.
  std::vector<uint64_t> cuts;
};

struct ReplayResult {
  // Master parameters, whole vector, running statistics last.
  std::vector<float> parameters;
  // By cut: each segment after so many updates of its own, running statistics as they
  // were about then. Cuts that the run did not reach are left out.
  std::vector<std::vector<float>> cuts;
  uint64_t events = 0;  // of segments
  uint64_t steps = 0;   // gradients computed, finite or not
  uint64_t skipped = 0;
  // Of the first segment: pushes applied, discarded, and said again.
  uint64_t updates = 0, discarded = 0, resent = 0;
  std::vector<uint64_t> lag_counts;  // of its updates, by lag
  double lag_mean = 0;               // over all trainable segments, by elements
};

// `job` is loaded; `arrivals` as LoadArrivals gives them, one a shard.
// INVALID_ARGUMENT: arrivals that are not of this job, or that contradict what the
// replay finds; a missing event, or one that waits for a reply that never comes. Each
// names shard and event. UNIMPLEMENTED: events or rules whose payloads cannot be
// computed anew, with the reason.
absl::StatusOr<ReplayResult> ReplayArrivals(const v1::JobSpec& job, const Dataset& train,
                                            absl::Span<const std::vector<Event>> arrivals,
                                            const ReplayOptions& options = {});

}  // namespace foreshard
