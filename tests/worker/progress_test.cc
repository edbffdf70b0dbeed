#include "worker/progress.h"

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/text_serializer.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

TEST(ProgressTest, AveragesWhatPushesMeasured) {
  Progress progress(nullptr, "");
  progress.Acknowledged(
      {.applied = true, .lag_updates = 3, .measured = true, .gap = 0.5, .surprise = 0.25});
  v1::WorkerFigures figures = progress.Figures({});
  EXPECT_EQ(figures.push_staleness(), 3);
  EXPECT_EQ(figures.push_gap(), 0.5f);
  EXPECT_EQ(figures.push_surprise(), 0.25f);
  // Skipped and discarded pushes have measured nothing.
  progress.Acknowledged({.skipped = true});
  progress.Acknowledged({.discarded = 2});
  EXPECT_EQ(progress.Figures({}).push_staleness(), 3);
  progress.Acknowledged({.applied = true, .lag_updates = 23});
  figures = progress.Figures({});
  EXPECT_FLOAT_EQ(figures.push_staleness(), 4);
  EXPECT_EQ(figures.push_gap(), 0.5f);
}

TEST(ProgressTest, FeedsTheHistogramsOfWholePushes) {
  WorkerMetrics metrics("job", "dana_slim", "cpu");
  Progress progress(&metrics, "");
  progress.Acknowledged(
      {.applied = true, .lag_updates = 2, .measured = true, .gap = 0.5, .surprise = 0.25});
  progress.Acknowledged({.skipped = true});
  const std::string text = prometheus::TextSerializer().Serialize(metrics.registry->Collect());
  const std::string labels = "{job_name=\"job\"} ";
  EXPECT_THAT(text, HasSubstr("foreshard_whole_push_staleness_updates_sum" + labels + "2\n"));
  EXPECT_THAT(text, HasSubstr("foreshard_whole_push_gap_count" + labels + "1\n"));
  EXPECT_THAT(text, HasSubstr("foreshard_whole_push_surprise_sum" + labels + "0.25\n"));
}

TEST(ProgressTest, CountsStepsAndSkips) {
  Progress progress(nullptr, "host:1");
  const SteadyTime start = SteadyTime::Now();
  progress.Step({.loss = 2, .gradient_norm = 1, .examples = 8}, start);
  progress.Step({.loss = 1e9, .examples = 8, .finite = false}, start + absl::Seconds(2));
  const v1::WorkerFigures figures = progress.Figures({.push_bytes = 5});
  EXPECT_EQ(figures.steps(), 2);
  EXPECT_EQ(figures.skipped_steps(), 1);
  EXPECT_EQ(figures.examples(), 16);
  EXPECT_EQ(figures.loss(), 2);
  EXPECT_EQ(figures.examples_per_second(), 4);
  EXPECT_EQ(figures.push_bytes(), 5);
  EXPECT_EQ(figures.metrics_address(), "host:1");
}

}  // namespace
}  // namespace foreshard
