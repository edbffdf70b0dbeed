// Timing of one figure (internal to tools/bench).
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/bench/bench.h"

namespace foreshard::bench {

// A path for files of this process in the folder for temporary files, which goes with all that is
// in it. Nothing is made there.
class ScratchFolder {
 public:
  ScratchFolder() : path_(std::filesystem::temp_directory_path() / absl::StrCat("foreshard-bench.", getpid())) {}
  ~ScratchFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  std::string path() const { return path_.string(); }

 private:
  const std::filesystem::path path_;
};

inline double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The upper one of two in the middle; not of nothing.
inline double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

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
    best = std::min(best, SecondsSince(start));
  } while (++passes < 2 || Clock::now() < stop);
  return best;
}

// The median seconds of each of several ways to do the same, taken in turns until each has had
// options.seconds, at least three times: what disturbs the machine disturbs all alike.
template <typename Pass>
std::vector<double> MedianSecondsInTurns(const BenchOptions& options, std::vector<Pass>& ways) {
  using Clock = std::chrono::steady_clock;
  const auto stop = Clock::now() + std::chrono::duration<double>(options.seconds * static_cast<double>(ways.size()));
  std::vector<std::vector<double>> seconds(ways.size());
  do {
    for (size_t k = 0; k < ways.size(); ++k) {
      const auto start = Clock::now();
      ways[k]();
      seconds[k].push_back(SecondsSince(start));
    }
  } while (seconds.back().size() < 3 || Clock::now() < stop);
  std::vector<double> medians;
  for (std::vector<double>& all : seconds) medians.push_back(Median(std::move(all)));
  return medians;
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
