#include "tools/simulate/study_display.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "tools/progress.h"
#include "tools/simulate/study_summary.h"

namespace foreshard {
namespace {

constexpr double kLineIntervalSeconds = 10;
constexpr double kDrawIntervalSeconds = 0.5;
constexpr size_t kBarCells = 30;

std::string Left(const StudyFigures& figures) {
  if (figures.done_runs >= figures.total_runs) return "0:00";
  if (!figures.seconds_left.has_value()) return "-";
  return absl::StrCat(FormatDuration(*figures.seconds_left), figures.left_is_bound ? " or more" : "");
}

std::string Accuracy(const SimulationResult& result) {
  return result.diverged ? absl::StrFormat("diverged in epoch %.1f", result.diverged_epoch)
                         : absl::StrFormat("accuracy %.2f %%", 100 * result.final_accuracy);
}

// Nothing before the first evaluation.
std::string SoFar(const StudyFigures::Running& running, const char* before) {
  return std::isfinite(running.accuracy)
             ? absl::StrFormat("%saccuracy %.2f %%", before, 100 * running.accuracy)
             : "";
}

}  // namespace

std::vector<std::string> StudyBlock(const StudyFigures& figures, double seconds) {
  const size_t filled = std::min(kBarCells, static_cast<size_t>(figures.part * kBarCells));
  std::vector<std::string> lines = {absl::StrFormat(
      "[%s%s] %5.1f %%   %d of %d runs   %s gone, %s left", std::string(filled, '#'),
      std::string(kBarCells - filled, '.'), 100 * figures.part, figures.done_runs,
      figures.total_runs, FormatDuration(seconds), Left(figures))};
  for (const StudyFigures::Running& running : figures.running) {
    lines.push_back(absl::StrFormat("  %3.0f %%  %s   %s%s", 100 * running.part,
                                    FormatDuration(running.seconds), running.name,
                                    SoFar(running, "   ")));
  }
  return lines;
}

std::string StudyLine(const StudyFigures& figures, double seconds) {
  std::string line =
      absl::StrFormat("%s  %d of %d runs (%.1f %%)  left %s", FormatDuration(seconds),
                      figures.done_runs, figures.total_runs, 100 * figures.part, Left(figures));
  for (const StudyFigures::Running& running : figures.running) {
    absl::StrAppendFormat(&line, "  [%s: %.0f %%%s]", running.name, 100 * running.part,
                          SoFar(running, ", "));
  }
  return line;
}

void StudyDisplay::Finished(const StudyRun& run, const SimulationResult& result) {
  if (run.rung != StudyRun::kFinal) return;  // many, and short
  text_.Notice(absl::StrFormat("%s: %s, lag %.2f, gap %.3g, in %s", run.name, Accuracy(result),
                               result.lag_mean, result.gap_mean,
                               FormatDuration(result.total_seconds)));
}

void StudyDisplay::Failed(const StudyRun& run, const absl::Status& status) {
  text_.Notice(absl::StrCat("failed: ", run.name, ": ", std::string(status.message())));
}

void StudyDisplay::Searched(const Study& study, size_t cell, const SearchOutcome& search) {
  text_.Notice(absl::StrFormat(
      "%s, %s: rate %s (accuracy %.2f %%), largest stable %s", study.label(cell),
      FleetName(study.cells()[cell]), FormatRateSetting(search.learning_rate),
      100 * search.accuracy,
      search.largest_stable.has_value() ? FormatRateSetting(*search.largest_stable) : "none"));
}

void StudyDisplay::Stale(const StudyRun& run, const std::string& why) {
  text_.Notice(absl::StrCat(run.name, " is run again: ", why));
}

void StudyDisplay::Show(const StudyFigures& figures) {
  const double seconds = absl::ToDoubleSeconds(absl::Now() - started_);
  if (seconds < next_seconds_) return;
  if (text_.terminal()) {
    next_seconds_ = seconds + kDrawIntervalSeconds;
    text_.Draw(StudyBlock(figures, seconds));
    return;
  }
  next_seconds_ = seconds + kLineIntervalSeconds;
  if (!figures.running.empty()) text_.Notice(StudyLine(figures, seconds));
}

std::string StudyList(const Study& study) {
  const StudyTotals totals = StudyPlan(study).Totals();
  size_t longest = 4;
  for (size_t cell = 0; cell < study.cells().size(); ++cell) {
    longest = std::max(longest, study.label(cell).size());
  }
  std::vector<std::string> seeds;
  for (uint64_t seed : study.spec().seeds()) seeds.push_back(absl::StrCat(seed));
  std::string text = absl::StrFormat("%-*s  %-8s  %6s  %-8s  %s\n", longest, "rule", "machines",
                                     "epochs", "rate", "workers");
  // Cells of a variant follow one another, the numbers of workers innermost.
  std::string before;
  for (size_t cell = 0; cell < study.cells().size(); ++cell) {
    const StudyCell& its = study.cells()[cell];
    const v1::JobSpec job = study.FinalRun(cell, 0, 0).job;
    const std::string row = absl::StrFormat(
        "%-*s  %-8s  %6d  %-8s", longest, study.label(cell), its.machines, job.training().epochs(),
        study.has_search() ? "searched" : FormatRateSetting(job.schedule().learning_rate()));
    if (row == before) {
      absl::StrAppend(&text, ", ", its.workers);
    } else {
      absl::StrAppend(&text, before.empty() ? "" : "\n", row, "  ", its.workers);
    }
    before = row;
  }
  absl::StrAppend(&text, "\nseeds: ", absl::StrJoin(seeds, ", "), "\n");
  if (study.has_search()) {
    std::vector<std::string> rates, epochs;
    for (float rate : study.spec().search().learning_rates()) rates.push_back(FormatRateSetting(rate));
    for (uint32_t count : study.spec().search().epochs()) epochs.push_back(absl::StrCat(count));
    absl::StrAppendFormat(&text, "search: rates %s; runs of %s epochs; %d runs, %d epochs in all\n",
                          absl::StrJoin(rates, ", "), absl::StrJoin(epochs, ", "),
                          totals.search_runs, totals.search_epochs);
  }
  if (study.spec().finalists() > 0) {
    absl::StrAppendFormat(&text, "full length: of each fleet the best %d of the search%s\n",
                          study.spec().finalists(),
                          std::any_of(study.spec().rules().begin(), study.spec().rules().end(),
                                      [](const auto& variant) { return variant.reference(); })
                              ? ", and the references"
                              : "");
  }
  absl::StrAppendFormat(&text, "%d runs of full length, %d epochs in all\n", totals.full_runs,
                        totals.full_epochs);
  return text;
}

std::string StudySummary(const Study& study, const std::vector<StudyEntry>& entries) {
  const std::vector<CellSummary> summaries = SummariseCells(study, entries);
  size_t longest = 4;
  for (const CellSummary& summary : summaries) {
    longest = std::max(longest, study.label(summary.cell).size());
  }
  std::string text;
  for (const std::vector<size_t>& group : study.Groups()) {
    std::vector<const CellSummary*> rows;
    for (const CellSummary& summary : summaries) {
      if (std::find(group.begin(), group.end(), summary.cell) != group.end()) {
        rows.push_back(&summary);
      }
    }
    if (rows.empty()) continue;
    std::stable_sort(rows.begin(), rows.end(), [](const CellSummary* a, const CellSummary* b) {
      return a->accuracy.mean > b->accuracy.mean;
    });
    absl::StrAppendFormat(&text, "%s\n  %-*s  %9s  %8s  %6s  %7s  %5s  %9s  %8s\n",
                          FleetName(study.cells()[rows.front()->cell]), longest, "rule", "accuracy",
                          "+-", "lost", "lag", "p99", "gap", "speed-up");
    for (const CellSummary* row : rows) {
      const bool compared = row->points_lost.count > 0 && std::isfinite(row->points_lost.mean);
      absl::StrAppendFormat(
          &text, "  %-*s  %7.2f %%  %8.2f  %6s  %7.2f  %5d  %9.3g  %8s%s\n", longest,
          study.label(row->cell), 100 * row->accuracy.mean, 100 * row->accuracy.deviation,
          compared ? absl::StrFormat("%.2f", row->points_lost.mean) : "-", row->lag_mean.mean,
          row->lag_p99, row->gap_mean.mean,
          row->speedup.count > 0 ? absl::StrFormat("%.2f", row->speedup.mean) : "-",
          row->diverged > 0
              ? absl::StrFormat("  %d of %d diverged", row->diverged, row->entries.size())
              : "");
    }
  }
  return text;
}

}  // namespace foreshard
