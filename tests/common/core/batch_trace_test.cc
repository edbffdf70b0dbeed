#include "common/core/batch_trace.h"

#include <unistd.h>

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string ErrorOf(absl::string_view lines) {
  const auto trace = ParseTrace(std::string(kTraceHeader) + std::string(lines), "a.csv");
  EXPECT_TRUE(absl::IsInvalidArgument(trace.status())) << trace.status();
  return std::string(trace.status().message());
}

TEST(BatchTrace, ReadsWhatItPrints) {
  const BatchTrace trace = {{0.25, 1e-9, 123456.789}, {3}, {0.1, 0.2}};
  const auto read = ParseTrace(PrintTrace(trace), "printed");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, trace);
}

TEST(BatchTrace, LinesMayComeInAnyOrder) {
  const auto read = ParseTrace("worker,step,seconds\r\n1,0,2\r\n0,1,0.5\n\n0,0,1.5", "a.csv");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, (BatchTrace{{1.5, 0.5}, {2}}));
}

TEST(BatchTrace, WhatIsNoNumberIsNamedByFileAndLine) {
  EXPECT_THAT(ErrorOf("0,0,1\n0,one,1\n"), AllOf(HasSubstr("a.csv:3:"), HasSubstr("'0,one,1'")));
  EXPECT_THAT(ErrorOf("0,0\n"), HasSubstr("a.csv:2:"));
  EXPECT_THAT(ErrorOf("0,0,1,1\n"), HasSubstr("a.csv:2:"));
  EXPECT_THAT(ErrorOf("-1,0,1\n"), HasSubstr("a.csv:2:"));
  EXPECT_THAT(ErrorOf("0,0,\n"), HasSubstr("a.csv:2:"));
}

TEST(BatchTrace, TimesAreAboveZeroAndFinite) {
  for (const char* seconds : {"0", "-1", "nan", "inf", "1e999", "1000001"}) {
    EXPECT_THAT(ErrorOf(std::string("0,0,1\n0,1,") + seconds + "\n"),
                AllOf(HasSubstr("a.csv:3:"), HasSubstr("above 0")));
  }
}

TEST(BatchTrace, HolesAreNamed) {
  EXPECT_THAT(ErrorOf("0,0,1\n0,1,1\n0,3,1\n"),
              AllOf(HasSubstr("a.csv:4:"), HasSubstr("worker 0 has step 3, but no step 2")));
  EXPECT_THAT(ErrorOf("0,1,1\n"), HasSubstr("worker 0 has step 1, but no step 0"));
  EXPECT_THAT(ErrorOf("0,0,1\n2,0,1\n"),
              AllOf(HasSubstr("a.csv:3:"), HasSubstr("worker 2 is there, worker 1 is not")));
  // A wild number is no reason to reserve memory for all below it.
  EXPECT_THAT(ErrorOf("4294967295,0,1\n"), HasSubstr("worker 0 is not"));
}

TEST(BatchTrace, WhatIsThereTwiceIsNamedWithBothLines) {
  EXPECT_THAT(ErrorOf("0,0,1\n0,1,1\n0,0,2\n"),
              AllOf(HasSubstr("a.csv:4:"), HasSubstr("step 0 twice"), HasSubstr("line 2")));
}

TEST(BatchTrace, NeedsItsHeaderAndABatch) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("a.csv: the trace has no batches"));
  const auto headless = ParseTrace("0,0,1\n", "a.csv");
  EXPECT_THAT(std::string(headless.status().message()),
              AllOf(HasSubstr("a.csv:1:"), HasSubstr("worker,step,seconds")));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseTrace("", "a.csv").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseTrace("\n0,0,1\n", "a.csv").status()));
}

TEST(BatchTrace, LoadsAFileAndNamesOneThatIsNotThere) {
  const std::string path = ::testing::TempDir() + std::to_string(getpid()) + ".batch_trace_test.csv";
  std::ofstream(path) << PrintTrace({{1, 2}});
  const auto read = LoadTrace(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, (BatchTrace{{1, 2}}));
  std::remove(path.c_str());
  const auto missing = LoadTrace(path);
  EXPECT_TRUE(absl::IsNotFound(missing.status())) << missing.status();
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr(path));
}

}  // namespace
}  // namespace foreshard
