#include "tools/report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/net/job_spec.h"
#include "tools/html_page.h"
#include "tools/progress.h"
#include "tools/svg_chart.h"

namespace foreshard {
namespace {

// Bars beyond this many lags are put into the last one.
constexpr size_t kMaxLagBars = 48;

void Row(const std::string& name, const std::string& value, std::string* html) {
  absl::StrAppend(html, "<tr><th scope=\"row\">", EscapeHtml(name), "</th><td>", EscapeHtml(value),
                  "</td></tr>\n");
}

std::string Percent(double fraction) { return absl::StrFormat("%.2f %%", 100 * fraction); }

std::string Traffic(uint64_t bytes, uint64_t uncompressed_bytes) {
  if (CompressionRatio(uncompressed_bytes, bytes) < 1.01) {
    return absl::StrCat(FormatBytes(bytes), ", not compressed");
  }
  return absl::StrFormat("%s, uncompressed %s: %.2f times smaller", FormatBytes(bytes),
                         FormatBytes(uncompressed_bytes),
                         CompressionRatio(uncompressed_bytes, bytes));
}

std::string ParametersName(const std::string& parameters) {
  return parameters == "master" ? "the servers' parameters" : "as sent to workers (look-ahead)";
}

void SummaryTable(const v1::JobSpec& job, const RunOutcome& outcome, const History& history,
                  std::string* html) {
  const RunFigures& figures = history.latest();
  absl::StrAppend(html, "<h2>Summary</h2>\n<table>\n");
  for (const char* parameters : {"master", "lookahead"}) {
    const std::optional<EvaluationFigure> last = history.LastEvaluation(parameters);
    if (!last.has_value()) continue;
    Row(absl::StrCat("Test accuracy, ", ParametersName(parameters)),
        absl::StrFormat("%s, loss %.4f, on %d examples%s", Percent(last->accuracy), last->loss,
                        last->examples,
                        last->final ? "" : absl::StrFormat(", after epoch %d", last->epoch)),
        html);
  }
  Row("Training", absl::StrFormat("%d of %d epochs in %s (%s)", figures.completed_epochs,
                                  job.training().epochs(), FormatDuration(outcome.seconds),
                                  outcome.ended),
      html);
  const double seconds = std::max(outcome.seconds, 1e-9);
  Row("Throughput", absl::StrFormat("%s examples/s, %s updates/s over the whole run",
                                    FormatRate(figures.examples / seconds),
                                    FormatRate(figures.updates / seconds)),
      html);
  Row("Updates", absl::StrFormat("%d batches, %d examples; %d batches of lost workers dealt again",
                                 figures.updates, figures.examples, figures.redealt),
      html);
  if (figures.skipped_batches > 0) Row("Skipped", FormatSkipped(figures), html);
  if (figures.discarded_batches > 0) Row("Discarded", FormatDiscarded(figures), html);
  Row("Staleness",
      absl::StrFormat("mean %.2f, p50 %d, p99 %d, max %d updates", figures.staleness_mean(),
                      StalenessQuantile(figures.staleness_counts, 0.5, figures.staleness_max),
                      StalenessQuantile(figures.staleness_counts, 0.99, figures.staleness_max),
                      figures.staleness_max),
      html);
  Row("Gap, surprise (RMS distance of parameters)",
      absl::StrFormat("%.3g, %.3g", figures.gap_mean(), figures.surprise_mean()), html);
  Row("Pushed", Traffic(figures.push_bytes, figures.push_uncompressed_bytes), html);
  Row("Pulled", Traffic(figures.pull_bytes, figures.pull_uncompressed_bytes), html);
  Row("Rule", absl::StrFormat("%s; pushes %s, replies %s", job.update().rule(),
                              job.compression().push(), job.compression().reply()),
      html);
  absl::StrAppend(html, "</table>\n");
}

Series EvaluationSeries(const History& history, const std::string& parameters,
                        double (*value)(const EvaluationFigure&)) {
  Series series;
  series.name = parameters == "master" ? "test" : "test, look-ahead";
  series.markers = true;
  for (const EvaluationFigure& evaluation : history.evaluations()) {
    if (evaluation.parameters != parameters) continue;
    const double epoch = evaluation.epoch;
    // The final one, on all test examples, replaces that of its epoch.
    if (!series.points.empty() && series.points.back().first == epoch) series.points.pop_back();
    series.points.emplace_back(epoch, value(evaluation));
  }
  std::stable_sort(series.points.begin(), series.points.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  return series;
}

Series SampleSeries(const History& history, const std::string& name, double Sample::*x,
                    double Sample::*y) {
  Series series;
  series.name = name;
  for (const Sample& sample : history.samples()) series.points.emplace_back(sample.*x, sample.*y);
  return series;
}

std::string AccuracyChart(const History& history) {
  Chart chart = {.id = "accuracy",
                 .title = "Test accuracy by epoch",
                 .description = "Share of test examples classified rightly after each epoch.",
                 .x_label = "epoch",
                 .y_label = "test accuracy, %",
                 .x_from_zero = true};
  for (const char* parameters : {"master", "lookahead"}) {
    Series series = EvaluationSeries(history, parameters, [](const EvaluationFigure& evaluation) {
      return 100 * evaluation.accuracy;
    });
    if (!series.points.empty()) chart.series.push_back(std::move(series));
  }
  return LineChart(chart);
}

std::string LossChart(const History& history) {
  Chart chart = {.id = "loss",
                 .title = "Loss by epoch",
                 .description = "Mean cross-entropy: of training batches as the workers see them, "
                                "and of the test examples.",
                 .x_label = "epoch",
                 .y_label = "mean loss",
                 .x_from_zero = true,
                 .y_from_zero = true};
  chart.series.push_back(SampleSeries(history, "training", &Sample::epoch, &Sample::loss));
  Series test = EvaluationSeries(
      history, "master", [](const EvaluationFigure& evaluation) { return evaluation.loss; });
  if (!test.points.empty()) chart.series.push_back(std::move(test));
  return LineChart(chart);
}

std::string StalenessChart(const History& history) {
  const RunFigures& figures = history.latest();
  Chart chart = {.id = "staleness",
                 .title = "Distribution of staleness",
                 .description = "How many updates lay between sending parameters and applying the "
                                "gradient computed at them, as shares of all pushes.",
                 .x_label = "staleness, updates",
                 .y_label = "pushes, %",
                 .y_from_zero = true};
  Series bars;
  bars.name = "pushes";
  double total = 0;
  size_t last = 0;
  for (size_t lag = 0; lag < figures.staleness_counts.size(); ++lag) {
    total += figures.staleness_counts[lag];
    if (figures.staleness_counts[lag] > 0) last = lag;
  }
  for (size_t lag = 0; total > 0 && lag <= std::min(last, kMaxLagBars); ++lag) {
    double count = figures.staleness_counts[lag];
    if (lag == kMaxLagBars) {
      for (size_t beyond = lag + 1; beyond <= last; ++beyond) {
        count += figures.staleness_counts[beyond];
      }
      chart.x_label = absl::StrCat("staleness, updates (the last bar: ", lag, " or more)");
    }
    bars.points.emplace_back(lag, 100 * count / total);
  }
  chart.series.push_back(std::move(bars));
  return BarChart(chart);
}

std::string ThroughputChart(const History& history) {
  Chart chart = {.id = "throughput",
                 .title = "Throughput over time",
                 .description = "Examples trained a second, by all workers together.",
                 .x_label = "seconds",
                 .y_label = "examples a second",
                 .x_from_zero = true,
                 .y_from_zero = true};
  chart.series.push_back(SampleSeries(history, "examples/s", &Sample::seconds,
                                      &Sample::examples_per_second));
  return LineChart(chart);
}

void WorkersTable(const History& history, std::string* html) {
  absl::StrAppend(html,
                  "<h2>Workers</h2>\n<div class=\"scroll\"><table>\n<tr><th scope=\"col\">worker</th>"
                  "<th scope=\"col\">device</th><th scope=\"col\">state</th>"
                  "<th scope=\"col\" class=\"number\">examples</th>"
                  "<th scope=\"col\" class=\"number\">steps</th>"
                  "<th scope=\"col\" class=\"number\">staleness, mean</th>"
                  "<th scope=\"col\" class=\"number\">max</th></tr>\n");
  for (const WorkerFigure& worker : history.workers()) {
    absl::StrAppendFormat(html,
                          "<tr><th scope=\"row\">%s</th><td>%s</td><td>%s</td>"
                          "<td class=\"number\">%d</td><td class=\"number\">%d</td>"
                          "<td class=\"number\">%.2f</td><td class=\"number\">%d</td></tr>\n",
                          EscapeHtml(worker.name), EscapeHtml(worker.device),
                          EscapeHtml(worker.state), worker.examples, worker.steps,
                          worker.staleness_mean, worker.staleness_max);
  }
  absl::StrAppend(html, "</table></div>\n");
}

void EvaluationsTable(const History& history, std::string* html) {
  if (history.evaluations().empty()) return;
  absl::StrAppend(html,
                  "<h2>Evaluations</h2>\n<div class=\"scroll\"><table>\n<tr>"
                  "<th scope=\"col\">parameters</th><th scope=\"col\" class=\"number\">epoch</th>"
                  "<th scope=\"col\" class=\"number\">at</th>"
                  "<th scope=\"col\" class=\"number\">accuracy</th>"
                  "<th scope=\"col\" class=\"number\">loss</th>"
                  "<th scope=\"col\" class=\"number\">examples</th></tr>\n");
  for (const EvaluationFigure& evaluation : history.evaluations()) {
    absl::StrAppendFormat(html,
                          "<tr><td>%s%s</td><td class=\"number\">%d</td><td class=\"number\">%s</td>"
                          "<td class=\"number\">%s</td><td class=\"number\">%.4f</td>"
                          "<td class=\"number\">%d</td></tr>\n",
                          EscapeHtml(ParametersName(evaluation.parameters)),
                          evaluation.final ? ", final" : "", evaluation.epoch,
                          FormatDuration(evaluation.at_seconds), Percent(evaluation.accuracy),
                          evaluation.loss, evaluation.examples);
  }
  absl::StrAppend(html, "</table></div>\n");
}

}  // namespace

std::string ReportHtml(const v1::JobSpec& job, const RunOutcome& outcome, const History& history) {
  std::string html = absl::StrCat(
      BeginPage(job.name()), "<p class=\"lead\">",
      EscapeHtml(absl::StrFormat("%s: %s with %d servers and %d workers. %s.", job.model().name(),
                                 job.update().rule(), outcome.servers, outcome.workers,
                                 outcome.completed ? "Completed" : "Not completed")),
      "</p>\n<div class=\"charts\">\n", Figure("Test accuracy", AccuracyChart(history)),
      Figure("Loss", LossChart(history)), Figure("Staleness", StalenessChart(history)),
      Figure("Throughput", ThroughputChart(history)), "</div>\n");
  SummaryTable(job, outcome, history, &html);
  WorkersTable(history, &html);
  EvaluationsTable(history, &html);
  absl::StrAppend(&html, "<details><summary>The job</summary>\n<pre>",
                  EscapeHtml(PrintJobSpec(job)), "</pre></details>\n", EndPage());
  return html;
}

}  // namespace foreshard
