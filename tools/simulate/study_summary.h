// A study's results by variant and fleet, over the seeds.
//
//   for (const CellSummary& summary : SummariseCells(study, entries)) {
//     Print(study.label(summary.cell), summary.accuracy.mean, summary.accuracy.deviation);
//   }
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/simulate/study.h"
#include "tools/simulate/study_results.h"

namespace foreshard {

// Of a few values; all NaN where there are none.
struct Spread {
  size_t count = 0;
  double mean = 0;
  double deviation = 0;  // of the sample (n - 1); 0 for one value
  double low = 0, high = 0;
};

Spread SpreadOf(const std::vector<double>& values);

struct CellSummary {
  size_t cell = 0;
  std::vector<const StudyEntry*> entries;  // by seed
  size_t diverged = 0;
  Spread accuracy, best_accuracy;  // 0..1
  Spread points_lost;
  Spread lag_mean, gap_mean, surprise_mean;
  uint64_t lag_p99 = 0;  // the largest
  // Of those that did not diverge; of none with a network (StudyEntry).
  Spread virtual_seconds, speedup, ideal_speedup;
  double discarded_part = 0;  // of the pushes

  float learning_rate() const { return entries.front()->learning_rate; }
};

// Of cells with at least one run done, in their order. Points into `entries`.
std::vector<CellSummary> SummariseCells(const Study& study,
                                        const std::vector<StudyEntry>& entries);

// "N = 8, equal machines".
std::string FleetName(const StudyCell& cell);

}  // namespace foreshard
