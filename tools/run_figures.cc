#include "tools/run_figures.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace foreshard {
namespace {

constexpr size_t kMarks = 600;

void JoinWorker(const v1::WorkerStatus& status, bool lead, WorkerFigure* worker) {
  worker->id = status.worker();
  worker->incarnation = status.incarnation();
  if (!status.name().empty()) worker->name = status.name();
  const uint64_t pushes = worker->pushes + status.pushes();
  if (pushes > 0) {
    worker->staleness_mean = (worker->staleness_mean * worker->pushes +
                              status.staleness_mean() * status.pushes()) /
                             pushes;
  }
  worker->pushes = pushes;
  worker->staleness_max = std::max(worker->staleness_max, status.staleness_max());
  if (!lead) return;
  worker->state = status.state();
  worker->waiting_for = status.waiting_for();
  worker->device = status.device();
  worker->examples = status.examples();
  worker->steps = status.figures().steps();
  worker->skipped_steps = status.figures().skipped_steps();
  worker->loss = status.figures().loss();
  worker->examples_per_second = status.figures().examples_per_second();
  worker->error_feedback_ratio = status.figures().error_feedback_ratio();
  worker->push_staleness = status.figures().push_staleness();
  worker->push_gap = status.figures().push_gap();
  worker->push_surprise = status.figures().push_surprise();
}

// The lead knows which start holds a slot; other servers may hear of it later.
void AddWorkers(absl::Span<const v1::StatusReply> servers, RunFigures* figures) {
  std::map<std::pair<uint32_t, uint64_t>, std::pair<bool, size_t>> places;
  const auto add = [&](const v1::WorkerStatus& status, bool lead, bool past) {
    const std::pair<uint32_t, uint64_t> key(status.worker(), status.incarnation());
    std::vector<WorkerFigure>& list = past ? figures->past_workers : figures->workers;
    const auto [at, added] = places.try_emplace(key, past, list.size());
    if (added) list.emplace_back();
    const auto [in_past, index] = at->second;
    JoinWorker(status, lead, in_past ? &figures->past_workers[index] : &figures->workers[index]);
  };
  for (const bool lead : {true, false}) {
    for (const v1::StatusReply& server : servers) {
      if (server.lead() != lead) continue;
      for (const v1::WorkerStatus& status : server.past_workers()) add(status, lead, true);
      for (const v1::WorkerStatus& status : server.workers()) add(status, lead, false);
    }
  }
  // Servers that were started again may know its slot and nothing else.
  for (std::vector<WorkerFigure>* list : {&figures->workers, &figures->past_workers}) {
    for (WorkerFigure& worker : *list) {
      if (worker.name.empty()) worker.name = absl::StrCat("worker in slot ", worker.id);
    }
  }
  std::stable_sort(figures->workers.begin(), figures->workers.end(),
                   [](const WorkerFigure& a, const WorkerFigure& b) { return a.id < b.id; });
}

}  // namespace

double RunFigures::progress() const {
  return total_tickets == 0 ? 0 : static_cast<double>(batches) / total_tickets;
}

bool RunFigures::diverged() const { return skipped_batches > batches / 2; }

double RunFigures::epoch_position() const { return progress() * epochs; }

double RunFigures::staleness_mean() const {
  return pushes_applied == 0 ? 0 : staleness_sum / pushes_applied;
}

double RunFigures::gap_mean() const { return gap_count == 0 ? 0 : gap_sum / gap_count; }

double RunFigures::surprise_mean() const { return gap_count == 0 ? 0 : surprise_sum / gap_count; }

std::optional<double> RunFigures::training_loss() const {
  double sum = 0;
  uint32_t count = 0;
  for (const WorkerFigure& worker : workers) {
    if (worker.steps == 0 || !std::isfinite(worker.loss)) continue;
    // Those that have gone count only where nobody is left.
    if (worker.state != "training" && training_workers() > 0) continue;
    sum += worker.loss;
    ++count;
  }
  if (count == 0) return std::nullopt;
  return sum / count;
}

uint32_t RunFigures::training_workers() const {
  return std::count_if(workers.begin(), workers.end(),
                       [](const WorkerFigure& worker) { return worker.state == "training"; });
}

uint64_t StalenessQuantile(absl::Span<const uint64_t> counts, double q, uint64_t beyond) {
  uint64_t total = 0;
  for (uint64_t count : counts) total += count;
  if (total == 0) return 0;
  const uint64_t wanted = std::max<uint64_t>(1, static_cast<uint64_t>(std::ceil(q * total)));
  uint64_t seen = 0;
  for (size_t lag = 0; lag < counts.size(); ++lag) {
    seen += counts[lag];
    if (seen >= wanted) return lag + 1 < counts.size() ? lag : std::max<uint64_t>(lag, beyond);
  }
  return counts.size() - 1;
}

