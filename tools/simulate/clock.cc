#include "tools/simulate/clock.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/core/random.h"

namespace foreshard {
namespace {

// Random streams: one for the machines' means, then one a worker.
constexpr uint64_t kMachineStream = 0x6d616368;
constexpr uint64_t kBatchStream = 0x62617463;
// Draws of one sample: the rejection below takes more than two once in 10^5.
constexpr uint64_t kDrawsEach = 64;

// Gamma of mean 1 (Marsaglia and Tsang 2000), a pure function of its arguments.
double GammaOfMeanOne(double shape, uint64_t seed, uint64_t stream, uint64_t sample) {
  // Below shape 1: Gamma(k) = Gamma(k + 1) U^(1/k).
  const double k = shape < 1 ? shape + 1 : shape;
  const double d = k - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  const uint64_t first = sample * kDrawsEach;
  for (uint64_t draw = 0; draw + 2 < kDrawsEach; draw += 2) {
    // Normals and uniforms of one counter come from different streams.
    const double x = RandomNormal(seed, stream, first + draw);
    const double v = std::pow(1 + c * x, 3);
    if (v <= 0) continue;
    const double u = RandomUniform(seed, ~stream, first + draw);
    if (std::log(u) < 0.5 * x * x + d - d * v + d * std::log(v)) {
      const double boost =
          shape < 1 ? std::pow(RandomUniform(seed, ~stream, first + draw + 1), 1 / shape) : 1;
      return d * v * boost / shape;
    }
  }
  return 1;
}

double ShapeOf(double variation) { return variation > 0 ? 1 / (variation * variation) : 0; }

}  // namespace

absl::StatusOr<BatchClock> BatchClock::Gamma(const GammaClockOptions& options) {
  const auto bad = [](const char* what, double value, const char* remedy) {
    return absl::InvalidArgumentError(absl::StrCat("clock: ", what, " is ", value, "; ", remedy));
  };
  if (options.workers == 0) return bad("the number of workers", 0, "give at least 1");
  if (!(options.batch_seconds > 0 && options.batch_seconds <= 1e6)) {
    return bad("batch_seconds", options.batch_seconds, "give a time above 0, at most 1e6 s");
  }
  for (const auto& [what, value] : {std::pair("variation", options.variation),
                                    std::pair("machine_variation", options.machine_variation)}) {
    if (!(value >= 0 && value <= 3)) return bad(what, value, "give 0 (none) to 3");
  }
  BatchClock clock;
  clock.seed_ = options.seed;
  clock.shape_ = ShapeOf(options.variation);
  for (uint32_t worker = 0; worker < options.workers; ++worker) {
    const double factor = options.machine_variation > 0
                              ? GammaOfMeanOne(ShapeOf(options.machine_variation), options.seed,
                                               kMachineStream, worker)
                              : 1;
    clock.means_.push_back(options.batch_seconds * factor);
  }
  return clock;
}

absl::StatusOr<BatchClock> BatchClock::Trace(BatchTrace trace, uint32_t workers) {
  if (workers == 0 || trace.size() < workers) {
    return absl::InvalidArgumentError(absl::StrCat("clock: the trace has ", trace.size(),
                                                   " workers, and the run needs ", workers,
                                                   "; record a run of as many"));
  }
  BatchClock clock;
  trace.resize(workers);
  for (const std::vector<double>& seconds : trace) {
    double sum = 0;
    for (const double value : seconds) sum += value;
    if (!(sum > 0)) return absl::InvalidArgumentError("clock: a worker of the trace has no batches");
    clock.means_.push_back(sum / static_cast<double>(seconds.size()));
  }
  clock.trace_ = std::move(trace);
  return clock;
}

double BatchClock::BatchSeconds(uint32_t worker, uint64_t step) const {
  if (!trace_.empty()) return trace_[worker][step % trace_[worker].size()];
  if (shape_ == 0) return means_[worker];
  return means_[worker] * GammaOfMeanOne(shape_, seed_, kBatchStream + worker, step);
}

double SynchronousSeconds(const BatchClock& clock, uint64_t rounds) {
  double total = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    double slowest = 0;
    for (uint32_t worker = 0; worker < clock.workers(); ++worker) {
      slowest = std::max(slowest, clock.BatchSeconds(worker, round));
    }
    total += slowest;
  }
  return total;
}

double AsynchronousSeconds(const BatchClock& clock, uint64_t batches) {
  using Due = std::pair<double, uint32_t>;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due;
  std::vector<uint64_t> steps(clock.workers());
  uint64_t dealt = 0;
  double end = 0;
  const auto deal = [&](uint32_t worker, double now) {
    if (dealt == batches) return;
    ++dealt;
    due.push({now + clock.BatchSeconds(worker, steps[worker]++), worker});
  };
  for (uint32_t worker = 0; worker < clock.workers(); ++worker) deal(worker, 0);
  while (!due.empty()) {
    const auto [now, worker] = due.top();
    due.pop();
    end = now;
    deal(worker, now);
  }
  return end;
}

}  // namespace foreshard
