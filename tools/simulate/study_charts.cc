#include "tools/simulate/study_charts.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/svg_chart.h"

namespace foreshard {
namespace {

// Accuracies further than this below the best are off the charts: a run that did not
// learn would squeeze all others into a line.
constexpr double kFocusPoints = 25;
// Lags are shown up to where all but this part of the pushes are.
constexpr double kLagTail = 0.001;

using Summaries = std::vector<const CellSummary*>;

double FocusLow(const std::vector<double>& values) {
  double best = 0;
  for (double value : values) best = std::max(best, value);
  double low = best;
  for (double value : values) {
    if (value >= best - kFocusPoints) low = std::min(low, value);
  }
  return std::max(0.0, std::floor(low - 1));
}

// One fleet, or one kind of machines: what a chart is about.
class Charts {
 public:
  Charts(const Study& study, const std::vector<CellSummary>& summaries)
      : study_(study), summaries_(summaries) {
    // Variants that are shown at all, so that as few as can be share a colour.
    for (const CellSummary& summary : summaries) {
      looks_.emplace(study.cells()[summary.cell].variant, static_cast<int>(looks_.size()));
    }
  }

  std::vector<StudyChart> All();

 private:
  int look(const CellSummary& summary) const {
    return looks_.at(study_.cells()[summary.cell].variant);
  }
  const StudyCell& cell(const CellSummary& summary) const { return study_.cells()[summary.cell]; }
  // The baseline's summary for these machines, or others; nullptr where there is none.
  const CellSummary* Baseline(const std::string& machines) const;
  void SetBaseline(const std::string& machines, std::optional<double>* level, std::string* label) const;
  void Add(const std::string& section, const std::string& caption, const std::string& name,
           std::string svg) {
    charts_.push_back({section, caption, name, std::move(svg)});
  }

  void ByWorkers(const std::string& machines);
  void Fleet(const Summaries& fleet);
  std::string AccuracyDots(const std::string& id, const Summaries& fleet) const;
  std::string Curves(const std::string& id, const Summaries& fleet, bool by_time) const;
  std::string Lags(const std::string& id, const Summaries& fleet) const;
  std::string Gaps(const std::string& id, const Summaries& fleet) const;
  std::string SpeedDots(const std::string& id, const Summaries& fleet) const;
  Series Curve(const CellSummary& summary, bool by_time) const;
  // One series where several variants have the very same points.
  std::vector<Series> Merged(std::vector<Series> series) const;

