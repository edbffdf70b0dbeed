#include "tools/results.h"

#include "absl/strings/str_cat.h"
#include "tools/files.h"
#include "tools/message_json.h"
#include "tools/json_number.h"
#include "tools/report.h"

namespace foreshard {
namespace {

using nlohmann::ordered_json;

ordered_json Workers(const History& history) {
  ordered_json list = ordered_json::array();
  for (const WorkerFigure& worker : history.workers()) {
    list.push_back({{"id", worker.id},
                    {"examples", worker.examples},
                    {"device", worker.device},
                    {"name", worker.name},
                    {"state", worker.state},
                    {"steps", worker.steps},
                    {"skipped_steps", worker.skipped_steps},
                    {"examples_per_second", Number(worker.examples_per_second)},
                    {"loss", Number(worker.loss)},
                    {"staleness", {{"mean", Number(worker.staleness_mean)},
                                   {"max", worker.staleness_max}}},
                    {"whole_push", {{"staleness", Number(worker.push_staleness)},
                                    {"gap", Number(worker.push_gap)},
                                    {"surprise", Number(worker.push_surprise)}}},
                    {"error_feedback_ratio", Number(worker.error_feedback_ratio)}});
  }
  return list;
}

ordered_json Evaluations(const History& history) {
  ordered_json list = ordered_json::array();
  for (const EvaluationFigure& evaluation : history.evaluations()) {
    list.push_back({{"parameters", evaluation.parameters},
                    {"epoch", evaluation.epoch},
                    {"seconds", Number(evaluation.at_seconds)},
                    {"accuracy", Number(evaluation.accuracy)},
                    {"loss", Number(evaluation.loss)},
                    {"examples", evaluation.examples},
                    {"final", evaluation.final}});
  }
  return list;
}

ordered_json Segments(const RunFigures& figures) {
  ordered_json list = ordered_json::array();
  for (const SegmentFigure& segment : figures.segments) {
    list.push_back({{"id", segment.id},
                    {"shard", segment.shard},
                    {"elements", segment.elements},
                    {"statistic", segment.statistic},
                    {"pushes", segment.pushes},
                    {"pushes_stale", segment.pushes_stale},
                    {"staleness", {{"mean", Number(segment.staleness_mean)},
                                   {"max", segment.staleness_max}}},
                    {"gap", {{"mean", Number(segment.gap_mean)},
                             {"surprise_mean", Number(segment.surprise_mean)}}}});
  }
  return list;
}

// One list a figure, all of one length.
ordered_json Curves(const History& history) {
  ordered_json curves = {{"seconds", ordered_json::array()},
                         {"epoch", ordered_json::array()},
                         {"examples_per_second", ordered_json::array()},
                         {"updates_per_second", ordered_json::array()},
                         {"loss", ordered_json::array()},
                         {"staleness_mean", ordered_json::array()},
                         {"staleness_p99", ordered_json::array()},
                         {"push_bytes_per_second", ordered_json::array()},
                         {"pull_bytes_per_second", ordered_json::array()}};
  for (const Sample& sample : history.samples()) {
    curves["seconds"].push_back(Number(sample.seconds));
    curves["epoch"].push_back(Number(sample.epoch));
    curves["examples_per_second"].push_back(Number(sample.examples_per_second));
    curves["updates_per_second"].push_back(Number(sample.updates_per_second));
    curves["loss"].push_back(Number(sample.loss));
    curves["staleness_mean"].push_back(Number(sample.staleness_mean));
    curves["staleness_p99"].push_back(Number(sample.staleness_p99));
    curves["push_bytes_per_second"].push_back(Number(sample.push_bytes_per_second));
    curves["pull_bytes_per_second"].push_back(Number(sample.pull_bytes_per_second));
  }
  return curves;
}

}  // namespace

ordered_json ResultsJson(const v1::JobSpec& job, const RunOutcome& outcome,
                         const History& history) {
  const RunFigures& figures = history.latest();
  const auto quantile = [&](double q) {
    return StalenessQuantile(figures.staleness_counts, q, figures.staleness_max);
  };
  std::optional<EvaluationFigure> test = history.LastEvaluation("master");
  const std::optional<EvaluationFigure> lookahead = history.LastEvaluation("lookahead");
  if (!test.has_value()) test = lookahead;

  ordered_json json;
  json["job"] = job.name();
  json["completed"] = outcome.completed;
  json["seconds"] = Number(outcome.seconds);
  json["epochs"] = figures.completed_epochs;
  json["updates"] = figures.updates;
  json["skipped_batches"] = figures.skipped_batches;
  json["discarded_batches"] = figures.discarded_batches;
  json["examples"] = figures.examples;
  json["test_accuracy"] = test.has_value() ? Number(test->accuracy) : nullptr;
  json["test_loss"] = test.has_value() ? Number(test->loss) : nullptr;
  json["staleness"] = {{"mean", Number(figures.staleness_mean())},
                       {"p50", quantile(0.5)},
                       {"p99", quantile(0.99)},
                       {"max", figures.staleness_max},
                       {"counts", figures.staleness_counts}};
  json["gap"] = {{"mean", Number(figures.gap_mean())},
                 {"surprise_mean", Number(figures.surprise_mean())}};
  json["push_bytes"] = figures.push_bytes;
  json["push_uncompressed_bytes"] = figures.push_uncompressed_bytes;
  json["pull_bytes"] = figures.pull_bytes;
  json["pull_uncompressed_bytes"] = figures.pull_uncompressed_bytes;
  json["workers"] = Workers(history);

  json["ended"] = outcome.ended;
  json["rule"] = job.update().rule();
  json["servers"] = outcome.servers;
  json["workers_started"] = outcome.workers;
  json["lookahead_test_accuracy"] = lookahead.has_value() ? Number(lookahead->accuracy) : nullptr;
  json["statistics_push_bytes"] = figures.statistics_push_bytes;
  json["pushes"] = {{"applied", figures.pushes_applied},
                    {"duplicate", figures.pushes_duplicate},
                    {"stale", figures.pushes_stale},
                    {"rejected", figures.pushes_rejected},
                    {"skipped", figures.pushes_skipped}};
  json["redealt_batches"] = figures.redealt;
  json["shard_imbalance"] = Number(figures.shard_imbalance);
  json["segments"] = Segments(figures);
  json["evaluations"] = Evaluations(history);
  json["curves"] = Curves(history);
  return json;
}

absl::Status WriteResults(const std::string& folder, const v1::JobSpec& job,
                          const RunOutcome& outcome, const History& history) {
  const ordered_json json = ResultsJson(job, outcome, history);
  const std::string text = JsonText(json);
  if (absl::Status status = WriteFileAtomically(absl::StrCat(folder, "/results.json"), text);
      !status.ok()) {
    return status;
  }
  return WriteFileAtomically(absl::StrCat(folder, "/report.html"),
                             ReportHtml(job, outcome, history));
}

}  // namespace foreshard
