#include "tools/simulate/study_report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/net/job_spec.h"
#include "google/protobuf/text_format.h"
#include "tools/html_page.h"
#include "tools/simulate/study_charts.h"
#include "tools/simulate/study_results.h"
#include "tools/simulate/study_summary.h"
#include "tools/svg_chart.h"

namespace foreshard {
namespace {

using Row = std::vector<std::string>;

// The first `texts` columns are text, the others numbers. Cells are escaped here.
std::string Table(const Row& header, const std::vector<Row>& rows, size_t texts) {
  std::string html = absl::StrCat("<div class=\"scroll\"><table",
                                  header.size() > 6 ? " class=\"dense\"" : "", ">\n<tr>");
  const auto number = [&](size_t column) { return column >= texts ? " class=\"number\"" : ""; };
  for (size_t c = 0; c < header.size(); ++c) {
    absl::StrAppend(&html, "<th scope=\"col\"", number(c), ">", EscapeHtml(header[c]), "</th>");
  }
  html += "</tr>\n";
  for (const Row& row : rows) {
    html += "<tr>";
    for (size_t c = 0; c < row.size(); ++c) {
      const char* tag = c == 0 ? "th" : "td";
      absl::StrAppend(&html, "<", tag, c == 0 ? " scope=\"row\"" : "", number(c), ">",
                      EscapeHtml(row[c]), "</", tag, ">");
    }
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string Figure3(double value) {
  return std::isfinite(value) ? absl::StrFormat("%.3g", value) : "-";
}

// "91.23 ± 0.12".
std::string MeanAndDeviation(const Spread& spread, double factor) {
  if (spread.count == 0 || !std::isfinite(spread.mean)) return "-";
  const std::string mean = absl::StrFormat("%.2f", factor * spread.mean);
  if (spread.count == 1) return mean;
  return absl::StrFormat("%s ± %.2f", mean, factor * spread.deviation);
}

class Page {
 public:
  Page(const Study& study, const RunResults& results, const std::set<std::string>& failed)
      : study_(study),
        results_(results),
        failed_(failed),
        plan_(study),
        entries_(StudyEntries(study, results, failed)),
        summaries_(SummariseCells(study, entries_)) {}

  StudyReport Make();

 private:
  std::string Lead() const;
  std::string Winners() const;
  std::string AllResults() const;
  std::string StableRates() const;
  std::string SearchDetails() const;
  std::string Definitions() const;
  std::string Sources() const;

  const Study& study_;
  const RunResults& results_;
  const std::set<std::string>& failed_;
  const StudyPlan plan_;
  const std::vector<StudyEntry> entries_;
  const std::vector<CellSummary> summaries_;
};

std::string Page::Lead() const {
  const StudyTotals totals = plan_.Totals();
  std::string text = absl::StrFormat(
      "%d variants, %d runs of full length", study_.spec().rules_size(), entries_.size());
  if (study_.has_search()) {
    absl::StrAppend(&text, ", learning rates found in ", results_.size() - entries_.size(),
                    " short ones");
  }
  const uint64_t all = totals.full_runs + totals.search_runs;
  if (results_.size() < all) {
    absl::StrAppend(&text, ". Not complete: ", results_.size(), " of ", all, " runs are done");
  }
  if (!failed_.empty()) absl::StrAppend(&text, ", ", failed_.size(), " failed");
  return absl::StrCat("<p class=\"lead\">", EscapeHtml(text), ".</p>\n");
}

// Who is ahead on each fleet.
std::string Page::Winners() const {
  std::vector<Row> rows;
  for (const std::vector<size_t>& group : study_.Groups()) {
    std::vector<const CellSummary*> rivals;
    for (const CellSummary& summary : summaries_) {
      if (std::find(group.begin(), group.end(), summary.cell) != group.end()) {
        rivals.push_back(&summary);
      }
    }
    if (rivals.size() < 2) continue;
    std::stable_sort(rivals.begin(), rivals.end(), [](const CellSummary* a, const CellSummary* b) {
      return a->accuracy.mean > b->accuracy.mean;
    });
    const auto describe = [&](const CellSummary& summary) {
      std::string text = absl::StrCat(study_.label(summary.cell), ": ",
                                      MeanAndDeviation(summary.accuracy, 100), " %");
      if (summary.points_lost.count > 0 && std::isfinite(summary.points_lost.mean)) {
        absl::StrAppendFormat(&text, ", %s points lost", MeanAndDeviation(summary.points_lost, 1));
      }
      return text;
    };
    rows.push_back({FleetName(study_.cells()[rivals[0]->cell]), describe(*rivals[0]),
                    describe(*rivals[1]),
                    rivals.size() > 2 ? describe(*rivals[2]) : std::string("-")});
  }
  if (rows.empty()) return "";
  return absl::StrCat("<h2>Who is ahead</h2>\n",
                      Table({"fleet", "first", "second", "third"}, rows, 4));
}

std::string Page::AllResults() const {
  if (summaries_.empty()) return "";
  const bool diverged = std::any_of(summaries_.begin(), summaries_.end(),
                                    [](const auto& summary) { return summary.diverged > 0; });
  const bool discarded = std::any_of(summaries_.begin(), summaries_.end(),
                                     [](const auto& summary) { return summary.discarded_part > 0; });
  Row header = {"rule", "machines", "N", "rate", "runs", "accuracy, %", "points lost", "best, %",
                "lag", "p99", "gap", "surprise", "speed-up"};
  if (diverged) header.push_back("diverged");
  if (discarded) header.push_back("discarded, %");
  std::vector<Row> rows;
  for (const CellSummary& summary : summaries_) {
    const StudyCell& cell = study_.cells()[summary.cell];
    Row& row = rows.emplace_back();
    row = {study_.label(summary.cell), cell.machines, absl::StrCat(cell.workers),
           FormatRateSetting(summary.learning_rate()), absl::StrCat(summary.entries.size()),
           MeanAndDeviation(summary.accuracy, 100), MeanAndDeviation(summary.points_lost, 1),
           absl::StrFormat("%.2f", 100 * summary.best_accuracy.mean),
           absl::StrFormat("%.2f", summary.lag_mean.mean), absl::StrCat(summary.lag_p99),
           Figure3(summary.gap_mean.mean), Figure3(summary.surprise_mean.mean),
           summary.speedup.count > 0 ? absl::StrFormat("%.2f", summary.speedup.mean) : "-"};
    if (diverged) row.push_back(absl::StrCat(summary.diverged));
    if (discarded) row.push_back(absl::StrFormat("%.2f", 100 * summary.discarded_part));
  }
  return absl::StrCat(
      "<h2>All results</h2>\n<p class=\"note\">Means over the seeds; ± their standard "
      "deviation.</p>\n",
      Table(header, rows, 2));
}

// Variants down, fleets across.
std::string Page::StableRates() const {
  if (!study_.has_search()) return "";
  const std::vector<std::vector<size_t>> groups = study_.Groups();
  Row header = {"rule"};
  for (const std::vector<size_t>& group : groups) {
    header.push_back(FleetName(study_.cells()[group.front()]));
  }
  std::vector<Row> rows;
  for (int v = 0; v < study_.spec().rules_size(); ++v) {
    Row row = {study_.spec().rules(v).label()};
    for (const std::vector<size_t>& group : groups) {
      std::string text = "-";
      for (size_t cell : group) {
        if (study_.cells()[cell].variant != static_cast<size_t>(v)) continue;
        const SearchOutcome search = plan_.Search(cell, results_);
        if (search.largest_stable.has_value()) text = FormatRateSetting(*search.largest_stable);
        else if (search.rungs.size() > 1) text = "none";
        if (search.complete) {
          absl::StrAppendFormat(&text, " (%s: %.1f %%)", FormatRateSetting(search.learning_rate),
                                100 * search.accuracy);
        }
      }
      row.push_back(text);
    }
    rows.push_back(std::move(row));
  }
  return absl::StrCat("<h2>Largest stable learning rate</h2>\n<p class=\"note\">In brackets the rate "
                      "that was taken, and its accuracy in the last round of the search.</p>\n",
                      Table(header, rows, 1));
}

std::string Page::SearchDetails() const {
  if (!study_.has_search()) return "";
  std::vector<Row> rows;
  for (size_t cell = 0; cell < study_.cells().size(); ++cell) {
    const SearchOutcome search = plan_.Search(cell, results_);
    for (size_t r = 0; r < search.rungs.size(); ++r) {
      std::string text;
      for (const SearchCandidate& candidate : search.rungs[r]) {
        if (!candidate.done) continue;
        absl::StrAppend(&text, text.empty() ? "" : ", ",
                        FormatRateSetting(candidate.learning_rate), ": ",
                        candidate.diverged ? "diverged"
                                           : absl::StrFormat("%.2f", 100 * candidate.accuracy));
      }
      if (text.empty()) continue;
      rows.push_back({study_.label(cell), FleetName(study_.cells()[cell]),
                      absl::StrCat(study_.spec().search().epochs(r)), text});
    }
  }
  if (rows.empty()) return "";
  return absl::StrCat("<details><summary>The search in full</summary>\n",
                      Table({"rule", "fleet", "epochs", "accuracy in % by learning rate"}, rows, 4),
                      "</details>\n");
}

std::string Page::Definitions() const {
  std::vector<std::pair<std::string, std::string>> terms = {
      {"Run", "One training of a model on N virtual workers in virtual time, with real gradients and "
              "the very objects of the servers. An epoch is one pass by all workers together, "
              "so every N has the same number of gradients."},
      {"Seed", "Sets the data's order, the first values and the machines' clock: variants of one "
               "seed have the same machines, so that they may be compared seed by seed. Bands and "
               "bars reach from the lowest to the highest seed; ± is the standard deviation of the "
               "sample."},
      {"Accuracy", "On all test data, of the servers' parameters, whose running statistics were "
                   "measured anew on training batches. A run that diverged (a loss or parameter "
                   "that is not finite) counts with the accuracy of guessing, in learning curves from "
                   "there on."},
      {"Lag", "Updates applied to a segment between sending parameters and applying the gradient "
              "computed at them. The mean is over all elements; the distribution and the 99th "
              "percentile are of the first segment of each push."},
      {"Gap", "Root mean square distance between the parameters when a gradient is applied and "
              "those it was computed at; over all pushes of trainable segments, weighted by "
              "their elements."},
      {"Surprise", "The same distance between what the worker was sent and what the rule would "
                   "send it just before applying: 0 for a perfect prediction."},
      {"Equal and unequal machines",
       absl::StrFormat(
           "A batch takes Gamma-distributed time of mean %.4g s and variation %.4g. Unequal "
           "machines first draw their own mean from a Gamma of variation %.4g.",
           study_.spec().clock().batch_seconds(), study_.spec().clock().variation(),
           study_.spec().clock().machine_variation())},
      {"Speed-up over synchronous",
       study_.has_network()
           ? "Left out: messages take time in this study, and the fleets that a speed-up compares "
             "to, one that waits for its slowest and one that never waits, are taken to send nothing."
           : "Virtual time of the same machines for as many batches where every round waits for "
             "its slowest and nothing is sent, over the run's; runs that diverged are left out. The "
             "ideal never waits for anything."}};
  if (!study_.spec().baseline().empty()) {
    terms.emplace_back("Points lost", absl::StrCat("Percentage points of final accuracy below ",
                                                   study_.spec().baseline(),
                                                   " with one worker and the same seed."));
  }
  if (study_.has_search()) {
    std::vector<std::string> epochs;
    for (uint32_t count : study_.spec().search().epochs()) epochs.push_back(absl::StrCat(count));
    terms.emplace_back(
        "Learning rates",
        absl::StrFormat("By successive halving on runs of %s epochs, schedules shortened in "
                        "proportion: each time the better %.3g of the candidates go on. Judged by "
                        "accuracy on the test data, as the papers do.",
                        absl::StrJoin(epochs, ", "), study_.spec().search().keep()));
    terms.emplace_back(
        "Largest stable rate",
        absl::StrFormat("The largest candidate that did not diverge in the shortest runs and "
                        "reached at least %.1f of the best candidate's accuracy there.",
                        StudyPlan::kStablePart));
  }
  std::string html = "<h2>What the words mean</h2>\n<dl>\n";
  for (const auto& [term, meaning] : terms) {
    absl::StrAppend(&html, "<dt>", EscapeHtml(term), "</dt><dd>", EscapeHtml(meaning), "</dd>\n");
  }
  return html + "</dl>\n";
}

std::string Page::Sources() const {
  std::string spec;
  google::protobuf::TextFormat::PrintToString(study_.spec(), &spec);
  std::string html = absl::StrCat("<details><summary>The study</summary>\n<pre>", EscapeHtml(spec),
                                  "</pre></details>\n");
  if (entries_.empty()) return html;
  const StudyEntry& first = entries_.front();
  v1::JobSpec job = study_.FinalRun(first.cell, first.seed, first.learning_rate).job;
  return absl::StrCat(html, "<details><summary>The job of its first run</summary>\n<pre>",
                      EscapeHtml(PrintJobSpec(job)), "</pre></details>\n");
}

StudyReport Page::Make() {
  StudyReport report;
  report.html = absl::StrCat(BeginPage(study_.spec().name()), Lead(), Winners());
  std::string section;
  for (const StudyChart& chart : StudyCharts(study_, summaries_)) {
    if (chart.section != section) {
      if (!section.empty()) report.html += "</div>\n";
      section = chart.section;
      absl::StrAppend(&report.html, "<h2>", EscapeHtml(section), "</h2>\n<div class=\"charts\">\n");
    }
    report.html += Figure(chart.caption, chart.svg);
    report.charts.emplace_back(chart.name, StandaloneSvg(chart.svg));
  }
  if (!section.empty()) report.html += "</div>\n";
  absl::StrAppend(&report.html, AllResults(), StableRates(), SearchDetails(), Definitions(),
                  Sources(), EndPage());
  return report;
}

}  // namespace

StudyReport MakeStudyReport(const Study& study, const RunResults& results,
                            const std::set<std::string>& failed) {
  return Page(study, results, failed).Make();
}

}  // namespace foreshard
