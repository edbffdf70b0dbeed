#include "tools/simulate/push_measures.h"

#include <algorithm>
#include <cmath>

#include "common/net/fleet_figures.h"

namespace foreshard {
namespace {

constexpr uint64_t kLagCounts = 1026;  // as the servers count; the last: beyond

double MeanOf(double sum, uint64_t count) {
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

}  // namespace

PushMeasures::PushMeasures(const ShardPlan& plan, uint32_t workers)
    : plan_(plan), pushes_(workers), segments_(plan.segments().size()), lag_counts_(kLagCounts) {}

void PushMeasures::Note(uint32_t worker, uint32_t segment, const Outcome& outcome) {
  if (plan_.segments()[segment].kind != TensorKind::kTrainable) return;
  Push& push = pushes_[worker];
  push.discarded |= outcome.result == Result::kDiscarded;
  if (outcome.result != Result::kApplied && outcome.result != Result::kPending) return;
  const auto elements = static_cast<double>(plan_.segments()[segment].elements);
  const auto lag = static_cast<double>(outcome.lag);
  if (!push.applied) push.first_lag = outcome.lag;
  push.applied = true;
  push.elements += elements;
  push.lag_elements += elements * lag;
  lag_max_ = std::max(lag_max_, outcome.lag);
  SegmentSums& sums = segments_[segment];
  ++sums.pushes;
  sums.lag += lag;
  if (outcome.sampled_elements == 0) return;
  const double gap = outcome.gap(), surprise = outcome.surprise();
  ++sums.gaps;
  sums.gap += gap;
  sums.surprise += surprise;
  push.gap_elements += elements;
  push.gap_squares += elements * gap * gap;
  push.surprise_squares += elements * surprise * surprise;
}

bool PushMeasures::End(uint32_t worker) {
  const Push& push = pushes_[worker];
  discarded_ += push.discarded;
  if (!push.applied) return false;
  ++count_;
  lag_sum_ += push.lag_elements / push.elements;
  ++lag_counts_[std::min(push.first_lag, kLagCounts - 1)];
  const double share = push.gap_elements > 0 ? 1 / push.gap_elements : 0;
  const double gap = std::sqrt(share * push.gap_squares);
  gap_sum_ += gap;
  gaps_.Add(gap);
  surprise_sum_ += std::sqrt(share * push.surprise_squares);
  return true;
}

void PushMeasures::Fill(SimulationResult* result) const {
  result->discarded = discarded_;
  result->lag_counts = lag_counts_;
  result->lag_mean = MeanOf(lag_sum_, count_);
  result->lag_max = lag_max_;
  result->lag_p99 = StalenessQuantile(lag_counts_, 0.99, lag_max_);
  result->gap_mean = MeanOf(gap_sum_, count_);
  result->surprise_mean = MeanOf(surprise_sum_, count_);
  result->gaps = gaps_;
  result->segments.clear();
  for (const SegmentSums& sums : segments_) {
    result->segments.push_back({.lag_mean = MeanOf(sums.lag, sums.pushes),
                                .gap_mean = MeanOf(sums.gap, sums.gaps),
                                .surprise_mean = MeanOf(sums.surprise, sums.gaps)});
  }
}

void LogHistogram::Add(double value) {
  int bin = 0;
  if (value >= kLowest) {
    // Far beyond the last bin a double has no int.
    bin = 1 + static_cast<int>(std::min(std::floor(8 * std::log10(value / kLowest)), 1e6));
  }
  ++counts[std::clamp(bin, 0, kBins)];
}

double LogHistogram::LowerEdge(int bin) {
  return bin <= 0 ? 0 : kLowest * std::pow(10.0, (bin - 1) / 8.0);
}

}  // namespace foreshard
