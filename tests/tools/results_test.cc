#include "tools/results.h"

#include <unistd.h>

#include <filesystem>
#include <limits>
#include <string>

#include "common/net/job_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/files.h"
#include "tools/report.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using nlohmann::ordered_json;

v1::JobSpec Job() {
  v1::JobSpec job;
  job.set_name("tiny<&job>");
  job.mutable_model()->set_name("mlp");
  job.mutable_training()->set_epochs(2);
  job.mutable_update()->set_rule("dana_zero");
  return job;
}

History TwoEpochs() {
  History history;
  RunFigures figures;
  figures.epochs = 2;
  figures.total_tickets = 24;
  for (int second = 0; second <= 4; ++second) {
    figures.batches = 6 * second;
    figures.skipped_batches = second;
    figures.discarded_batches = second == 4 ? 3 : 0;
    figures.updates = 5 * second;
    figures.completed_epochs = second / 2;
    figures.examples = 50 * second;
    figures.pushes_applied = 5 * second;
    figures.staleness_counts = {1, 5ull * second};
    figures.staleness_sum = 5.0 * second;
    figures.staleness_max = 1;
    figures.gap_sum = 0.5 * second;
    figures.gap_count = second;
    figures.push_bytes = 10 * second;
    figures.push_uncompressed_bytes = 320 * second;
    figures.workers = {{.id = 0,
                        .incarnation = 1,
                        .name = "worker-<0>",
                        .device = "cpu",
                        .state = "training",
                        .examples = 50ull * second,
                        .steps = 5ull * second,
                        .loss = second == 3 ? std::numeric_limits<double>::quiet_NaN() : 0.5}};
    if (second >= 2) {
      figures.evaluations = {{.parameters = "master", .epoch = 1, .loss = 0.7, .accuracy = 0.75},
                             {.parameters = "lookahead", .epoch = 1, .loss = 0.8, .accuracy = 0.7}};
    }
    if (second == 4) {
      figures.evaluations.push_back({.parameters = "master",
                                     .epoch = 2,
                                     .loss = 0.6,
                                     .accuracy = 0.8125,
                                     .examples = 100,
                                     .final = true});
    }
    history.Add(second, figures);
  }
  return history;
}

RunOutcome Completed() {
  return {.completed = true, .seconds = 4, .servers = 2, .workers = 1};
}

TEST(ResultsJson, HasTheFieldsThatOtherProgramsRead) {
  const ordered_json json = ResultsJson(Job(), Completed(), TwoEpochs());
  EXPECT_EQ(json["job"], "tiny<&job>");
  EXPECT_EQ(json["completed"], true);
  EXPECT_EQ(json["seconds"], 4);
  EXPECT_EQ(json["epochs"], 2);
  EXPECT_EQ(json["updates"], 20);
  EXPECT_EQ(json["skipped_batches"], 4);
  EXPECT_EQ(json["discarded_batches"], 3);
  EXPECT_EQ(json["examples"], 200);
  EXPECT_EQ(json["test_accuracy"], 0.8125);
  EXPECT_EQ(json["test_loss"], 0.6);
  EXPECT_EQ(json["staleness"]["mean"], 1);
  EXPECT_EQ(json["staleness"]["p50"], 1);
  EXPECT_EQ(json["staleness"]["p99"], 1);
  EXPECT_EQ(json["staleness"]["max"], 1);
  EXPECT_EQ(json["gap"]["mean"], 0.5);
  EXPECT_EQ(json["push_bytes"], 40);
  EXPECT_EQ(json["push_uncompressed_bytes"], 1280);
  EXPECT_TRUE(json["pull_bytes"].is_number_unsigned());
  EXPECT_TRUE(json["pull_uncompressed_bytes"].is_number_unsigned());
  ASSERT_EQ(json["workers"].size(), 1u);
  EXPECT_EQ(json["workers"][0]["id"], 0);
  EXPECT_EQ(json["workers"][0]["examples"], 200);
  EXPECT_EQ(json["workers"][0]["device"], "cpu");
  EXPECT_EQ(json["curves"]["loss"].size(), json["curves"]["seconds"].size());
  EXPECT_EQ(json["evaluations"].size(), 3u);
}

TEST(ResultsJson, WithoutAnEvaluationAccuracyIsNull) {
  const ordered_json json = ResultsJson(Job(), {}, History());
  EXPECT_EQ(json["completed"], false);
  EXPECT_TRUE(json["test_accuracy"].is_null());
  EXPECT_TRUE(json["test_loss"].is_null());
  EXPECT_TRUE(json["workers"].is_array());
}

TEST(ResultsJson, LookaheadStandsInWhereThereIsNothingElse) {
  History history;
  RunFigures figures;
  figures.evaluations = {{.parameters = "lookahead", .epoch = 1, .accuracy = 0.5}};
  history.Add(0, figures);
  EXPECT_EQ(ResultsJson(Job(), {}, history)["test_accuracy"], 0.5);
}

TEST(WriteResults, WritesFilesThatParse) {
  const std::string folder = ::testing::TempDir() + "results_test." + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(WriteResults(folder, Job(), Completed(), TwoEpochs()).ok());
  const auto json = ordered_json::parse(ReadFile(folder + "/results.json").value());
  EXPECT_EQ(json["test_accuracy"], 0.8125);
  EXPECT_TRUE(json["curves"]["loss"][2].is_null());  // a NaN on the way
  EXPECT_THAT(ReadFile(folder + "/report.html").value(), HasSubstr("</html>"));
  std::filesystem::remove_all(folder);
  const absl::Status status = WriteResults(folder, Job(), Completed(), TwoEpochs());
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(folder + "/results.json"));
}

TEST(Report, IsWholeEscapedAndNeedsNoNetwork) {
  const std::string html = ReportHtml(Job(), Completed(), TwoEpochs());
  EXPECT_THAT(html, HasSubstr("tiny&lt;&amp;job&gt;"));
  EXPECT_THAT(html, Not(HasSubstr("tiny<&")));
  EXPECT_THAT(html, Not(HasSubstr("worker-<0>")));
  for (const char* forbidden : {"http:", "https:", "src=", "@import", "url(", "<script", "<link"}) {
    EXPECT_THAT(html, Not(HasSubstr(forbidden)));
  }
  for (const char* id : {"accuracy", "loss", "staleness", "throughput"}) {
    EXPECT_THAT(html, HasSubstr(std::string("<title id=\"") + id + "-title\">"));
    EXPECT_THAT(html, HasSubstr(std::string("<desc id=\"") + id + "-description\">"));
  }
  EXPECT_THAT(html, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(html, HasSubstr("81.25 %"));
  EXPECT_THAT(html, HasSubstr("4 of 24 gradients were not finite"));
  EXPECT_THAT(html, Not(HasSubstr("nan")));
  EXPECT_THAT(html, Not(HasSubstr("inf ")));
}

TEST(Report, AnEmptyRunStillMakesAPage) {
  const std::string html = ReportHtml(Job(), {}, History());
  EXPECT_THAT(html, HasSubstr("no data"));
  EXPECT_THAT(html, HasSubstr("</html>"));
  EXPECT_THAT(html, Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace foreshard
