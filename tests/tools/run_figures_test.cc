#include "tools/run_figures.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

RunFigures At(uint64_t updates, uint64_t total = 1000) {
  RunFigures figures;
  figures.total_tickets = total;
  figures.epochs = 10;
  figures.batches = updates;
  figures.updates = updates;
  figures.examples = 16 * updates;
  figures.pushes_applied = updates;
  figures.staleness_counts = {0, updates};
  figures.staleness_sum = updates;
  return figures;
}

TEST(History, RatesAndTimeLeft) {
  History history;
  EXPECT_FALSE(history.SecondsLeft().has_value());
  EXPECT_EQ(history.ExamplesPerSecond(10), 0);
  for (int second = 0; second <= 20; ++second) history.Add(second, At(10 * second));
  EXPECT_DOUBLE_EQ(history.UpdatesPerSecond(10), 10);
  EXPECT_DOUBLE_EQ(history.ExamplesPerSecond(10), 160);
  EXPECT_DOUBLE_EQ(history.SecondsLeft().value(), 80);
  ASSERT_EQ(history.samples().size(), 20u);
  EXPECT_DOUBLE_EQ(history.samples()[5].examples_per_second, 160);
  EXPECT_DOUBLE_EQ(history.samples()[5].staleness_mean, 1);
  EXPECT_DOUBLE_EQ(history.samples()[5].staleness_p99, 1);
  EXPECT_TRUE(std::isnan(history.samples()[5].loss));
}

TEST(History, TimeLeftCountsSkippedBatchesToo) {
  History history;
  for (int second = 0; second <= 20; ++second) {
    RunFigures figures = At(10 * second);
    figures.skipped_batches = 5 * second;
    figures.updates = 5 * second;
    history.Add(second, figures);
  }
  EXPECT_DOUBLE_EQ(history.UpdatesPerSecond(10), 5);
  EXPECT_DOUBLE_EQ(history.SecondsLeft().value(), 80);
}

TEST(History, SamplesStayBoundedAndCoverTheWholeRun) {
  History history;
  constexpr int kSeconds = 50'000;
  for (int second = 0; second <= kSeconds; ++second) history.Add(second, At(second, kSeconds));
  EXPECT_LT(history.samples().size(), History::kMaxSamples);
  EXPECT_GT(history.samples().size(), History::kMaxSamples / 8);
  EXPECT_LT(history.samples().front().seconds, kSeconds / 100);
  EXPECT_GT(history.samples().back().seconds, kSeconds * 0.99);
}

TEST(History, RemembersWorkersThatAreGone) {
  History history;
  RunFigures figures;
  figures.workers = {{.id = 0, .incarnation = 5, .name = "a", .examples = 100},
                     {.id = 1, .incarnation = 6, .name = "b"}};
  history.Add(0, figures);
  // Slot 0 is taken by a later start.
  figures.workers[0] = {.id = 0, .incarnation = 9, .name = "c"};
  history.Add(1, figures);
  const std::vector<WorkerFigure> workers = history.workers();
  ASSERT_EQ(workers.size(), 3u);
  EXPECT_EQ(workers[0].name, "a");
  EXPECT_EQ(workers[0].examples, 100u);
  EXPECT_EQ(workers[1].name, "c");
  EXPECT_EQ(workers[2].name, "b");
}

TEST(History, ListsAStartThatItNeverSawAtWork) {
  History history;
  RunFigures figures;
  figures.workers = {{.id = 0, .incarnation = 5, .name = "a", .examples = 100}};
  history.Add(0, figures);
  // Between two looks, b took the slot of a and c that of b; a did one more batch.
  figures.past_workers = {{.id = 0, .incarnation = 5, .name = "a", .examples = 116},
                          {.id = 0, .incarnation = 9, .name = "b", .examples = 32}};
  figures.workers = {{.id = 0, .incarnation = 2, .name = "c"}};
  history.Add(1, figures);
  const std::vector<WorkerFigure> workers = history.workers();
  ASSERT_EQ(workers.size(), 3u);
  EXPECT_EQ(workers[0].name, "a");
  EXPECT_EQ(workers[0].examples, 116u);
  EXPECT_EQ(workers[1].name, "b");
  EXPECT_EQ(workers[1].examples, 32u);
  EXPECT_EQ(workers[2].name, "c");
}

TEST(History, KeepsEachEvaluationOnceWithTheTimeItCame) {
  History history;
  RunFigures figures;
  figures.evaluations = {{.parameters = "master", .epoch = 1, .accuracy = 0.5}};
  history.Add(3, figures);
  figures.evaluations.push_back({.parameters = "master", .epoch = 2, .accuracy = 0.6});
  figures.evaluations.push_back(
      {.parameters = "master", .epoch = 2, .accuracy = 0.61, .final = true});
  history.Add(7, figures);
  ASSERT_EQ(history.evaluations().size(), 3u);
  EXPECT_EQ(history.evaluations()[0].at_seconds, 3);
  EXPECT_EQ(history.evaluations()[1].at_seconds, 7);
  EXPECT_DOUBLE_EQ(history.LastEvaluation("master")->accuracy, 0.61);
  EXPECT_FALSE(history.LastEvaluation("lookahead").has_value());
}

}  // namespace
}  // namespace foreshard
