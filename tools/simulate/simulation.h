// One run of a job on a fleet of virtual workers: virtual time, real gradients. Drives
// the very objects of the daemons: Segment, Dealer, PushEncoder, GradientComputer.
//
//   SimulationOptions options = {.job = job, .clock = clock, .train = train, .test = test};
//   SimulationResult result = Simulate(options).value();
//
// A worker computes its gradient at the parameters of its last reply, when its batch is
// due; in between, others' pushes are applied in the order of virtual time (ties: the
// lower slot first). Same options, same result, bit for bit.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "foreshard/v1/job.pb.h"
#include "tools/simulate/clock.h"
#include "worker/data/dataset.h"

namespace foreshard {

// What messages cost. A message waits for its turn on the worker's link and on the
// server's, each with its own two directions; 0: no such limit.
struct NetworkModel {
  double latency_seconds = 0;          // of each message
  double worker_bytes_per_second = 0;  // each way
  double server_bytes_per_second = 0;  // of each shard, each way
};

struct SimulationProgress {
  uint64_t batches = 0;  // completed
  uint64_t total_batches = 0;
  double virtual_seconds = 0;
  // Of the last evaluation, 0..1; NaN: there was none yet.
  double accuracy = std::numeric_limits<double>::quiet_NaN();
};

struct SimulationOptions {
  v1::JobSpec job;   // loaded; training.workers virtual workers, its seed is the run's
  BatchClock clock;  // of at least as many workers
  NetworkModel network;
  const Dataset* train = nullptr;  // outlive the run; may be shared by several
  const Dataset* test = nullptr;
  // Master parameters are evaluated after each of these many epochs, and at the end;
  // 0: only at the end.
  uint32_t evaluation_interval_epochs = 1;
  // Gaps of every element, not of one block in 64.
  bool exact_gaps = true;
  const std::atomic<bool>* stop = nullptr;  // once true: CANCELLED
  // Called now and then, on the calling thread. May be empty.
  std::function<void(const SimulationProgress&)> progress;
};

struct CurvePoint {
  double epoch = 0;
  double virtual_seconds = 0;
  double training_loss = 0;  // mean over the batches since the point before
  double loss = 0;           // of the master parameters, on the test data
  double accuracy = 0;       // 0..1
};

// Counts over a range whose bins grow by powers: [0], then kBins bins from kLowest on,
// each a factor 10^(1/8) wide; what is beyond is in the last.
struct LogHistogram {
  static constexpr int kBins = 64;
  static constexpr double kLowest = 1e-7;
  std::vector<uint64_t> counts = std::vector<uint64_t>(kBins + 1);
  void Add(double value);
  // Lower edge of a bin; 0 for the first.
  static double LowerEdge(int bin);
};

struct SimulationResult {
  double final_loss = 0, final_accuracy = 0, best_accuracy = 0;
  // A loss or parameter that is not finite: the run ends there, with the accuracy of
  // guessing.
  bool diverged = false;
  double diverged_epoch = 0;
  std::vector<CurvePoint> curve;
  // Means are over all pushes of trainable segments, weighted by their elements. Counts
  // and 99th percentile are of the first segment's lag, the maximum of all. The gap
  // is that of the DANA paper (arXiv 1907.11612); the surprise is the same distance to what
  // the rule would have sent just before applying.
  std::vector<uint64_t> lag_counts;
  double lag_mean = 0;
  uint64_t lag_p99 = 0, lag_max = 0;
  double gap_mean = 0, surprise_mean = 0;
  LogHistogram gaps;
  // By segment: mean lag, gap and surprise.
  struct SegmentFigures {
    double lag_mean = 0, gap_mean = 0, surprise_mean = 0;
  };
  std::vector<SegmentFigures> segments;
  double virtual_seconds = 0;
  // By the same clock and for as many batches, without a network: a fleet that waits
  // for its slowest, and one that never waits.
  double synchronous_seconds = 0, ideal_seconds = 0;
  // Rules that squeeze: changes of phase that were decided as the run went (automatic_freeze,
  // error_limit), and the first round of each.
  struct PhaseChange {
    uint64_t round = 0;
    bool compressed = false;
  };
  std::vector<PhaseChange> phase_changes;
  uint64_t batches = 0, updates = 0, discarded = 0, skipped = 0;
  uint64_t push_bytes = 0, pull_bytes = 0;  // payloads of trainable segments
  std::vector<uint64_t> worker_batches;     // by slot
  // Real seconds.
  double gradient_seconds = 0, evaluation_seconds = 0, total_seconds = 0;
  // Final master parameters' XXH3-64: equal for runs that agree bit for bit.
  uint64_t parameters_checksum = 0;

  double speedup_over_synchronous() const {
    return virtual_seconds > 0 ? synchronous_seconds / virtual_seconds : 0;
  }
};

// INVALID_ARGUMENT: a clock of fewer workers than the job's, data that do not fit the
// model; CANCELLED.
absl::StatusOr<SimulationResult> Simulate(const SimulationOptions& options);

}  // namespace foreshard
