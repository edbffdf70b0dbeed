#include "tools/progress.h"

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/counted.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

TEST(Format, Durations) {
  EXPECT_EQ(FormatDuration(0), "0:00");
  EXPECT_EQ(FormatDuration(65.4), "1:05");
  EXPECT_EQ(FormatDuration(59.6), "1:00");
  EXPECT_EQ(FormatDuration(2 * 3600 + 3 * 60 + 59), "2:03:59");
  EXPECT_EQ(FormatDuration(-3), "0:00");
}

TEST(Format, Bytes) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(999), "999 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(23.4 * 1024 * 1024), "23.4 MiB");
}

TEST(Format, Rates) {
  EXPECT_EQ(FormatRate(0), "0.0");
  EXPECT_EQ(FormatRate(26.66), "26.7");
  EXPECT_EQ(FormatRate(999.6), "1,000");
  EXPECT_EQ(FormatRate(1234567.8), "1,234,568");
  EXPECT_EQ(FormatRate(-1), "0.0");
}

TEST(Format, Counts) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(64), "64");
  EXPECT_EQ(FormatCount(1234567), "1,234,567");
  EXPECT_EQ(Counted(1, "server"), "1 server");
  EXPECT_EQ(Counted(0, "server"), "0 servers");
}

v1::JobSpec Job() {
  v1::JobSpec job;
  job.set_name("tiny");
  job.mutable_training()->set_epochs(6);
  return job;
}

RunFigures HalfWay() {
  RunFigures figures;
  figures.epochs = 6;
  figures.completed_epochs = 3;
  figures.total_tickets = 600;
  figures.batches = 300;
  figures.updates = 300;
  figures.examples = 30000;
  figures.pushes_applied = 100;
  figures.staleness_sum = 290;
  figures.staleness_counts = {1, 1, 1, 97};
  figures.staleness_max = 3;
  figures.push_bytes = 1 << 20;
  figures.push_uncompressed_bytes = 31 << 20;
  figures.pull_bytes = 10 << 20;
  figures.pull_uncompressed_bytes = 10 << 20;
  figures.workers = {{.id = 0, .name = "worker-0", .state = "training", .examples = 64, .steps = 5,
                      .loss = 0.25,
                      .examples_per_second = 1200},
                     {.id = 1, .name = "worker-1", .state = "expired", .steps = 5, .loss = 9}};
  figures.evaluations = {{.parameters = "master", .epoch = 3, .loss = 0.3, .accuracy = 0.8765,
                          .examples = 10000}};
  return figures;
}

History ToHalfWay() {
  History history;
  RunFigures before = HalfWay();
  before.batches = 200;
  before.updates = 200;
  before.examples = 20000;
  history.Add(10, before);
  history.Add(15, HalfWay());
  return history;
}

TEST(Progress, TheBlockHasEveryFigure) {
  const std::vector<std::string> lines = ProgressBlock(Job(), ToHalfWay(), 15, 200);
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  EXPECT_THAT(text, HasSubstr("50.0 %"));
  EXPECT_THAT(text, HasSubstr("epoch 3.0 of 6"));
  EXPECT_THAT(text, HasSubstr("0:15 gone, 0:15 left"));
  EXPECT_THAT(text, HasSubstr("2,000 examples/s"));
  EXPECT_THAT(text, HasSubstr("20.0 updates/s"));
  EXPECT_THAT(text, HasSubstr("loss 0.2500"));
  EXPECT_THAT(text, HasSubstr("87.65 % (epoch 3)"));
  EXPECT_THAT(text, HasSubstr("mean 2.90   p99 3"));
  EXPECT_THAT(text, HasSubstr("1.0 MiB (31.0 times smaller)"));
  EXPECT_THAT(text, HasSubstr("pulled 10.0 MiB\n"));
  EXPECT_THAT(text, HasSubstr("worker-1 expired"));
}

TEST(Progress, LinesAreCutToTheTerminal) {
  for (const std::string& line : ProgressBlock(Job(), ToHalfWay(), 15, 20)) {
    EXPECT_LE(line.size(), 20u);
  }
}

TEST(Progress, TheLineHasEveryFigure) {
  const std::string line = ProgressLine(ToHalfWay(), 15);
  for (const char* part : {"epoch 3.0 of 6", "2,000 examples/s", "20.0 updates/s", "loss 0.2500",
                           "87.65 %", "mean 2.90 p99 3", "31.0 times", "left 0:15"}) {
    EXPECT_THAT(line, HasSubstr(part));
  }
}

