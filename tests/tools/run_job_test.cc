#include "tools/run_job.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParseSlowdowns, ByPositionAndByName) {
  EXPECT_THAT(ParseSlowdowns("", 3).value(), ElementsAre(1, 1, 1));
  EXPECT_THAT(ParseSlowdowns("1,2.5", 3).value(), ElementsAre(1, 2.5, 1));
  EXPECT_THAT(ParseSlowdowns("2=4,0=1.5", 3).value(), ElementsAre(1.5, 1, 4));
}

TEST(ParseSlowdowns, RefusesWhatItCannotMean) {
  for (const char* text : {"x", "1,,2", "0.5", "-1", "nan", "inf", "1,1,1,1", "3=2", "-1=2", "a=2",
                           "0=1,2", "0=", "1,", "0=nan", "1,NaN", "0=2,0=3", "2=2,1=1,2=2",
                           "10001", "1=1e9"}) {
    const auto slowdowns = ParseSlowdowns(text, 3);
    ASSERT_TRUE(absl::IsInvalidArgument(slowdowns.status())) << text;
    EXPECT_THAT(std::string(slowdowns.status().message()), HasSubstr("--slowdown"));
  }
}

TEST(ParseSlowdowns, SaysWhichWorkerIsNamedTwice) {
  EXPECT_THAT(std::string(ParseSlowdowns("0=2,1=2,1=3", 3).status().message()),
              HasSubstr("worker 1 is named twice"));
}

}  // namespace
}  // namespace foreshard