double CompressionRatio(uint64_t uncompressed_bytes, uint64_t bytes) {
  return bytes == 0 ? 1 : static_cast<double>(uncompressed_bytes) / bytes;
}

RunFigures Combine(absl::Span<const v1::StatusReply> servers) {
  RunFigures figures;
  uint64_t trainable_segments = 0;
  for (const v1::StatusReply& server : servers) {
    figures.pushes_applied += server.pushes_applied();
    figures.pushes_duplicate += server.pushes_duplicate();
    figures.pushes_stale += server.pushes_stale();
    figures.pushes_rejected += server.pushes_rejected();
    figures.pushes_skipped += server.pushes_skipped();
    figures.staleness_sum += server.staleness_sum();
    figures.staleness_max = std::max(figures.staleness_max, server.staleness_max());
    figures.staleness_counts.resize(
        std::max<size_t>(figures.staleness_counts.size(), server.staleness_counts_size()));
    for (int lag = 0; lag < server.staleness_counts_size(); ++lag) {
      figures.staleness_counts[lag] += server.staleness_counts(lag);
    }
    figures.gap_sum += server.gap_sum();
    figures.surprise_sum += server.surprise_sum();
    figures.gap_count += server.gap_count();
    figures.push_bytes += server.push_bytes();
    figures.push_uncompressed_bytes += server.push_uncompressed_bytes();
    figures.pull_bytes += server.pull_bytes();
    figures.pull_uncompressed_bytes += server.pull_uncompressed_bytes();
    figures.statistics_push_bytes += server.statistics_push_bytes();
    figures.learning_rate = std::max(figures.learning_rate, server.learning_rate());
    for (const v1::SegmentStatus& segment : server.segments()) {
      trainable_segments += !segment.statistic();
      figures.segments.push_back({.id = segment.segment(),
                                  .shard = server.shard(),
                                  .elements = segment.elements(),
                                  .statistic = segment.statistic(),
                                  .pushes = segment.pushes(),
                                  .pushes_stale = segment.pushes_stale(),
                                  .staleness_mean = segment.staleness_mean(),
                                  .staleness_max = segment.staleness_max(),
                                  .gap_mean = segment.gap_mean(),
                                  .surprise_mean = segment.surprise_mean()});
    }
    if (!server.lead()) continue;
    figures.job_name = server.job_name();
    figures.rule = server.rule();
    figures.state = server.state();
    figures.waiting_for = server.waiting_for();
    figures.finished = server.finished();
    figures.finish_reason = server.finish_reason();
    figures.epochs = server.epochs();
    figures.completed_epochs = server.completed_epochs();
    figures.total_tickets = server.total_tickets();
    figures.batches = server.completed_tickets();
    figures.redealt = server.redealt_tickets();
    figures.shard_imbalance = server.shard_imbalance();
    if (server.epochs() > 0) {
      // The last batch of an epoch may be shorter than the others.
      const uint64_t tickets = server.total_tickets() / server.epochs();
      figures.examples_per_epoch = tickets * server.batch_size();
      if (server.train_examples() > 0) {
        figures.examples_per_epoch = std::min(figures.examples_per_epoch, server.train_examples());
      }
      const uint64_t whole = std::min<uint64_t>(
          server.completed_epochs(), tickets == 0 ? 0 : server.completed_tickets() / tickets);
      const uint64_t rest = server.completed_tickets() - whole * tickets;
      figures.examples = std::min(whole * figures.examples_per_epoch + rest * server.batch_size(),
                                  server.epochs() * figures.examples_per_epoch);
    }
    for (const v1::Evaluation& evaluation : server.evaluations()) {
      figures.evaluations.push_back({.parameters = evaluation.parameters(),
                                     .epoch = evaluation.epoch(),
                                     .loss = evaluation.loss(),
                                     .accuracy = evaluation.accuracy(),
                                     .examples = evaluation.examples(),
                                     .final = evaluation.final()});
    }
  }
  AddWorkers(servers, &figures);
  // A skipped batch is said to every segment. Of one that is being skipped now some
  // segments may not know yet, so that it does not count; nor may it before the lead
  // counts it as completed. Local steps that are left out (elastic rules) are known to
  // their workers only.
  if (trainable_segments > 0) {
    uint64_t left_out = 0;
    for (const auto* workers : {&figures.workers, &figures.past_workers}) {
      for (const WorkerFigure& worker : *workers) left_out += worker.skipped_steps;
    }
    figures.skipped_batches = std::min(
        std::max(figures.pushes_skipped / trainable_segments, left_out), figures.batches);
    figures.discarded_batches = std::min(figures.pushes_stale / trainable_segments,
                                         figures.batches - figures.skipped_batches);
  }
  figures.updates = figures.batches - figures.skipped_batches - figures.discarded_batches;
  return figures;
}

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
