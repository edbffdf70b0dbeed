#include "tools/simulate/study_summary.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"

namespace foreshard {

Spread SpreadOf(const std::vector<double>& values) {
  Spread spread = {.count = values.size()};
  if (values.empty()) {
    spread.mean = spread.deviation = spread.low = spread.high =
        std::numeric_limits<double>::quiet_NaN();
    return spread;
  }
  for (double value : values) spread.mean += value;
  spread.mean /= static_cast<double>(values.size());
  double squares = 0;
  for (double value : values) squares += (value - spread.mean) * (value - spread.mean);
  if (values.size() > 1) spread.deviation = std::sqrt(squares / static_cast<double>(values.size() - 1));
  spread.low = *std::min_element(values.begin(), values.end());
  spread.high = *std::max_element(values.begin(), values.end());
  return spread;
}

std::vector<CellSummary> SummariseCells(const Study& study,
                                        const std::vector<StudyEntry>& entries) {
  std::vector<CellSummary> summaries;
  for (size_t cell = 0; cell < study.cells().size(); ++cell) {
    CellSummary summary = {.cell = cell};
    for (const StudyEntry& entry : entries) {
      if (entry.cell == cell) summary.entries.push_back(&entry);
    }
    if (summary.entries.empty()) continue;
    const auto over = [&](const std::function<double(const StudyEntry&)>& value) {
      std::vector<double> values;
      for (const StudyEntry* entry : summary.entries) values.push_back(value(*entry));
      return SpreadOf(values);
    };
    const auto over_results = [&](double SimulationResult::*value) {
      return over([&](const StudyEntry& entry) { return entry.result->*value; });
    };
    summary.accuracy = over_results(&SimulationResult::final_accuracy);
    summary.best_accuracy = over_results(&SimulationResult::best_accuracy);
    summary.lag_mean = over_results(&SimulationResult::lag_mean);
    summary.gap_mean = over_results(&SimulationResult::gap_mean);
    summary.surprise_mean = over_results(&SimulationResult::surprise_mean);
    std::vector<double> lost, seconds, speedups, ideals;
    uint64_t pushes = 0, discarded = 0;
    for (const StudyEntry* entry : summary.entries) {
      if (entry->points_lost.has_value()) lost.push_back(*entry->points_lost);
      summary.diverged += entry->result->diverged;
      if (!entry->result->diverged) {
        seconds.push_back(entry->result->virtual_seconds);
        if (entry->speedup.has_value()) speedups.push_back(*entry->speedup);
        if (entry->ideal_speedup.has_value()) ideals.push_back(*entry->ideal_speedup);
      }
      summary.lag_p99 = std::max(summary.lag_p99, entry->result->lag_p99);
      discarded += entry->result->discarded;
      pushes += entry->result->discarded + entry->result->updates;
    }
    summary.points_lost = SpreadOf(lost);
    summary.virtual_seconds = SpreadOf(seconds);
    summary.speedup = SpreadOf(speedups);
    summary.ideal_speedup = SpreadOf(ideals);
    if (pushes > 0) summary.discarded_part = static_cast<double>(discarded) / static_cast<double>(pushes);
    summaries.push_back(std::move(summary));
  }
  return summaries;
}

std::string FleetName(const StudyCell& cell) {
  return absl::StrCat("N = ", cell.workers, ", ",
                      cell.machines == "trace" ? "machines of the trace"
                                               : absl::StrCat(cell.machines, " machines"));
}

}  // namespace foreshard
