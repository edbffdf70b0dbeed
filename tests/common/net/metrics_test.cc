#include "common/net/metrics.h"

#include <fstream>
#include <sstream>

#include "common/net/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/text_serializer.h"
#include "tests/common/net/http_get.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

std::string Text(prometheus::Registry& registry) {
  return prometheus::TextSerializer().Serialize(registry.Collect());
}

TEST(ServerMetrics, HasEverySeriesFromTheStart) {
  ServerMetrics metrics("job", "dana_slim", 1);
  const std::string text = Text(*metrics.registry);
  for (const char* name :
       {"foreshard_push_staleness_updates_bucket", "foreshard_push_gap_sum",
        "foreshard_push_surprise_sum", "foreshard_pushes_total", "foreshard_push_bytes_total",
        "foreshard_push_uncompressed_bytes_total", "foreshard_pull_bytes_total",
        "foreshard_apply_duration_seconds_count", "foreshard_request_duration_seconds_count",
        "foreshard_parameter_version", "foreshard_learning_rate", "foreshard_epoch",
        "foreshard_workers", "foreshard_round_duration_seconds_count", "foreshard_build_info", "foreshard_shards",
        "foreshard_refusals_total", "foreshard_job_finished"}) {
    EXPECT_THAT(text, HasSubstr(name));
  }
  for (const char* result : {"applied", "duplicate", "stale", "rejected", "skipped"}) {
    EXPECT_THAT(text, HasSubstr("result=\"" + std::string(result) + "\""));
  }
  EXPECT_THAT(text, HasSubstr("shard=\"1\""));
}

TEST(WorkerMetrics, HasEverySeriesFromTheStart) {
  WorkerMetrics metrics("job", "dana_slim", "cpu");
  const std::string text = Text(*metrics.registry);
  for (const char* name :
       {"phase=\"pull\"", "phase=\"compute\"", "phase=\"encode\"", "phase=\"push\"",
        "phase=\"wait\"", "foreshard_examples_total", "foreshard_steps_total", "foreshard_loss",
        "foreshard_gradient_norm", "foreshard_error_feedback_ratio", "foreshard_worker_info",
        "foreshard_eval_accuracy", "foreshard_eval_loss", "foreshard_shards"}) {
    EXPECT_THAT(text, HasSubstr(name));
  }
}

// What Prometheus stores of one daemon: lines of the text that are no comment.
int SeriesOf(prometheus::Registry& registry) {
  std::istringstream text(Text(registry));
  int series = 0;
  for (std::string line; std::getline(text, line);) series += !line.empty() && line[0] != '#';
  return series;
}

TEST(Metrics, AreAtMostThreeHundredSeriesADaemon) {
  ServerMetrics server("job", "dana_slim", 1);
  WorkerMetrics worker("job", "dana_slim", "cpu");
  for (const int series : {SeriesOf(*server.registry), SeriesOf(*worker.registry)}) {
    EXPECT_GT(series, 100);
    EXPECT_LE(series, 300);
  }
}

TEST(MetricsEndpoint, ServesTheRegistryAndNamesATakenPort) {
  ServerMetrics metrics("job", "asgd", 0);
  metrics.pushes_applied->Increment(3);
  auto endpoint = MetricsEndpoint::Start("127.0.0.1:0", metrics.registry);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  EXPECT_THAT(HttpGet((*endpoint)->address(), "/metrics"),
              HasSubstr("result=\"applied\"} 3"));
  const auto taken = MetricsEndpoint::Start((*endpoint)->address(), metrics.registry);
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(taken.status().message()), HasSubstr((*endpoint)->address()));
}

TEST(Version, IsTheProjects) {
  std::ifstream file(FORESHARD_SOURCE_DIR "/CMakeLists.txt");
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("project(foreshard VERSION " + std::string(kVersion) + " "));
}

}  // namespace
}  // namespace foreshard
