// What a measured round of a rule that squeezes came to, over all segments of all servers.
#pragma once

#include <cstdint>

namespace foreshard {

struct RoundSums {
  uint64_t round = 0;
  double variance_sum = 0;        // first phase: of the variance, as it would be frozen
  double error_ratio = 0;         // second phase: norm of a worker's error over the momentum's
  double server_error_ratio = 0;  // second phase: the same of all servers' errors
};

}  // namespace foreshard
