#include "common/core/exit_code.h"

#include "gtest/gtest.h"

namespace foreshard {
namespace {

TEST(ExitCode, FollowsTheContract) {
  EXPECT_EQ(ExitCodeFor(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeFor(absl::UnavailableError("")), 1);
  EXPECT_EQ(ExitCodeFor(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(ExitCodeFor(absl::FailedPreconditionError("")), 2);
  EXPECT_EQ(ExitCodeFor(absl::UnauthenticatedError("")), 2);
  EXPECT_EQ(ExitCodeFor(absl::AbortedError("")), 4);
  EXPECT_EQ(ExitCodeFor(absl::CancelledError("")), 130);
}

}  // namespace
}  // namespace foreshard
