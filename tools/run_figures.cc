#include "tools/run_figures.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace foreshard {
namespace {

constexpr size_t kMarks = 600;

}  // namespace

void History::Add(double seconds, const RunFigures& figures) {
  if (!any_) {
    any_ = true;
    at_last_sample_ = figures;
    last_sample_seconds_ = seconds;
  } else if (!latest_.finished && seconds - last_sample_seconds_ >= sample_interval_) {
    // Curves end with training: what comes later is the last evaluation.
    AddSample(seconds, figures);
  }
  latest_ = figures;
  last_seconds_ = seconds;
  marks_.push_back({seconds, figures.examples, figures.batches, figures.updates});
  if (marks_.size() > kMarks) marks_.erase(marks_.begin());

  for (const std::vector<WorkerFigure>* workers : {&figures.past_workers, &figures.workers}) {
    for (const WorkerFigure& worker : *workers) {
      auto [at, added] =
          workers_.try_emplace({worker.id, worker.incarnation}, workers_.size(), worker);
      at->second.second = worker;
    }
  }
  for (EvaluationFigure evaluation : figures.evaluations) {
    const auto same = [&](const EvaluationFigure& other) {
      return other.epoch == evaluation.epoch && other.parameters == evaluation.parameters &&
             other.final == evaluation.final;
    };
    auto at = std::find_if(evaluations_.begin(), evaluations_.end(), same);
    evaluation.at_seconds = at == evaluations_.end() ? seconds : at->at_seconds;
    if (at != evaluations_.end()) {
      *at = evaluation;
    } else {
      evaluations_.push_back(evaluation);
    }
  }
}

void History::AddSample(double seconds, const RunFigures& figures) {
  const double elapsed = seconds - last_sample_seconds_;
  if (elapsed <= 0) return;
  const RunFigures& before = at_last_sample_;
  const auto rate = [&](uint64_t now, uint64_t then) {
    return now > then ? (now - then) / elapsed : 0;
  };
  std::vector<uint64_t> counts = figures.staleness_counts;
  for (size_t lag = 0; lag < std::min(counts.size(), before.staleness_counts.size()); ++lag) {
    counts[lag] -= std::min(counts[lag], before.staleness_counts[lag]);
  }
  const uint64_t pushes = figures.pushes_applied - std::min(figures.pushes_applied, before.pushes_applied);
  samples_.push_back(
      {.seconds = seconds,
       .epoch = figures.epoch_position(),
       .examples_per_second = rate(figures.examples, before.examples),
       .updates_per_second = rate(figures.updates, before.updates),
       .loss = figures.training_loss().value_or(std::numeric_limits<double>::quiet_NaN()),
       .staleness_mean =
           pushes == 0 ? 0 : (figures.staleness_sum - before.staleness_sum) / pushes,
       .staleness_p99 =
           static_cast<double>(StalenessQuantile(counts, 0.99, figures.staleness_max)),
       .push_bytes_per_second = rate(figures.push_bytes, before.push_bytes),
       .pull_bytes_per_second = rate(figures.pull_bytes, before.pull_bytes)});
  at_last_sample_ = figures;
  last_sample_seconds_ = seconds;
  if (samples_.size() < kMaxSamples) return;
  // Every other one goes, and the next ones come half as often.
  std::vector<Sample> thinned;
  for (size_t i = 1; i < samples_.size(); i += 2) thinned.push_back(samples_[i]);
  samples_ = std::move(thinned);
  sample_interval_ = 2 * std::max(sample_interval_, samples_.back().seconds / kMaxSamples);
}

std::vector<WorkerFigure> History::workers() const {
  std::vector<std::pair<size_t, WorkerFigure>> order;
  for (const auto& [key, entry] : workers_) order.push_back(entry);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.id, a.first) < std::pair(b.second.id, b.first);
  });
  std::vector<WorkerFigure> workers;
  for (auto& [at, worker] : order) workers.push_back(std::move(worker));
  return workers;
}

std::optional<EvaluationFigure> History::LastEvaluation(const std::string& parameters) const {
  std::optional<EvaluationFigure> last;
  for (const EvaluationFigure& evaluation : evaluations_) {
    if (evaluation.parameters != parameters) continue;
    if (!last.has_value() || std::pair(evaluation.final, evaluation.epoch) >=
                                 std::pair(last->final, last->epoch)) {
      last = evaluation;
    }
  }
  return last;
}

const History::Mark* History::MarkBefore(double window_seconds) const {
  if (marks_.size() < 2) return nullptr;
  for (const Mark& mark : marks_) {
    if (mark.seconds >= last_seconds_ - window_seconds) {
      if (mark.seconds < last_seconds_) return &mark;
      break;
    }
  }
  return &marks_[marks_.size() - 2];
}

double History::PerSecond(double window_seconds, uint64_t RunFigures::*figure,
                          uint64_t Mark::*at_mark) const {
  const Mark* mark = MarkBefore(window_seconds);
  if (mark == nullptr || last_seconds_ <= mark->seconds) return 0;
  return (static_cast<double>(latest_.*figure) - static_cast<double>(mark->*at_mark)) /
         (last_seconds_ - mark->seconds);
}

double History::ExamplesPerSecond(double window_seconds) const {
  return PerSecond(window_seconds, &RunFigures::examples, &Mark::examples);
}

double History::UpdatesPerSecond(double window_seconds) const {
  return PerSecond(window_seconds, &RunFigures::updates, &Mark::updates);
}

std::optional<double> History::SecondsLeft() const {
  if (latest_.total_tickets == 0) return std::nullopt;
  const double rate = PerSecond(30, &RunFigures::batches, &Mark::batches);
  if (rate <= 0) return std::nullopt;
  return (latest_.total_tickets - std::min(latest_.batches, latest_.total_tickets)) / rate;
}

}  // namespace foreshard
