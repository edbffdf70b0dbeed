#include "server/format_range.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

TEST(FormatRange, TakesTheOldestToTheNewest) {
  for (const uint64_t format : {2, 3, 4}) EXPECT_TRUE(CheckFormat("a file", format, {.oldest = 2, .newest = 4}).ok());
}

TEST(FormatRange, RefusesOthersWithTheNumbersAndWhatToDo) {
  const auto refused = [](uint64_t format, const FormatRange& reads) {
    const absl::Status status = CheckFormat("a file", format, reads);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  EXPECT_THAT(refused(5, {.oldest = 2, .newest = 4}),
              HasSubstr("a file has format 5, and this program reads 2 to 4: a newer release wrote it"));
  EXPECT_THAT(refused(1, {.oldest = 2, .newest = 4}),
              HasSubstr("a file has format 1, and this program reads 2 to 4: a release wrote it that is too old"));
  EXPECT_THAT(refused(~uint64_t{0}, {.oldest = 4, .newest = 4}), HasSubstr("this program reads only 4"));
}

}  // namespace
}  // namespace foreshard
