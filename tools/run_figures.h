// The history of a run, for the progress display and for curves. No clock, no network: times
// are given.
//
//   History history;
//   history.Add(12.5, Combine(replies));
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/net/fleet_figures.h"

namespace foreshard {

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
