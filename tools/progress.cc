#include "tools/progress.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace foreshard {
namespace {

constexpr double kRateWindowSeconds = 10;
constexpr double kLineIntervalSeconds = 10;
constexpr size_t kBarCells = 30;

std::string Accuracy(const History& history) {
  // What is being trained towards is the master's; a rule without one of its own
  // reports the parameters it has.
  std::optional<EvaluationFigure> last = history.LastEvaluation("master");
  if (!last.has_value()) last = history.LastEvaluation("lookahead");
  if (!last.has_value()) return "-";
  return absl::StrFormat("%.2f %% (epoch %d)", 100 * last->accuracy, last->epoch);
}

std::string Loss(const History& history) {
  const std::optional<double> loss = history.latest().training_loss();
  return loss.has_value() ? absl::StrFormat("%.4f", *loss) : "-";
}

std::string Left(const History& history) {
  if (history.latest().finished) return "0:00";
  const std::optional<double> left = history.SecondsLeft();
  return left.has_value() ? FormatDuration(*left) : "-";
}

std::string Traffic(uint64_t bytes, uint64_t uncompressed_bytes) {
  const double ratio = CompressionRatio(uncompressed_bytes, bytes);
  if (ratio < 1.05) return FormatBytes(bytes);
  return absl::StrFormat("%s (%.1f times smaller)", FormatBytes(bytes), ratio);
}

std::string Position(const RunFigures& figures) {
  return absl::StrFormat("epoch %.1f of %d", figures.epoch_position(), figures.epochs);
}

std::string WithCommas(std::string digits) {
  for (size_t at = digits.size(); at > 3;) digits.insert(at -= 3, ",");
  return digits;
}

// How the run ended, after the job's name.
std::string Outcome(const RunFigures& figures, bool completed, const std::string& ended) {
  if (!completed) return absl::StrCat("was not completed, ", ended);
  if (figures.diverged()) return "has diverged";
  return ended == "completed" ? "is trained" : absl::StrCat("is trained, but ", ended);
}

uint64_t StalenessP99(const RunFigures& figures) {
  return StalenessQuantile(figures.staleness_counts, 0.99, figures.staleness_max);
}

}  // namespace

std::string FormatDuration(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  if (whole < 3600) return absl::StrFormat("%d:%02d", whole / 60, whole % 60);
  return absl::StrFormat("%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string FormatBytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (bytes >= 999.95 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%.0f B", bytes)
                   : absl::StrFormat("%.1f %s", bytes, kUnits[unit]);
}

std::string FormatRate(double value) {
  if (!std::isfinite(value)) return "-";
  if (value < 99.95) return absl::StrFormat("%.1f", std::max(0.0, value));
  return WithCommas(absl::StrFormat("%.0f", value));
}

std::string FormatCount(uint64_t value) { return WithCommas(absl::StrCat(value)); }

std::string FormatSkipped(const RunFigures& figures) {
  return absl::StrFormat("%s of %s gradients were not finite",
                         FormatCount(figures.skipped_batches), FormatCount(figures.batches));
}

std::string FormatDiscarded(const RunFigures& figures) {
  return absl::StrFormat("%s of %s gradients came later than update.delay_threshold",
                         FormatCount(figures.discarded_batches), FormatCount(figures.batches));
}

std::vector<std::string> ProgressBlock(const v1::JobSpec& job, const History& history,
                                       double seconds, size_t columns) {
  const RunFigures& figures = history.latest();
  const size_t filled =
      std::min(kBarCells, static_cast<size_t>(figures.progress() * kBarCells));
  std::vector<std::string> lines;
  lines.push_back(absl::StrFormat("[%s%s] %5.1f %%   %s   %s gone, %s left",
                                  std::string(filled, '#'), std::string(kBarCells - filled, '.'),
                                  100 * figures.progress(), Position(figures),
                                  FormatDuration(seconds), Left(history)));
  lines.push_back(absl::StrFormat("  speed      %s examples/s   %s updates/s   learning rate %.4g",
                                  FormatRate(history.ExamplesPerSecond(kRateWindowSeconds)),
                                  FormatRate(history.UpdatesPerSecond(kRateWindowSeconds)),
                                  figures.learning_rate));
  lines.push_back(
      absl::StrFormat("  quality    loss %s   test accuracy %s", Loss(history), Accuracy(history)));
  lines.push_back(absl::StrFormat("  staleness  mean %.2f   p99 %d   max %d   (updates)",
                                  figures.staleness_mean(), StalenessP99(figures),
                                  figures.staleness_max));
  lines.push_back(absl::StrFormat("  traffic    pushed %s   pulled %s",
                                  Traffic(figures.push_bytes, figures.push_uncompressed_bytes),
                                  Traffic(figures.pull_bytes, figures.pull_uncompressed_bytes)));
  std::vector<std::string> workers;
  for (const WorkerFigure& worker : figures.workers) {
    workers.push_back(
        worker.state == "training"
            ? absl::StrFormat("%s %s/s", worker.name, FormatRate(worker.examples_per_second))
            : absl::StrFormat("%s %s", worker.name, worker.state));
  }
  lines.push_back(absl::StrCat("  workers    ",
                               workers.empty() ? "none yet" : absl::StrJoin(workers, "   ")));
  if (figures.skipped_batches > 0) {
    lines.push_back(absl::StrCat("  skipped    ", FormatSkipped(figures)));
  }
  if (figures.discarded_batches > 0) {
    lines.push_back(absl::StrCat("  discarded  ", FormatDiscarded(figures)));
  }
  if (!figures.waiting_for.empty()) {
    lines.push_back(absl::StrCat("  waiting for ", figures.waiting_for));
  }
  for (std::string& line : lines) {
    if (line.size() > columns) line.resize(columns);
  }
  return lines;
}

