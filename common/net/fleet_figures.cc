#include "common/net/fleet_figures.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace foreshard {
namespace {

// `deciding`: of the lead or, where it has not answered, of whoever has.
void JoinWorker(const v1::WorkerStatus& status, bool deciding, WorkerFigure* worker) {
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
  worker->pushes_per_second += status.pushes_per_second();
  worker->staleness_max = std::max(worker->staleness_max, status.staleness_max());
  if (!deciding) return;
  worker->state = status.state();
  worker->seconds_since_seen = status.seconds_since_seen();
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
  worker->push_bytes = status.figures().push_bytes();
  worker->push_uncompressed_bytes = status.figures().push_uncompressed_bytes();
  worker->pull_bytes = status.figures().pull_bytes();
  worker->pull_uncompressed_bytes = status.figures().pull_uncompressed_bytes();
}

// The lead knows which start holds a slot; other servers may hear of it later.
void AddWorkers(absl::Span<const v1::StatusReply> servers, RunFigures* figures) {
  std::map<std::pair<uint32_t, uint64_t>, std::pair<bool, size_t>> places;
  const bool led = std::any_of(servers.begin(), servers.end(), [](const auto& server) { return server.lead(); });
  const auto add = [&](const v1::WorkerStatus& status, bool lead, bool past) {
    const std::pair<uint32_t, uint64_t> key(status.worker(), status.incarnation());
    // Who holds the slot, the lead says: it has not heard of this one since it was started again.
    if (led && !lead && !past && !places.contains(key) &&
        std::any_of(figures->workers.begin(), figures->workers.end(),
                    [&](const WorkerFigure& worker) { return worker.id == status.worker(); })) {
      if (status.pushes() == 0) return;
      past = true;
    }
    std::vector<WorkerFigure>& list = past ? figures->past_workers : figures->workers;
    const auto [at, added] = places.try_emplace(key, past, list.size());
    if (added) list.emplace_back();
    const auto [in_past, index] = at->second;
    JoinWorker(status, lead || !led, in_past ? &figures->past_workers[index] : &figures->workers[index]);
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
      figures.trainable_segments += !segment.statistic();
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
    if (!server.lead()) {
      if (figures.job_name.empty()) figures.job_name = server.job_name();
      if (figures.rule.empty()) figures.rule = server.rule();
      continue;
    }
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
  if (figures.trainable_segments > 0) {
    uint64_t left_out = 0;
    for (const auto* workers : {&figures.workers, &figures.past_workers}) {
      for (const WorkerFigure& worker : *workers) left_out += worker.skipped_steps;
    }
    figures.skipped_batches = std::min(
        std::max(figures.pushes_skipped / figures.trainable_segments, left_out), figures.batches);
    figures.discarded_batches = std::min(figures.pushes_stale / figures.trainable_segments,
                                         figures.batches - figures.skipped_batches);
  }
  figures.updates = figures.batches - figures.skipped_batches - figures.discarded_batches;
  return figures;
}

}  // namespace foreshard
