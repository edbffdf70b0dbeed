#include "worker/batch_times.h"

#include <unistd.h>

#include <signal.h>
#include <sys/resource.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class BatchTimesTest : public ::testing::Test {
 protected:
  ~BatchTimesTest() override {
    std::remove(trace_.c_str());
    std::remove(record_.c_str());
  }
  const std::string trace_ = ::testing::TempDir() + std::to_string(getpid()) + ".batch_times_test.trace.csv";
  const std::string record_ = ::testing::TempDir() + std::to_string(getpid()) + ".batch_times_test.record.csv";
};

TEST_F(BatchTimesTest, FollowsATraceAndBeginsItAgain) {
  std::ofstream(trace_) << PrintTrace({{1}, {2, 3}});
  auto times = BatchTimes::Open({.pace = trace_});
  ASSERT_TRUE(times.ok()) << times.status();
  ASSERT_TRUE((*times)->SetWorker(1).ok());
  for (const double seconds : {2, 3, 2, 3, 2}) {
    EXPECT_EQ((*times)->LeastSeconds(), seconds);
    (*times)->Note(10);
  }
  const absl::Status beyond = (*times)->SetWorker(2);
  EXPECT_TRUE(absl::IsInvalidArgument(beyond));
  EXPECT_THAT(std::string(beyond.message()),
              AllOf(HasSubstr("--pace"), HasSubstr(trace_), HasSubstr("worker 2")));
}

TEST_F(BatchTimesTest, WritesATraceLineByLine) {
  auto times = BatchTimes::Open({.record = record_});
  ASSERT_TRUE(times.ok()) << times.status();
  ASSERT_TRUE((*times)->SetWorker(0).ok());
  EXPECT_EQ((*times)->LeastSeconds(), 0);
  (*times)->Note(0.5);
  // There before the object ends; a step quicker than the clock is still a batch.
  EXPECT_EQ(LoadTrace(record_).value(), (BatchTrace{{0.5}}));
  (*times)->Note(0);
  times->reset();
  const auto trace = LoadTrace(record_);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(*trace, (BatchTrace{{0.5, 1e-9}}));
}

TEST_F(BatchTimesTest, BadFilesAreNamedWithTheirFlag) {
  const auto missing = BatchTimes::Open({.pace = trace_});
  EXPECT_TRUE(absl::IsInvalidArgument(missing.status()));
  EXPECT_THAT(std::string(missing.status().message()),
              AllOf(HasSubstr("--pace"), HasSubstr(trace_)));
  std::ofstream(trace_) << kTraceHeader << "0,0,1\n0,2,1\n";
  const auto holed = BatchTimes::Open({.pace = trace_});
  EXPECT_TRUE(absl::IsInvalidArgument(holed.status()));
  EXPECT_THAT(std::string(holed.status().message()), AllOf(HasSubstr(":3:"), HasSubstr("hole")));
  const auto nowhere = BatchTimes::Open({.record = "/nowhere/batches.csv"});
  EXPECT_FALSE(nowhere.ok());
  EXPECT_THAT(std::string(nowhere.status().message()),
              AllOf(HasSubstr("--record-batches"), HasSubstr("/nowhere/batches.csv")));
}

TEST_F(BatchTimesTest, AFullDiskEndsTheRecordAlone) {
  EXPECT_FALSE(BatchTimes::Open({.record = "/dev/full"}).ok());  // not even the header
  auto times = BatchTimes::Open({.record = record_});
  ASSERT_TRUE(times.ok()) << times.status();
  (*times)->Note(1);
  // As on a disk that fills up: no file may grow beyond what this one has.
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_action = signal(SIGXFSZ, SIG_IGN);
  // ... and three bytes, so that a line is torn.
  const rlimit full = {.rlim_cur = std::filesystem::file_size(record_) + 3, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  (*times)->Note(2);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, old_action);
  (*times)->Note(3);
  times->reset();
  EXPECT_EQ(LoadTrace(record_).value(), (BatchTrace{{1}}));
}

}  // namespace
}  // namespace foreshard
