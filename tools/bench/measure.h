// Timing of one figure (internal to tools/bench).
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include "tools/bench/bench.h"

namespace foreshard::bench {

// Runs `pass` for options.seconds, at least twice, and returns the seconds of the
// fastest one: what the machine can do when nothing else disturbs it, as STREAM
// reports.
template <typename Pass>
double BestSeconds(const BenchOptions& options, Pass pass) {
  using Clock = std::chrono::steady_clock;
  const auto stop = Clock::now() + std::chrono::duration<double>(options.seconds);
  double best = 1e300;
  int passes = 0;
  do {
    const auto start = Clock::now();
    pass();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  } while (++passes < 2 || Clock::now() < stop);
  return best;
}

// Sets each rate beside STREAM on one thread: the better of `before`, measured at
// the start of the run, and one measured now.
inline void HoldAgainstStream(const BenchOptions& options, double before,
                              std::vector<BenchResult>* results) {
  const double limit = std::max(before, StreamTriad(1, options));
  for (BenchResult& result : *results) {
    result.limit = limit;
    result.ratio = result.value / limit;
  }
}

}  // namespace foreshard::bench
