#include "tools/top_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tools/progress.h"
#include "tools/status_text.h"

namespace foreshard {
namespace {

constexpr double kWindowSeconds = 10;
constexpr char kUnknown[] = "-";

std::string Times(uint64_t uncompressed_bytes, uint64_t bytes) {
  return bytes == 0 ? kUnknown : absl::StrFormat("%.1f", CompressionRatio(uncompressed_bytes, bytes));
}

std::string Traffic(const std::optional<double>& per_second, uint64_t bytes, uint64_t uncompressed_bytes) {
  const std::string moved = per_second.has_value() ? FormatBytes(*per_second) + "/s" : FormatBytes(bytes);
  if (CompressionRatio(uncompressed_bytes, bytes) < 1.05) return moved;
  return absl::StrFormat("%s (%s times smaller)", moved, Times(uncompressed_bytes, bytes));
}

}  // namespace

const std::vector<std::string>& TopOrderNames() {
  static const auto& names = *new std::vector<std::string>{"rate", "staleness", "lag", "loss", "worker"};
  return names;
}

void TopView::Add(double seconds, const std::vector<absl::StatusOr<v1::StatusReply>>& replies) {
  std::vector<v1::StatusReply> known;
  Look look = {.seconds = seconds, .applied = std::vector<uint64_t>(servers_.size())};
  for (size_t i = 0; i < servers_.size(); ++i) {
    Server& server = servers_[i];
    server.status = replies[i].status();
    if (replies[i].ok()) {
      server.last = *replies[i];
      server.seconds = seconds;
      absl::StrAppend(&look.starts, i, ":", replies[i]->server_incarnation(), " ");
    }
    if (!server.last.has_value()) continue;
    known.push_back(*server.last);
    look.applied[i] = server.last->pushes_applied();
  }
  look.figures = Combine(known);
  looks_.push_back(std::move(look));
  // One from before the window stays, so that two are there however seldom looks are.
  while (looks_.size() > 2 && looks_[1].seconds <= seconds - kWindowSeconds) looks_.pop_front();
}

std::optional<double> TopView::PerSecond(
    const std::function<std::optional<uint64_t>(const Look&)>& figure) const {
  const Look& now = looks_.back();
  const std::optional<uint64_t> is = figure(now);
  if (!is.has_value()) return std::nullopt;
  for (const Look& before : looks_) {
    // A server that began anew counts from 0 again, and one that was away has not counted.
    if (before.starts != now.starts || before.seconds >= now.seconds) continue;
    const std::optional<uint64_t> was = figure(before);
    if (was.has_value() && *was <= *is) return static_cast<double>(*is - *was) / (now.seconds - before.seconds);
  }
  return std::nullopt;
}

double TopView::WorkerRate(const WorkerFigure& worker) const {
  const std::optional<double> measured = PerSecond([&](const Look& look) -> std::optional<uint64_t> {
    for (const WorkerFigure& other : look.figures.workers) {
      if (other.id == worker.id && other.incarnation == worker.incarnation) return other.examples;
    }
    return std::nullopt;
  });
  return measured.value_or(worker.state == "training" ? worker.examples_per_second : 0);
}

std::string TopView::Head() const {
  const Look& look = looks_.back();
  const RunFigures& figures = look.figures;
  const v1::StatusReply* lead = nullptr;
  std::vector<std::string> waits;
  for (size_t i = 0; i < servers_.size(); ++i) {
    const Server& server = servers_[i];
    if (!server.status.ok()) {
      waits.push_back(server.last.has_value()
                          ? absl::StrCat("server ", addresses_[i], ", away for ", FormatDuration(look.seconds - server.seconds))
                          : absl::StrCat("server ", addresses_[i], ", which does not answer"));
    } else if (!server.last->waiting_for().empty()) {
      waits.push_back(absl::StrCat(server.last->waiting_for(), " (shard ", server.last->shard(), ")"));
    }
    if (server.last.has_value() && server.last->lead()) lead = &*server.last;
  }
  std::string text;
  if (lead == nullptr) {
    absl::StrAppend(&text, figures.job_name.empty() ? "no server has answered yet"
                                                    : figures.job_name + ": the lead (shard 0) has not answered yet");
  } else {
    absl::StrAppendFormat(&text, "%s, %s: %s", figures.job_name, figures.rule, figures.state);
    if (figures.finished && !figures.finish_reason.empty()) absl::StrAppend(&text, ": ", figures.finish_reason);
    if (figures.total_tickets > 0) {
      absl::StrAppendFormat(&text, "   epoch %.1f of %d (%.1f %%)   learning rate %.4g", figures.epoch_position(),
                            figures.epochs, 100 * figures.progress(), figures.learning_rate);
    }
    if (lead->round_members() > 0) {
      absl::StrAppendFormat(&text, "   round %d of %d workers%s", lead->round(), lead->round_members(),
                            lead->compressed_phase() ? ", compressed" : "");
    }
  }
  absl::StrAppend(&text, "\nwaiting for  ", waits.empty() ? "nothing" : absl::StrJoin(waits, "; "), "\n");

  double reported = 0;
  for (const WorkerFigure& worker : figures.workers) {
    if (worker.state == "training") reported += worker.examples_per_second;
  }
  const std::optional<double> examples = PerSecond([](const Look& at) { return at.figures.examples; });
  const std::optional<double> updates = PerSecond([](const Look& at) { return at.figures.updates; });
  const std::optional<double> loss = figures.training_loss();
  absl::StrAppendFormat(&text, "speed        %s examples/s   %s updates/s   %d of %d workers train\n",
                        lead == nullptr ? kUnknown : FormatRate(examples.value_or(reported)),
                        updates.has_value() && lead != nullptr ? FormatRate(*updates) : kUnknown,
                        figures.training_workers(), figures.workers.size());
  absl::StrAppendFormat(&text, "quality      loss %s",
                        lead != nullptr && loss.has_value() ? absl::StrFormat("%.4f", *loss) : kUnknown);
  for (auto at = figures.evaluations.rbegin(); at != figures.evaluations.rend(); ++at) {
    absl::StrAppendFormat(&text, "   test accuracy %.2f %% (%s parameters, epoch %d)", 100 * at->accuracy, at->parameters,
                          at->epoch);
    break;
  }
  if (figures.skipped_batches > 0) absl::StrAppend(&text, "   ", FormatSkipped(figures));
  if (figures.discarded_batches > 0) absl::StrAppend(&text, "   ", FormatDiscarded(figures));
  absl::StrAppendFormat(&text, "\nstaleness    mean %.2f   median %d   p99 %d   max %d   (updates)\n", figures.staleness_mean(),
                        StalenessQuantile(figures.staleness_counts, 0.5, figures.staleness_max),
                        StalenessQuantile(figures.staleness_counts, 0.99, figures.staleness_max), figures.staleness_max);
  absl::StrAppendFormat(
      &text, "traffic      pushed %s   pulled %s\n",
      Traffic(PerSecond([](const Look& at) { return at.figures.push_bytes; }), figures.push_bytes,
              figures.push_uncompressed_bytes),
      Traffic(PerSecond([](const Look& at) { return at.figures.pull_bytes; }), figures.pull_bytes,
              figures.pull_uncompressed_bytes));
  return text;
}

std::vector<std::vector<std::string>> TopView::ServerRows() const {
  std::vector<std::vector<std::string>> rows = {{"", "server", "shard", "state", "pushes/s", "applied", "stale", "rejected",
                                                 "skipped", "staleness", "compression", "up"}};
  for (size_t i = 0; i < servers_.size(); ++i) {
    const Server& server = servers_[i];
    if (!server.status.ok()) {
      rows.push_back({"", addresses_[i], server.last.has_value() ? absl::StrCat(server.last->shard()) : "?",
                      server.last.has_value()
                          ? absl::StrCat("away for ", FormatDuration(looks_.back().seconds - server.seconds))
                          : "does not answer"});
      continue;
    }
    const v1::StatusReply& reply = *server.last;
    const std::optional<double> pushes = PerSecond([i](const Look& look) { return look.applied[i]; });
    rows.push_back({"", addresses_[i], absl::StrCat(reply.shard(), " of ", reply.shards()), reply.state(),
                    pushes.has_value() ? FormatRate(*pushes) : kUnknown, FormatCount(reply.pushes_applied()),
                    FormatCount(reply.pushes_stale()), FormatCount(reply.pushes_rejected()),
                    FormatCount(reply.pushes_skipped()),
                    absl::StrFormat("%.2f", reply.pushes_applied() == 0 ? 0 : reply.staleness_sum() / reply.pushes_applied()),
                    Times(reply.push_uncompressed_bytes(), reply.push_bytes()), FormatDuration(reply.uptime_seconds())});
  }
  return rows;
}

std::vector<std::vector<std::string>> TopView::WorkerRows(TopOrder order) const {
  std::vector<std::pair<double, const WorkerFigure*>> sorted;
  for (const WorkerFigure& worker : looks_.back().figures.workers) {
    double by = 0;
    switch (order) {
      case TopOrder::kRate: by = WorkerRate(worker); break;
      case TopOrder::kStaleness: by = worker.staleness_mean; break;
      case TopOrder::kLag: by = worker.push_staleness; break;
      case TopOrder::kLoss: by = worker.loss; break;
      case TopOrder::kWorker: by = -static_cast<double>(worker.id); break;
    }
    // NaN would be in no order.
    sorted.emplace_back(by == by ? by : 0, &worker);
  }
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::vector<std::string>> rows = {{"", "worker", "name", "state", "examples/s", "loss", "staleness", "max", "lag",
                                                 "compression", "kept back", "seen", "waits for"}};
  for (const auto& [by, worker] : sorted) {
    const bool told = worker->steps > 0;
    rows.push_back({"", absl::StrCat(worker->id), worker->name, worker->state.empty() ? "?" : worker->state,
                    FormatRate(WorkerRate(*worker)), told ? absl::StrFormat("%.4f", worker->loss) : kUnknown,
                    absl::StrFormat("%.2f", worker->staleness_mean), absl::StrCat(worker->staleness_max),
                    told ? absl::StrFormat("%.2f", worker->push_staleness) : kUnknown,
                    Times(worker->push_uncompressed_bytes, worker->push_bytes),
                    told ? absl::StrFormat("%.2f", worker->error_feedback_ratio) : kUnknown,
                    worker->state.empty() ? "?" : absl::StrFormat("%.1f s ago", worker->seconds_since_seen),
                    worker->waiting_for});
  }
  return rows;
}

std::string TopView::Text(TopOrder order, size_t rows) const {
  if (looks_.empty()) return "";
  std::string text = absl::StrCat(Head(), "\n", AlignColumns(ServerRows()));
  const std::vector<std::vector<std::string>> workers = WorkerRows(order);
  if (workers.size() > 1) {
    const std::vector<std::string> lines = absl::StrSplit(AlignColumns(workers), '\n', absl::SkipEmpty());
    const auto used = static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) + 1;
    // The table's head and the line that says how many are left out have their place.
    const size_t room = rows == 0 ? lines.size() : std::max<size_t>(2, rows > used ? rows - used : 0);
    const size_t shown = lines.size() <= room ? lines.size() : room - 1;
    absl::StrAppend(&text, "\n", absl::StrJoin(lines.begin(), lines.begin() + shown, "\n"), "\n");
    if (shown < lines.size()) absl::StrAppend(&text, "  and ", lines.size() - shown, " more workers\n");
  }
  return PlainText(std::move(text));
}

}  // namespace foreshard
