// What a fleet comes to, from the statuses of its servers. No clock, no network.
//
//   RunFigures figures = Combine(replies);
//   ... figures.training_loss(), figures.workers ...
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "foreshard/v1/admin.pb.h"

namespace foreshard {

// One worker's start (slot and incarnation), over all servers.
struct WorkerFigure {
  uint32_t id = 0;  // its slot
  uint64_t incarnation = 0;
  std::string name;
  std::string device;
  // As the lead sees it; without the lead, as another server does.
  std::string state;
  double seconds_since_seen = 0;
  std::string waiting_for;  // why the lead deals it nothing now; else empty
  uint64_t examples = 0;  // in the batches it completed, as the lead counts them
  uint64_t steps = 0;     // as it last reported, like all below but pushes and staleness
  uint64_t skipped_steps = 0;
  double loss = 0;  // exponential average of the batch loss
  double examples_per_second = 0;
  double error_feedback_ratio = 0;
  // Over whole pushes, of late.
  double push_staleness = 0, push_gap = 0, push_surprise = 0;
  uint64_t push_bytes = 0, push_uncompressed_bytes = 0;  // as the worker counts them
  uint64_t pull_bytes = 0, pull_uncompressed_bytes = 0;
  uint64_t pushes = 0;  // segment pushes, over all servers
  double pushes_per_second = 0;  // the same of late
  double staleness_mean = 0;
  uint64_t staleness_max = 0;
};

// A segment, as its server measured the pushes to it.
struct SegmentFigure {
  uint32_t id = 0;
  uint32_t shard = 0;
  uint64_t elements = 0;
  bool statistic = false;
  uint64_t pushes = 0, pushes_stale = 0;
  double staleness_mean = 0;
  uint64_t staleness_max = 0;
  double gap_mean = 0, surprise_mean = 0;
};

struct EvaluationFigure {
  std::string parameters;  // "master" or "lookahead"
  uint32_t epoch = 0;
  double loss = 0;
  double accuracy = 0;  // 0..1
  uint64_t examples = 0;
  bool final = false;
  double at_seconds = 0;  // when whoever watches first saw it, in the run's seconds
};

// Sums over all servers, since they started.
struct RunFigures {
  std::string job_name;
  std::string rule;
  std::string state;  // the lead's
  std::string waiting_for;
  bool finished = false;
  std::string finish_reason;

  uint32_t epochs = 0;
  uint32_t completed_epochs = 0;
  uint64_t total_tickets = 0;
  uint64_t batches = 0;  // completed: applied, skipped or discarded
  // Of those, the ones whose gradient was not finite, so that nothing was applied.
  uint64_t skipped_batches = 0;
  // And those whose gradient came too late (update.delay_threshold). Each segment
  // decides for itself: discarded pushes in whole gradients.
  uint64_t discarded_batches = 0;
  uint64_t updates = 0;  // the others: whole gradients that were applied
  uint64_t redealt = 0;
  uint64_t examples = 0;  // in completed batches
  uint64_t examples_per_epoch = 0;  // that are dealt
  double learning_rate = 0;

  uint64_t pushes_applied = 0;  // of trainable segments, as all below
  uint64_t pushes_duplicate = 0;
  uint64_t pushes_stale = 0;
  uint64_t pushes_rejected = 0;
  uint64_t pushes_skipped = 0;
  uint64_t trainable_segments = 0;
  std::vector<uint64_t> staleness_counts;  // [k]: lag k; the last: that or beyond
  double staleness_sum = 0;
  uint64_t staleness_max = 0;
  double gap_sum = 0;
  double surprise_sum = 0;
  uint64_t gap_count = 0;
  uint64_t push_bytes = 0;
  uint64_t push_uncompressed_bytes = 0;
  uint64_t pull_bytes = 0;
  uint64_t pull_uncompressed_bytes = 0;
  uint64_t statistics_push_bytes = 0;
  double shard_imbalance = 0;

  std::vector<WorkerFigure> workers;       // that hold a slot now or held it last, by slot
  std::vector<WorkerFigure> past_workers;  // earlier starts, in the order the lead gives
  std::vector<EvaluationFigure> evaluations;
  std::vector<SegmentFigure> segments;  // by shard, then in order

  double progress() const;         // 0..1
  double epoch_position() const;   // 0..epochs, fractional
  bool diverged() const;           // more than half of the batches were skipped
  double staleness_mean() const;
  double gap_mean() const;
  double surprise_mean() const;
  // The mean loss of the workers that train, weighted equally; nullopt before the
  // first report.
  std::optional<double> training_loss() const;
  uint32_t training_workers() const;
};

// The smallest lag k such that a fraction `q` of the counted pushes have at most
// k; 0 when nothing is counted. `beyond` stands for the last entry, which holds
// all larger lags too.
uint64_t StalenessQuantile(absl::Span<const uint64_t> counts, double q, uint64_t beyond);

// Uncompressed over compressed; 1 where nothing was sent.
double CompressionRatio(uint64_t uncompressed_bytes, uint64_t bytes);

RunFigures Combine(absl::Span<const v1::StatusReply> servers);

}  // namespace foreshard
