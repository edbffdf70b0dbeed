// base to the n-th, the same bits on every machine (internal to server/update_rules).
#pragma once

#include <cstdint>

namespace foreshard {

inline double Power(double base, uint64_t n) {
  double power = 1;
  for (; n > 0; n >>= 1, base *= base) {
    if (n & 1) power *= base;
  }
  return power;
}

}  // namespace foreshard