TEST(Progress, NothingYetIsShownAsNothing) {
  History history;
  history.Add(0, RunFigures());
  EXPECT_THAT(ProgressLine(history, 0), HasSubstr("loss -"));
  EXPECT_THAT(ProgressLine(history, 0), HasSubstr("left -"));
}

TEST(Progress, WithoutATerminalALineComesNowAndThenAndAtEvaluations) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  {
    ProgressDisplay display(file, Job());
    History history;
    RunFigures figures = HalfWay();
    figures.evaluations.clear();
    for (int second = 0; second < 20; ++second) {
      history.Add(second, figures);
      display.Show(history, second);
    }
    history.Add(20, HalfWay());
    display.Notice("a notice");
  }
  std::rewind(file);
  std::string text(1 << 16, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  EXPECT_THAT(lines, SizeIs(3));  // at 0 s, at 10 s, the notice
  EXPECT_THAT(lines, Each(Not(HasSubstr("\x1b"))));
}

TEST(Progress, SkippedBatchesAreNamedWhereThereAreAny) {
  const std::string without = absl::StrCat(
      absl::StrJoin(ProgressBlock(Job(), ToHalfWay(), 15, 200), "\n"),
      ProgressLine(ToHalfWay(), 15), Summary(Job(), ToHalfWay(), true, "completed", 15, ""));
  EXPECT_THAT(without, Not(HasSubstr("skipped")));
  History history;
  RunFigures figures = HalfWay();
  figures.skipped_batches = 12;
  figures.updates = 288;
  history.Add(0, figures);
  const std::string named = "12 of 300 gradients were not finite";
  EXPECT_THAT(absl::StrJoin(ProgressBlock(Job(), history, 15, 200), "\n"), HasSubstr(named));
  EXPECT_THAT(ProgressLine(history, 15), HasSubstr(named));
  EXPECT_THAT(Summary(Job(), history, true, "completed", 15, ""),
              AllOf(HasSubstr("tiny is trained"), HasSubstr(named)));
}

TEST(Progress, DiscardedBatchesAreNamedWhereThereAreAny) {
  EXPECT_THAT(Summary(Job(), ToHalfWay(), true, "completed", 15, ""), Not(HasSubstr("discarded")));
  History history;
  RunFigures figures = HalfWay();
  figures.discarded_batches = 12;
  history.Add(0, figures);
  const std::string named = "12 of 300 gradients came later than update.delay_threshold";
  EXPECT_THAT(absl::StrJoin(ProgressBlock(Job(), history, 15, 200), "\n"), HasSubstr(named));
  EXPECT_THAT(ProgressLine(history, 15), HasSubstr(named));
  EXPECT_THAT(Summary(Job(), history, true, "completed", 15, ""), HasSubstr(named));
}

TEST(Progress, SummaryOfARunThatDivergedDoesNotCallItTrained) {
  History history;
  RunFigures figures = HalfWay();
  figures.skipped_batches = 151;
  figures.updates = 149;
  history.Add(0, figures);
  const std::string text = Summary(Job(), history, true, "training diverged", 15, "");
  EXPECT_THAT(text, HasSubstr("tiny has diverged"));
  EXPECT_THAT(text, Not(HasSubstr("trained")));
}

TEST(Progress, SummarySaysWhatCameOfIt) {
  const std::string done = Summary(Job(), ToHalfWay(), true, "completed", 15, "results/x");
  EXPECT_THAT(done, HasSubstr("tiny is trained"));
  EXPECT_THAT(done, HasSubstr("87.65 %"));
  EXPECT_THAT(done, HasSubstr("worker-0        64 examples"));
  EXPECT_THAT(Summary(Job(), ToHalfWay(), true, "was not evaluated", 15, ""),
              HasSubstr("tiny is trained, but was not evaluated: 3 of 6 epochs"));
  EXPECT_THAT(done, HasSubstr("results/x/report.html"));
  EXPECT_THAT(Summary(Job(), ToHalfWay(), false, "interrupted", 15, ""),
              HasSubstr("tiny was not completed, interrupted: 3 of 6 epochs"));
}

TEST(Progress, WhatEarlierRunsHaveDoneIsNoSpeedOfThisOne) {
  History history = ToHalfWay();
  EXPECT_THAT(Summary(Job(), history, true, "completed", 15, ""), Not(HasSubstr("speed           0.0 examples/s")));
  history.GoOnFrom(history.latest());
  EXPECT_THAT(Summary(Job(), history, true, "completed", 15, ""),
              HasSubstr("speed           0.0 examples/s, 0.0 updates/s"));
}

}  // namespace
}  // namespace foreshard