  const Study& study_;
  const std::vector<CellSummary>& summaries_;
  std::map<size_t, int> looks_;  // by variant
  std::vector<StudyChart> charts_;
};

const CellSummary* Charts::Baseline(const std::string& machines) const {
  const CellSummary* found = nullptr;
  for (const CellSummary& summary : summaries_) {
    if (!study_.is_baseline(summary.cell)) continue;
    if (cell(summary).machines == machines) return &summary;
    if (found == nullptr) found = &summary;
  }
  return found;
}

void Charts::SetBaseline(const std::string& machines, std::optional<double>* level,
                         std::string* label) const {
  const CellSummary* baseline = Baseline(machines);
  if (baseline == nullptr) return;
  *level = 100 * baseline->accuracy.mean;
  *label = absl::StrFormat("%s, N = 1: %.2f", study_.label(baseline->cell), **level);
}

std::vector<Series> Charts::Merged(std::vector<Series> series) const {
  std::vector<Series> merged;
  std::vector<size_t> others;
  for (Series& one : series) {
    auto same = std::find_if(merged.begin(), merged.end(),
                             [&](const Series& other) { return other.points == one.points; });
    if (same == merged.end()) {
      merged.push_back(std::move(one));
      others.push_back(0);
    } else {
      ++others[same - merged.begin()];
    }
  }
  for (size_t i = 0; i < merged.size(); ++i) {
    if (others[i] > 0) absl::StrAppend(&merged[i].name, " and ", others[i], " with the same");
  }
  return merged;
}

Series Charts::Curve(const CellSummary& summary, bool by_time) const {
  Series series = {.name = study_.label(summary.cell), .look = look(summary)};
  size_t longest = 0;
  for (const StudyEntry* entry : summary.entries) {
    longest = std::max(longest, entry->result->curve.size());
  }
  // Where all diverged, the evaluations that were to come have epochs, but no times.
  const StudyEntry& first = *summary.entries.front();
  const v1::JobSpec job = study_.FinalRun(first.cell, first.seed, first.learning_rate).job;
  const uint32_t epochs = job.training().epochs();
  const uint32_t each = job.evaluation().interval_epochs() > 0 ? job.evaluation().interval_epochs()
                                                               : epochs;
  if (!by_time && summary.diverged == summary.entries.size()) {
    longest = std::max<size_t>(longest, (epochs + each - 1) / each);
  }
  for (size_t i = 0; i < longest; ++i) {
    std::vector<double> xs, accuracies;
    for (const StudyEntry* entry : summary.entries) {
      if (i >= entry->result->curve.size()) {
        // It had diverged: from there on it guesses, so that the mean is not of the
        // survivors alone.
        if (entry->result->diverged) accuracies.push_back(100 * entry->result->final_accuracy);
        continue;
      }
      const CurvePoint& point = entry->result->curve[i];
      xs.push_back(by_time ? point.virtual_seconds : point.epoch);
      accuracies.push_back(100 * point.accuracy);
    }
    if (xs.empty()) xs.push_back(std::min<double>(static_cast<double>(each) * (i + 1), epochs));
    const Spread accuracy = SpreadOf(accuracies);
    series.points.emplace_back(SpreadOf(xs).mean, accuracy.mean);
    series.spread.emplace_back(accuracy.low, accuracy.high);
  }
  if (summary.entries.size() < 2) series.spread.clear();
  return series;
}

std::string Charts::Curves(const std::string& id, const Summaries& fleet, bool by_time) const {
  Chart chart = {.id = id,
                 .title = by_time ? "Accuracy by virtual time" : "Accuracy by epoch",
                 .description = "Test accuracy of the master parameters, mean and range over the "
                                "seeds; who diverged guesses from there on.",
                 .x_label = by_time ? "virtual seconds" : "epoch",
                 .y_label = "test accuracy, %",
                 .x_from_zero = true};
  std::vector<double> values;
  const auto add = [&](Series series) {
    // The axis begins where the later half of the curves lies.
    for (size_t i = series.points.size() / 2; i < series.points.size(); ++i) {
      values.push_back(series.points[i].second);
    }
    chart.series.push_back(std::move(series));
  };
  for (const CellSummary* summary : fleet) add(Curve(*summary, by_time));
  const CellSummary* baseline = Baseline(cell(*fleet.front()).machines);
  if (!by_time && baseline != nullptr && cell(*fleet.front()).workers != 1) {
    Series series = Curve(*baseline, by_time);
    absl::StrAppend(&series.name, ", N = 1");
    add(std::move(series));
  }
  chart.y_min = FocusLow(values);
  return LineChart(chart);
}

std::string Charts::AccuracyDots(const std::string& id, const Summaries& fleet) const {
  DotPlot plot = {.id = id,
                  .title = absl::StrCat("Final accuracy, ", FleetName(cell(*fleet.front()))),
                  .description = "Test accuracy after the last epoch, a dot a seed; at the right "
                                 "mean and standard deviation. Open dots lie further left.",
                  .x_label = "final test accuracy, %"};
  Summaries sorted = fleet;
  std::stable_sort(sorted.begin(), sorted.end(), [](const CellSummary* a, const CellSummary* b) {
    return a->accuracy.mean > b->accuracy.mean;
  });
  std::vector<double> values;
  for (const CellSummary* summary : sorted) {
    DotRow row = {.name = study_.label(summary->cell), .look = look(*summary)};
    for (const StudyEntry* entry : summary->entries) {
      row.values.push_back(100 * entry->result->final_accuracy);
    }
    values.insert(values.end(), row.values.begin(), row.values.end());
    row.note = absl::StrFormat("%.2f", 100 * summary->accuracy.mean);
    if (summary->entries.size() > 1) {
      absl::StrAppendFormat(&row.note, " ± %.2f", 100 * summary->accuracy.deviation);
    }
    plot.rows.push_back(std::move(row));
  }
  plot.x_min = FocusLow(values);
  if (cell(*fleet.front()).workers != 1) {
    SetBaseline(cell(*fleet.front()).machines, &plot.reference, &plot.reference_label);
  }
  return DotChart(plot);
}

std::string Charts::Lags(const std::string& id, const Summaries& fleet) const {
  Chart chart = {.id = id,
                 .title = "Distribution of lag",
                 .description = "Updates between sending parameters and applying the gradient "
                                "computed at them, as shares of all pushes.",
                 .x_label = "lag, updates",
                 .y_label = "pushes, %",
                 .x_from_zero = true,
                 .y_from_zero = true};
  std::vector<std::vector<double>> counts;
  size_t end = 1;
  for (const CellSummary* summary : fleet) {
    std::vector<double>& all = counts.emplace_back();
    double total = 0;
    for (const StudyEntry* entry : summary->entries) {
      const std::vector<uint64_t>& lags = entry->result->lag_counts;
      if (all.size() < lags.size()) all.resize(lags.size());
      for (size_t lag = 0; lag < lags.size(); ++lag) {
        all[lag] += static_cast<double>(lags[lag]);
        total += static_cast<double>(lags[lag]);
      }
    }
    double beyond = total;
    for (size_t lag = 0; lag < all.size(); ++lag) {
      if (beyond > kLagTail * total) end = std::max(end, lag + 1);
      beyond -= all[lag];
      all[lag] *= total > 0 ? 100 / total : 0;
    }
  }
  std::vector<Series> series;
  for (size_t i = 0; i < fleet.size(); ++i) {
    // Lock-step has nothing to show, and would squeeze the others.
    if (!counts[i].empty() && counts[i][0] > 99.99) continue;
    Series one = {.name = study_.label(fleet[i]->cell), .look = look(*fleet[i])};
    for (size_t lag = 0; lag < std::min(end, counts[i].size()); ++lag) {
      one.points.emplace_back(static_cast<double>(lag), counts[i][lag]);
    }
    series.push_back(std::move(one));
  }
  chart.series = Merged(std::move(series));
  return LineChart(chart);
}

std::string Charts::Gaps(const std::string& id, const Summaries& fleet) const {
  Chart chart = {.id = id,
                 .title = "Distribution of the gap",
                 .description = "Root mean square distance of the parameters from those the "
                                "gradient was computed at, as shares of all pushes.",
                 .x_label = "gap (eight bins a power of ten)",
                 .y_label = "pushes, %",
                 .y_from_zero = true,
                 .x_log = true};
  for (const CellSummary* summary : fleet) {
    std::vector<double> all(LogHistogram::kBins + 1);
    double total = 0;
    for (const StudyEntry* entry : summary->entries) {
      const std::vector<uint64_t>& counts = entry->result->gaps.counts;
      for (size_t bin = 0; bin < std::min(all.size(), counts.size()); ++bin) {
        all[bin] += static_cast<double>(counts[bin]);
        total += static_cast<double>(counts[bin]);
      }
    }
    Series one = {.name = study_.label(summary->cell), .look = look(*summary)};
    int first = LogHistogram::kBins + 1, last = 0;
    for (int bin = 1; bin <= LogHistogram::kBins; ++bin) {
      if (all[bin] == 0) continue;
      first = std::min(first, bin);
      last = bin;
    }
    // With an empty bin on either side, so that the line comes down.
    for (int bin = std::max(1, first - 1); bin <= std::min(LogHistogram::kBins, last + 1); ++bin) {
      const double centre = LogHistogram::LowerEdge(bin) * std::pow(10.0, 1.0 / 16);
      one.points.emplace_back(centre, total > 0 ? 100 * all[bin] / total : 0);
    }
    if (last > 0) chart.series.push_back(std::move(one));
  }
  return LineChart(chart);
}

std::string Charts::SpeedDots(const std::string& id, const Summaries& fleet) const {
  DotPlot plot = {.id = id,
                  .title = "Speed-up over synchronous training",
                  .description = "Virtual time of a fleet that waits for its slowest in every "
                                 "round, over that of the run; a dot a seed that did not diverge.",
                  .x_label = "speed-up over synchronous",
                  .reference = 1.0,
                  .reference_label = "synchronous"};
  DotRow ideal = {.name = "ideal", .look = static_cast<int>(looks_.size())};
  for (const CellSummary* summary : fleet) {
    DotRow row = {.name = study_.label(summary->cell),
                  .note = summary->speedup.count > 0
                              ? absl::StrFormat("%.2f", summary->speedup.mean)
                              : "diverged",
                  .look = look(*summary)};
    for (const StudyEntry* entry : summary->entries) {
      if (!entry->result->diverged) row.values.push_back(*entry->speedup);
    }
    plot.rows.push_back(std::move(row));
  }
  // All have the same machines: the first that did not diverge.
  for (const CellSummary* summary : fleet) {
    if (summary->ideal_speedup.count == 0) continue;
    for (const StudyEntry* entry : summary->entries) {
      if (!entry->result->diverged) ideal.values.push_back(*entry->ideal_speedup);
    }
    ideal.note = absl::StrFormat("%.2f", summary->ideal_speedup.mean);
    plot.rows.push_back(std::move(ideal));
    break;
  }
  return DotChart(plot);
}

void Charts::ByWorkers(const std::string& machines) {
  const std::string section =
      machines == "trace"     ? "Machines of the trace"
      : machines == "unequal" ? "Unequal machines"
                              : "Equal machines";
  // The baseline's one worker is a level in these charts; where it is all there is
  // beside one other number, there is nothing to draw a line through.
  std::set<uint32_t> shown;
  for (const CellSummary& summary : summaries_) {
    if (cell(summary).machines == machines && !study_.is_baseline(summary.cell)) {
      shown.insert(cell(summary).workers);
    }
  }
  if (shown.size() < 2) return;
  const std::vector<double> ticks(shown.begin(), shown.end());
  const auto chart_of = [&](const std::string& name, const std::string& title,
                            const std::string& description, const std::string& label) {
    return Chart{.id = absl::StrCat(name, "-", machines),
                 .title = title,
                 .description = description,
                 .x_label = "workers",
                 .y_label = label,
                 .x_log = true,
                 .x_ticks = ticks,
                 .spread = SpreadStyle::kBars};
  };
  const auto series_of = [&](size_t variant, const std::function<Spread(const CellSummary&)>& value,
                             double factor) {
    Series series = {.markers = true};
    bool several = false;
    for (uint32_t count : shown) {
      for (const CellSummary& summary : summaries_) {
        const StudyCell& its = cell(summary);
        if (its.variant != variant || its.machines != machines || its.workers != count) continue;
        series.name = study_.label(summary.cell);
        series.look = look(summary);
        const Spread spread = value(summary);
        if (spread.count == 0) continue;
        series.points.emplace_back(count, factor * spread.mean);
        series.spread.emplace_back(factor * spread.low, factor * spread.high);
        several = several || spread.count > 1;
      }
    }
    if (!several) series.spread.clear();
    return series;
  };
  Chart accuracy = chart_of("accuracy-by-workers", "Final accuracy by number of workers",
                            "Test accuracy after the last epoch, mean and range over the seeds.",
                            "final test accuracy, %");
  Chart speed = chart_of("speedup-by-workers", "Speed-up over synchronous training",
                         "Virtual time of a fleet that waits for its slowest in every round, over "
                         "that of the run; the ideal never waits.",
                         "speed-up over synchronous");
  std::vector<double> values;
  std::vector<Series> speeds;
  for (int variant = 0; variant < study_.spec().rules_size(); ++variant) {
    Series series =
        series_of(variant, [](const CellSummary& summary) { return summary.accuracy; }, 100);
    if (series.points.empty()) continue;
    for (const auto& [x, y] : series.points) values.push_back(y);
    accuracy.series.push_back(std::move(series));
    Series its_speed =
        series_of(variant, [](const CellSummary& summary) { return summary.speedup; }, 1);
    if (!its_speed.points.empty()) speeds.push_back(std::move(its_speed));
  }
  accuracy.y_min = FocusLow(values);
  SetBaseline(machines, &accuracy.reference, &accuracy.reference_label);
  speed.series = Merged(std::move(speeds));
  // Of each number, the ideal of the first variant that did not diverge: all have the
  // same machines.
  Series ideal = {.name = "ideal", .markers = true, .look = static_cast<int>(looks_.size())};
  for (uint32_t count : shown) {
    for (const CellSummary& summary : summaries_) {
      if (cell(summary).machines != machines || cell(summary).workers != count) continue;
      if (summary.ideal_speedup.count == 0) continue;
      ideal.points.emplace_back(count, summary.ideal_speedup.mean);
      break;
    }
  }
  if (!ideal.points.empty()) speed.series.push_back(std::move(ideal));
  speed.reference = 1;
  speed.reference_label = "synchronous";
  Add(section, "Accuracy by number of workers", accuracy.id, LineChart(accuracy));
  if (study_.has_network()) return;  // compared to fleets that send nothing: no measure
  Add(section, "Speed-up by number of workers", speed.id, LineChart(speed));
}

void Charts::Fleet(const Summaries& fleet) {
  const StudyCell& first = cell(*fleet.front());
  const std::string section = FleetName(first);
  const std::string suffix = absl::StrCat("-n", first.workers, "-", first.machines);
  const auto add = [&](const std::string& caption, const std::string& name,
                       const std::function<std::string(const std::string&)>& draw) {
    Add(section, caption, name + suffix, draw(name + suffix));
  };
  add("Final accuracy", "accuracy", [&](const auto& id) { return AccuracyDots(id, fleet); });
  add("Accuracy by epoch", "epochs", [&](const auto& id) { return Curves(id, fleet, false); });
  if (first.workers == 1) return;  // no lag, and nobody to wait for
  add("Accuracy by virtual time", "time", [&](const auto& id) { return Curves(id, fleet, true); });
  if (!study_.has_network()) {
    add("Speed-up over synchronous", "speedup",
        [&](const auto& id) { return SpeedDots(id, fleet); });
  }
  add("Lag", "lag", [&](const auto& id) { return Lags(id, fleet); });
  add("Gap", "gap", [&](const auto& id) { return Gaps(id, fleet); });
}

std::vector<StudyChart> Charts::All() {
  std::vector<std::string> machines;
  for (const CellSummary& summary : summaries_) {
    const std::string& kind = cell(summary).machines;
    if (std::find(machines.begin(), machines.end(), kind) == machines.end()) machines.push_back(kind);
  }
  for (const std::string& kind : machines) ByWorkers(kind);
  for (const std::vector<size_t>& group : study_.Groups()) {
    Summaries fleet;
    bool only_baseline = true;
    for (const CellSummary& summary : summaries_) {
      if (std::find(group.begin(), group.end(), summary.cell) == group.end()) continue;
      fleet.push_back(&summary);
      only_baseline = only_baseline && study_.is_baseline(summary.cell);
    }
    // Alone, the baseline is a level in the others' charts.
    if (!fleet.empty() && (!only_baseline || study_.cells().size() == 1)) Fleet(fleet);
  }
  return std::move(charts_);
}

}  // namespace

std::vector<StudyChart> StudyCharts(const Study& study, const std::vector<CellSummary>& summaries) {
  return Charts(study, summaries).All();
}

}  // namespace foreshard
