// The mean of a worker's running statistics between two pushes of them: they go out
// every training.statistics_interval_steps steps only.
//
//   StatisticsAverage average(schema.statistic_elements(), interval);
//   average.Add(computer.statistics());        // every step
//   if (average.Take()) Push(average.values());
#pragma once

#include <cstdint>
#include <vector>

namespace foreshard {

// Thread-compatible.
class StatisticsAverage {
 public:
  StatisticsAverage(uint64_t elements, uint32_t interval_steps)
      : interval_steps_(interval_steps), sum_(elements), mean_(elements) {}

  // Adds a step's statistics, `elements` long; null: the step has none.
  void Add(const float* statistics) {
    if (statistics == nullptr || sum_.empty()) return;
    for (size_t k = 0; k < sum_.size(); ++k) sum_[k] += statistics[k];
    ++steps_;
  }

  // True where an interval is full (or more than full): the mean of its steps is in
  // values() until the next true, and another interval begins.
  bool Take() {
    if (steps_ < interval_steps_ || sum_.empty()) return false;
    const float share = 1.0f / static_cast<float>(steps_);
    for (size_t k = 0; k < sum_.size(); ++k) {
      mean_[k] = share * sum_[k];
      sum_[k] = 0;
    }
    steps_ = 0;
    return true;
  }

  const float* values() const { return mean_.data(); }

 private:
  const uint32_t interval_steps_;
  uint32_t steps_ = 0;
  std::vector<float> sum_, mean_;
};

}  // namespace foreshard
