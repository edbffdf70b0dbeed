// The daemon's clock for leases and durations; the deterministic core has none.
#pragma once

#include <chrono>
#include <cstdint>

namespace foreshard {

inline int64_t MonotonicNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline double SecondsBetween(int64_t begin_nanoseconds, int64_t end_nanoseconds) {
  return static_cast<double>(end_nanoseconds - begin_nanoseconds) * 1e-9;
}

}  // namespace foreshard
