// How long a batch takes on each machine of a fleet, in virtual seconds.
//
//   BatchClock clock = BatchClock::Gamma({.workers = 8, .seed = 3}).value();
//   double seconds = clock.BatchSeconds(worker, step);
//
// Gamma clocks follow the DANA paper's (arXiv 1907.11612): on equal machines a batch
// takes Gamma(shape 1/variation^2) of the mean time, on unequal ones each machine
// first draws its own mean from a Gamma of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/core/batch_trace.h"

namespace foreshard {

struct GammaClockOptions {
  uint32_t workers = 1;
  double batch_seconds = 1;       // mean over batches (and, where unequal, machines)
  double variation = 0.1;         // of a batch: standard deviation over mean; 0: none
  double machine_variation = 0;   // of the machines' means; 0: equal machines
  uint64_t seed = 0;
};

// Immutable; a pure function of what it was made of.
class BatchClock {
 public:
  // INVALID_ARGUMENT: no workers, a time or variation that cannot be.
  static absl::StatusOr<BatchClock> Gamma(const GammaClockOptions& options);
  // The batches of a real run; a worker that makes more steps than the trace has
  // begins it again. INVALID_ARGUMENT: a trace of fewer workers.
  static absl::StatusOr<BatchClock> Trace(BatchTrace trace, uint32_t workers);

  double BatchSeconds(uint32_t worker, uint64_t step) const;
  uint32_t workers() const { return static_cast<uint32_t>(means_.size()); }
  double mean_seconds(uint32_t worker) const { return means_[worker]; }

 private:
  BatchClock() = default;

  std::vector<double> means_;
  double shape_ = 0;  // of a batch; 0: every batch takes the mean
  uint64_t seed_ = 0;
  BatchTrace trace_;  // empty for Gamma clocks
};

// Virtual seconds in which a fleet that waits for its slowest in every round, and
// sends nothing, makes `rounds` rounds.
double SynchronousSeconds(const BatchClock& clock, uint64_t rounds);
// The same without waiting: until `batches` batches are computed, dealt to whoever is
// free.
double AsynchronousSeconds(const BatchClock& clock, uint64_t batches);

}  // namespace foreshard
