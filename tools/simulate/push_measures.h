// Lag, gap (arXiv 1907.11612, section 3) and surprise of a simulated run: by segment, and
// over whole pushes.
//
//   PushMeasures measures(plan, workers);
//   measures.Begin(worker);
//   measures.Note(worker, segment, outcome);   // as each segment applies its part
//   measures.End(worker);                      // once all have answered
//   measures.Fill(&result);
#pragma once

#include <cstdint>
#include <vector>

#include "common/core/shard_plan.h"
#include "server/segment.h"
#include "tools/simulate/simulation.h"

namespace foreshard {

// Thread-compatible. One push of a worker at a time; statistics segments are left out.
class PushMeasures {
 public:
  // `plan` outlives this object.
  PushMeasures(const ShardPlan& plan, uint32_t workers);

  void Begin(uint32_t worker) { pushes_[worker] = {}; }
  void Note(uint32_t worker, uint32_t segment, const Outcome& outcome);
  // True where some segment applied the push.
  bool End(uint32_t worker);

  // Means, counts and quantiles; all of the run's pushes have ended.
  void Fill(SimulationResult* result) const;

 private:
  // One push, so far.
  struct Push {
    double elements = 0, lag_elements = 0;
    double gap_elements = 0, gap_squares = 0, surprise_squares = 0;
    uint64_t first_lag = 0;
    bool applied = false, discarded = false;
  };
  struct SegmentSums {
    uint64_t pushes = 0, gaps = 0;
    double lag = 0, gap = 0, surprise = 0;
  };

  const ShardPlan& plan_;
  std::vector<Push> pushes_;           // by worker
  std::vector<SegmentSums> segments_;  // by segment
  std::vector<uint64_t> lag_counts_;
  LogHistogram gaps_;
  uint64_t count_ = 0, discarded_ = 0, lag_max_ = 0;
  double lag_sum_ = 0, gap_sum_ = 0, surprise_sum_ = 0;
};

}  // namespace foreshard
