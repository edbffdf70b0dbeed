#include "worker/patience.h"

#include <string>
#include <vector>

#include "common/core/steady_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const absl::Status kDown = absl::UnavailableError("connection refused");

TEST(Patience, BacksOffToASecondAndEndsWithTheServersName) {
  Patience patience("server 1 at here:1", absl::Seconds(10));
  const SteadyTime start = SteadyTime::Now();
  SteadyTime now = start;
  std::vector<absl::Duration> waits;
  for (;;) {
    const auto wait = patience.Failed(kDown, now);
    if (!wait.ok()) {
      EXPECT_EQ(wait.status().code(), absl::StatusCode::kUnavailable);
      EXPECT_THAT(wait.status().message(),
                  AllOf(HasSubstr("server 1 at here:1"), HasSubstr("10 s"),
                        HasSubstr("connection refused")));
      break;
    }
    waits.push_back(*wait);
    now += *wait;
    ASSERT_LT(waits.size(), 100u);
  }
  EXPECT_EQ(waits[0], kFirstBackoff);
  EXPECT_EQ(waits[1], 2 * kFirstBackoff);
  for (const absl::Duration wait : waits) EXPECT_LE(wait, kLongestBackoff);
  EXPECT_EQ(now - start, absl::Seconds(10));
  EXPECT_TRUE(patience.waiting());
}

TEST(Patience, SaysWhyAServerIsUnavailableWhereSomebodyKnows) {
  std::string why = "its certificate has expired";
  int asked = 0;
  Patience patience("server 0", absl::Seconds(10), [&] {
    ++asked;
    return why;
  });
  const SteadyTime start = SteadyTime::Now();
  ASSERT_TRUE(patience.Failed(kDown, start).ok());
  EXPECT_EQ(asked, 0) << "nothing was said yet";
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(patience.Failed(kDown, start + absl::Seconds(1)).ok());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("refused: its certificate has expired"));
  EXPECT_EQ(asked, 1);
  const auto over = patience.Failed(kDown, start + absl::Seconds(10));
  EXPECT_THAT(over.status().message(), HasSubstr("refused: its certificate has expired"));
  why = "";
  EXPECT_THAT(patience.Failed(kDown, start + absl::Seconds(11)).status().message(),
              HasSubstr("Is it running"));
  asked = 0;
  EXPECT_FALSE(patience.Failed(absl::DeadlineExceededError("late"), start + absl::Seconds(12)).ok());
  EXPECT_EQ(asked, 0) << "that is no question of the connection";
}

TEST(Patience, StartsAnewAfterASuccess) {
  Patience patience("server 0", absl::Seconds(1));
  SteadyTime now = SteadyTime::Now();
  EXPECT_FALSE(patience.waiting());
  for (int round = 0; round < 5; ++round) {
    EXPECT_EQ(*patience.Failed(kDown, now), kFirstBackoff);
    EXPECT_TRUE(patience.waiting());
    now += absl::Milliseconds(900);
    EXPECT_TRUE(patience.Failed(kDown, now).ok());
    patience.Succeeded();
    EXPECT_FALSE(patience.waiting());
    now += absl::Seconds(5);
  }
}

TEST(Patience, TriesAgainOnlyWhereThatMayHelp) {
  EXPECT_TRUE(IsTransient(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(IsTransient(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(IsTransient(absl::StatusCode::kResourceExhausted));
  EXPECT_FALSE(IsTransient(absl::StatusCode::kAborted));
  EXPECT_FALSE(IsTransient(absl::StatusCode::kInvalidArgument));
  EXPECT_FALSE(IsTransient(absl::StatusCode::kFailedPrecondition));
}

TEST(CallPatiently, RepeatsTransientFailures) {
  Patience patience("server 0", absl::Seconds(30));
  int calls = 0;
  const absl::Status status = CallPatiently(
      patience, absl::Seconds(30), [] { return false; },
      [&](grpc::ClientContext&) {
        return ++calls < 3 ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "not yet")
                           : grpc::Status::OK;
      });
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(calls, 3);
}

TEST(CallPatiently, EndsAtOnceForGood) {
  Patience patience("server 3 at x:1", absl::Seconds(30));
  int calls = 0;
  const absl::Status status = CallPatiently(
      patience, absl::Seconds(30), [] { return false; },
      [&](grpc::ClientContext&) {
        ++calls;
        return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "another job");
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "server 3 at x:1: another job");
  EXPECT_EQ(calls, 1);
}

TEST(CallPatiently, EndsWhenAsked) {
  Patience patience("server 0", absl::Seconds(3600));
  int calls = 0;
  const absl::Status status = CallPatiently(
      patience, absl::Seconds(3600), [&] { return calls >= 2; },
      [&](grpc::ClientContext&) {
        ++calls;
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "down");
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace foreshard
