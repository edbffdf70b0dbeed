#include "server/update_rules/yellow_fin_tuner.h"

#include <algorithm>
#include <cmath>

#include "server/update_rules/power.h"

namespace foreshard {
namespace {

constexpr double kForget = 0.999;

void Average(double value, double* mean) { *mean = kForget * *mean + (1 - kForget) * value; }

}  // namespace

double YellowFinRoot(double p) {
  // p x - (1 - x)^3 rises; 60 halvings leave less than the rounding.
  double low = 0, high = 1;
  for (int i = 0; i < 60; ++i) {
    const double x = (low + high) / 2;
    (p * x < (1 - x) * (1 - x) * (1 - x) ? low : high) = x;
  }
  return (low + high) / 2;
}

void YellowFinTuner::Measure(double square, double mean_square) {
  const auto step = static_cast<uint64_t>(numbers_[kSteps]++);
  window_[step % window_.size()] = square;
  const auto end = window_.begin() + std::min<uint64_t>(step + 1, window_.size());
  const double unbias = 1 / (1 - Power(kForget, step + 1));
  Average(std::log(*std::max_element(window_.begin(), end)), &numbers_[kLogMax]);
  Average(std::log(*std::min_element(window_.begin(), end)), &numbers_[kLogMin]);
  const double h_max = std::exp(numbers_[kLogMax] * unbias);
  const double h_min = std::exp(numbers_[kLogMin] * unbias);

  Average(std::sqrt(square), &numbers_[kNorm]);
  Average(square, &numbers_[kSquare]);
  const double mean = numbers_[kSquare] * unbias;
  // Rounding may leave no variance at all, or less.
  const double variance = std::max(mean - mean_square, 1e-12 * mean);
  Average(numbers_[kNorm] / numbers_[kSquare], &numbers_[kDistance]);
  const double distance = numbers_[kDistance] * unbias;

  const double p = distance * distance * h_min * h_min / (2 * variance);
  const double spread = std::sqrt(h_max / h_min);
  const double root = std::max(YellowFinRoot(p), (spread - 1) / (spread + 1));
  numbers_[kMomentum] = root * root;
  numbers_[kRate] = (1 - root) * (1 - root) / h_min;
}

void YellowFinTuner::VisitState(StateVisitor& visitor) {
  visitor.VisitNumbers("tuner", numbers_);
  visitor.VisitNumbers("window", window_);
}

}  // namespace foreshard