std::string ProgressLine(const History& history, double seconds) {
  const RunFigures& figures = history.latest();
  std::string line = absl::StrFormat(
      "%s  %s (%.0f %%)  %s examples/s  %s updates/s  loss %s  test accuracy %s  staleness mean "
      "%.2f p99 %d  pushed %s  pulled %s  left %s",
      FormatDuration(seconds), Position(figures), 100 * figures.progress(),
      FormatRate(history.ExamplesPerSecond(kRateWindowSeconds)),
      FormatRate(history.UpdatesPerSecond(kRateWindowSeconds)), Loss(history), Accuracy(history),
      figures.staleness_mean(), StalenessP99(figures),
      Traffic(figures.push_bytes, figures.push_uncompressed_bytes),
      Traffic(figures.pull_bytes, figures.pull_uncompressed_bytes), Left(history));
  if (figures.skipped_batches > 0) {
    absl::StrAppend(&line, "  skipped: ", FormatSkipped(figures));
  }
  if (figures.discarded_batches > 0) {
    absl::StrAppend(&line, "  discarded: ", FormatDiscarded(figures));
  }
  if (!figures.waiting_for.empty()) absl::StrAppend(&line, "  waiting for ", figures.waiting_for);
  return line;
}

std::string Summary(const v1::JobSpec& job, const History& history, bool completed,
                    const std::string& ended, double seconds, const std::string& folder) {
  const RunFigures& figures = history.latest();
  std::string text;
  absl::StrAppendFormat(&text, "%s %s: %d of %d epochs in %s\n", job.name(),
                        Outcome(figures, completed, ended), figures.completed_epochs,
                        job.training().epochs(), FormatDuration(seconds));
  for (const char* parameters : {"master", "lookahead"}) {
    const std::optional<EvaluationFigure> last = history.LastEvaluation(parameters);
    if (!last.has_value()) continue;
    absl::StrAppendFormat(&text, "  test accuracy   %.2f %% (loss %.4f, %d examples, %s%s)\n",
                          100 * last->accuracy, last->loss, last->examples,
                          std::string_view(parameters) == "master" ? "the servers' parameters"
                                                                   : "the parameters as sent",
                          last->final ? "" : absl::StrFormat(", after epoch %d", last->epoch));
  }
  const RunFigures& before = history.before();
  const auto rate = [&](uint64_t now, uint64_t then) {
    return FormatRate(seconds > 0 && now > then ? static_cast<double>(now - then) / seconds : 0);
  };
  absl::StrAppendFormat(&text, "  speed           %s examples/s, %s updates/s\n",
                        rate(figures.examples, before.examples), rate(figures.updates, before.updates));
  absl::StrAppendFormat(&text, "  staleness       mean %.2f, p50 %d, p99 %d, max %d updates\n",
                        figures.staleness_mean(),
                        StalenessQuantile(figures.staleness_counts, 0.5, figures.staleness_max),
                        StalenessP99(figures), figures.staleness_max);
  absl::StrAppendFormat(&text, "  pushed          %s\n",
                        Traffic(figures.push_bytes, figures.push_uncompressed_bytes));
  absl::StrAppendFormat(&text, "  pulled          %s\n",
                        Traffic(figures.pull_bytes, figures.pull_uncompressed_bytes));
  for (const WorkerFigure& worker : history.workers()) {
    absl::StrAppendFormat(&text, "  %-15s %s examples%s, staleness mean %.2f\n", worker.name,
                          FormatCount(worker.examples), worker.device.empty() ? "" : " on " + worker.device,
                          worker.staleness_mean);
  }
  if (figures.skipped_batches > 0) {
    absl::StrAppendFormat(&text, "  skipped         %s\n", FormatSkipped(figures));
  }
  if (figures.discarded_batches > 0) {
    absl::StrAppendFormat(&text, "  discarded       %s\n", FormatDiscarded(figures));
  }
  if (figures.redealt > 0) {
    absl::StrAppendFormat(&text, "  dealt again     %s batches of lost workers\n",
                          FormatCount(figures.redealt));
  }
  if (!folder.empty()) {
    absl::StrAppendFormat(&text, "  results         %s/results.json\n", folder);
    absl::StrAppendFormat(&text, "  curves          %s/report.html\n", folder);
  }
  return text;
}

void ProgressDisplay::Show(const History& history, double seconds) {
  if (text_.terminal()) {
    text_.Draw(ProgressBlock(job_, history, seconds, text_.columns()));
    return;
  }
  // A new evaluation is worth a line at once.
  const bool evaluated = history.evaluations().size() > shown_evaluations_;
  if (seconds < next_line_seconds_ && !evaluated) return;
  shown_evaluations_ = history.evaluations().size();
  next_line_seconds_ = seconds + kLineIntervalSeconds;
  text_.Notice(ProgressLine(history, seconds));
}

}  // namespace foreshard
