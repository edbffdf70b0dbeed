// What a run comes to, from the statuses of its servers: figures for the progress
// display, and a history for the curves. No clock, no network: times are given.
//
//   RunFigures figures = Combine(replies);
//   History history;
//   history.Add(12.5, figures);
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
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
  std::string state;  // as the lead sees it
  std::string waiting_for;  // why the lead deals it nothing now; else empty
  uint64_t examples = 0;  // in the batches it completed, as the lead counts them
  uint64_t steps = 0;     // as it last reported, like all below but pushes and staleness
  uint64_t skipped_steps = 0;
  double loss = 0;  // exponential average of the batch loss
  double examples_per_second = 0;
  double error_feedback_ratio = 0;
  // Over whole pushes, of late.
  double push_staleness = 0, push_gap = 0, push_surprise = 0;
  uint64_t pushes = 0;  // segment pushes, over all servers
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
  double at_seconds = 0;  // when the launcher first saw it, in the run's seconds
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

// One point of the curves.
struct Sample {
  double seconds = 0;
  double epoch = 0;
  double examples_per_second = 0;  // since the sample before
  double updates_per_second = 0;
  double loss = 0;                 // NaN before the first report
  double staleness_mean = 0;       // of the pushes since the sample before
  double staleness_p99 = 0;
  double push_bytes_per_second = 0;
  double pull_bytes_per_second = 0;
};

// Everything a run has shown: samples of bounded number, workers that are gone,
// evaluations with the time they came. Thread-compatible.
class History {
 public:
  static constexpr size_t kMaxSamples = 1024;

  // Takes figures seen at this second of the run (rising).
  void Add(double seconds, const RunFigures& figures);

  // What earlier runs have done, from which this one goes on: it is in the totals, not in this
  // run's speed.
  void GoOnFrom(const RunFigures& figures) { before_ = figures; }
  const RunFigures& before() const { return before_; }

  const RunFigures& latest() const { return latest_; }
  const std::vector<Sample>& samples() const { return samples_; }
  // Every start of every worker that was ever seen, by slot, then in order of coming.
  std::vector<WorkerFigure> workers() const;
  // In order of epoch; a later one for the same epoch and parameters replaces.
  const std::vector<EvaluationFigure>& evaluations() const { return evaluations_; }
  // The last evaluation of these parameters; the final one where there is one.
  std::optional<EvaluationFigure> LastEvaluation(const std::string& parameters) const;

  // Over the last `window` seconds; 0 before two figures were seen.
  double ExamplesPerSecond(double window_seconds) const;
  double UpdatesPerSecond(double window_seconds) const;
  // At the present rate; nullopt before anything can be said.
  std::optional<double> SecondsLeft() const;

 private:
  struct Mark {
    double seconds;
    uint64_t examples;
    uint64_t batches;
    uint64_t updates;
  };
  const Mark* MarkBefore(double window_seconds) const;
  double PerSecond(double window_seconds, uint64_t RunFigures::*figure,
                   uint64_t Mark::*at_mark) const;
  void AddSample(double seconds, const RunFigures& figures);

  RunFigures before_;
  RunFigures latest_;
  RunFigures at_last_sample_;
  double last_seconds_ = 0;
  double last_sample_seconds_ = 0;
  double sample_interval_ = 0;  // grows as samples are thinned
  bool any_ = false;
  std::vector<Sample> samples_;
  std::vector<Mark> marks_;  // the last kMarks figures
  std::map<std::pair<uint32_t, uint64_t>, std::pair<size_t, WorkerFigure>> workers_;
  std::vector<EvaluationFigure> evaluations_;
};

}  // namespace foreshard
