#include "tools/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "tools/files.h"
#include "tools/progress.h"
#include "tools/svg_chart.h"

namespace foreshard {
namespace {

using nlohmann::json;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kMostPoints = 160;  // of a curve
constexpr double kParts[] = {0.1, 0.2, 0.4, 0.6, 0.8, 1};
constexpr double kWindow = 0.05;  // of a run
constexpr double kMostPlain = 1e9;    // beyond, numbers are written with powers of ten
constexpr double kMostBytes = 1e21;   // more than anything pushes

// A number of the object, NaN where it has none.
double NumberIn(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : kNone;
}

// A member of what should be an object; null where it is none, or has no such member.
json MemberOf(const json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() ? *found : json();
}

absl::StatusOr<ComparedRun> ReadRun(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/results.json");
  const auto text = ReadFile(path);
  if (!text.ok()) return text.status();
  const json results = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const auto wrong = [&](const char* what) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", what, "; name folders that 'foreshard run --results' has made"));
  };
  if (!results.is_object() || !results.contains("job") || !results["job"].is_string()) return wrong("is no results.json");
  ComparedRun run{.name = results["job"].get<std::string>(),
                  .seconds = NumberIn(results, "seconds"),
                  .updates = NumberIn(results, "updates"),
                  .pushed_bytes = NumberIn(results, "push_bytes"),
                  .pulled_bytes = NumberIn(results, "pull_bytes"),
                  .pushed_uncompressed_bytes = NumberIn(results, "push_uncompressed_bytes"),
                  .pulled_uncompressed_bytes = NumberIn(results, "pull_uncompressed_bytes"),
                  .test_loss = NumberIn(results, "test_loss"),
                  .test_accuracy = NumberIn(results, "test_accuracy")};
  const json curves = MemberOf(results, "curves");
  const json epochs = MemberOf(curves, "epoch"), losses = MemberOf(curves, "loss");
  if (!epochs.is_array() || !losses.is_array() || epochs.empty() || epochs.size() != losses.size()) {
    return wrong("has no curves of a run");
  }
  for (size_t i = 0; i < epochs.size(); ++i) {
    if (!epochs[i].is_number() || !losses[i].is_number()) continue;
    const double epoch = epochs[i].get<double>();
    if (run.losses.empty() || epoch > run.losses.back().first) run.losses.emplace_back(epoch, losses[i].get<double>());
  }
  return run;
}

// Means of neighbours, at most kMostPoints of them.
Series Thinned(const ComparedRun& run) {
  Series series;
  series.name = run.name;
  const size_t together = (run.losses.size() + kMostPoints - 1) / kMostPoints;
  for (size_t begin = 0; begin < run.losses.size(); begin += together) {
    const size_t end = std::min(run.losses.size(), begin + together);
    double x = 0, y = 0;
    for (size_t i = begin; i < end; ++i) {
      x += run.losses[i].first;
      y += run.losses[i].second;
    }
    const auto count = static_cast<double>(end - begin);
    series.points.emplace_back(x / count, y / count);
  }
  return series;
}

std::string Figure(const char* format, double value) {
  if (!std::isfinite(value)) return "-";
  char text[32];
  std::snprintf(text, sizeof text, std::fabs(value) < kMostPlain ? format : "%.3g", value);
  return text;
}

std::string Traffic(double bytes, double uncompressed) {
  if (!(bytes > 0 && bytes < kMostBytes)) return "-";
  if (!std::isfinite(uncompressed)) return FormatBytes(bytes);
  return absl::StrFormat("%s (1/%.1f)", FormatBytes(bytes), uncompressed / bytes);
}

std::string Duration(double seconds) {
  constexpr double kMost = 1e12;
  return seconds >= 0 && seconds < kMost ? FormatDuration(seconds) : "-";
}

}  // namespace

absl::StatusOr<std::vector<ComparedRun>> ReadRuns(const std::vector<std::string>& folders) {
  std::vector<ComparedRun> runs;
  for (const std::string& folder : folders) {
    auto run = ReadRun(folder);
    if (!run.ok()) return run.status();
    runs.push_back(*std::move(run));
  }
  return runs;
}

double LossAt(const ComparedRun& run, double part) {
  if (run.losses.empty()) return kNone;
  const double end = run.losses.back().first;
  double sum = 0;
  size_t count = 0;
  for (const auto& [epoch, loss] : run.losses) {
    if (epoch > part * end || epoch <= (part - kWindow) * end) continue;
    sum += loss;
    ++count;
  }
  return count > 0 ? sum / static_cast<double>(count) : kNone;
}

std::string ComparisonTable(const std::vector<ComparedRun>& runs) {
  size_t width = 4;
  for (const ComparedRun& run : runs) width = std::max(width, run.name.size());
  std::string text = absl::StrFormat("%-*s", width, "loss");
  for (const double part : kParts) absl::StrAppendFormat(&text, "  %6s", absl::StrFormat("%.0f %%", 100 * part));
  absl::StrAppendFormat(&text, "  %9s  %8s  %20s  %20s  %8s\n", "test loss", "accuracy", "pushed (of fp32)",
                        "pulled (of fp32)", "time");
  for (const ComparedRun& run : runs) {
    absl::StrAppendFormat(&text, "%-*s", width, run.name);
    for (const double part : kParts) absl::StrAppendFormat(&text, "  %6s", Figure("%.3f", LossAt(run, part)));
    absl::StrAppendFormat(&text, "  %9s  %8s  %20s  %20s  %8s\n", Figure("%.4f", run.test_loss),
                          Figure("%.2f %%", 100 * run.test_accuracy),
                          Traffic(run.pushed_bytes, run.pushed_uncompressed_bytes),
                          Traffic(run.pulled_bytes, run.pulled_uncompressed_bytes), Duration(run.seconds));
  }
  return text;
}

std::string LossComparison(const std::vector<ComparedRun>& runs) {
  Chart chart = {.id = "loss",
                 .title = "Loss by epoch",
                 .description = "Mean loss of the training batches as the workers see them, a curve a run.",
                 .x_label = "epoch",
                 .y_label = "mean loss",
                 .x_from_zero = true};
  for (const ComparedRun& run : runs) chart.series.push_back(Thinned(run));
  return LineChart(chart);
}

}  // namespace foreshard
