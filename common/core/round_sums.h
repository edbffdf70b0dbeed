// What a measured round of a rule that squeezes came to, over all segments of all servers.
#pragma once

#include <cmath>
#include <cstdint>

namespace foreshard {

struct RoundSums {
  uint64_t round = 0;
  double variance_sum = 0;        // first phase: of the variance, as it would be frozen
  double error_ratio = 0;         // second phase: norm of a worker's error over the momentum's
  double server_error_ratio = 0;  // second phase: the same of all servers' errors
};

// Adds up what the segments of servers had come to.
struct RoundTotals {
  uint32_t segments = 0;
  double variance_sum = 0;        // first phase
  double error_squares = 0;       // second phase: of servers' errors
  double momentum_squares = 0;    // second phase

  void Add(double variance, double error, double momentum) {
    ++segments;
    variance_sum += variance;
    error_squares += error;
    momentum_squares += momentum;
  }
  // Whether there are errors to speak of: those of the second phase.
  bool compressed() const { return momentum_squares > 0; }
  // Norm of the servers' errors over the momentum's; 0 in the first phase.
  double ErrorRatio() const { return compressed() ? std::sqrt(error_squares / momentum_squares) : 0; }
  // The workers' error ratio is left at 0.
  RoundSums Sums(uint64_t round) const {
    return {.round = round, .variance_sum = variance_sum, .server_error_ratio = ErrorRatio()};
  }
};

}  // namespace foreshard
