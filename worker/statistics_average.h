// The mean of a worker's running statistics between two pushes of them: they go out
// every training.statistics_interval_steps steps only.
//
//   StatisticsAverage average(schema.statistic_elements(), interval);
//   if (average.Add(computer.statistics())) Push(average.values());
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace foreshard {

// Thread-compatible.
class StatisticsAverage {
 public:
  StatisticsAverage(uint64_t elements, uint32_t interval_steps)
      : interval_steps_(interval_steps), values_(elements) {}

  // Adds a step's statistics, `elements` long (null: the step has none). True where
  // the mean of an interval is due; it stays in values() until the next Add.
  bool Add(const float* statistics) {
    if (statistics == nullptr || values_.empty()) return false;
    if (steps_ == interval_steps_) {
      std::fill(values_.begin(), values_.end(), 0.0f);
      steps_ = 0;
    }
    for (size_t k = 0; k < values_.size(); ++k) values_[k] += statistics[k];
    if (++steps_ < interval_steps_) return false;
    const float share = 1.0f / static_cast<float>(steps_);
    for (float& value : values_) value *= share;
    return true;
  }

  const float* values() const { return values_.data(); }

 private:
  const uint32_t interval_steps_;
  uint32_t steps_ = 0;
  std::vector<float> values_;
};

}  // namespace foreshard
