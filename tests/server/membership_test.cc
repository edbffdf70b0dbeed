#include "server/membership.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

constexpr int64_t kLease = 100;

TEST(Membership, FencesOlderIncarnationsAndStrangers) {
  Membership members(2, kLease);
  EXPECT_EQ(members.Touch(0, 5, 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(members.Touch(2, 5, 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(members.Join(2, 5, "a", "cpu", 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(members.Join(0, 0, "a", "cpu", 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(members.Join(0, 5, "a", "cpu", 1).ok());
  EXPECT_TRUE(members.Touch(0, 5, 2).ok());
  EXPECT_EQ(members.Touch(0, 4, 2).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(members.Touch(0, 6, 2).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(members.Join(0, 4, "b", "cpu", 2).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(members.Join(0, 6, "b", "cpu", 2).ok());
  EXPECT_EQ(members.Touch(0, 5, 3).code(), absl::StatusCode::kAborted);
  ASSERT_EQ(members.Members().size(), 1);
  EXPECT_EQ(members.Members()[0].name, "b");
}

TEST(Membership, SilentWorkersExpireAndMayReturn) {
  Membership members(2, kLease);
  ASSERT_TRUE(members.Join(0, 1, "a", "", 0).ok());
  ASSERT_TRUE(members.Join(1, 1, "b", "", 0).ok());
  ASSERT_TRUE(members.Touch(1, 1, 50).ok());
  EXPECT_TRUE(members.ExpireSilent(kLease).empty());
  const auto expired = members.ExpireSilent(kLease + 1);
  ASSERT_EQ(expired.size(), 1);
  EXPECT_EQ(expired[0].worker, 0);
  EXPECT_EQ(expired[0].name, "a");
  EXPECT_TRUE(members.ExpireSilent(kLease + 1).empty());  // only once
  EXPECT_EQ(members.Count(Membership::State::kExpired), 1);
  EXPECT_TRUE(members.Touch(0, 1, 200).ok());
  EXPECT_EQ(members.Count(Membership::State::kTraining), 2);
}

TEST(Membership, LeavingIsForGoodAndMayBeSaidTwice) {
  Membership members(1, kLease);
  ASSERT_TRUE(members.Join(0, 1, "a", "", 0).ok());
  EXPECT_TRUE(*members.Leave(0, 1, 1));
  EXPECT_FALSE(*members.Leave(0, 1, 2));
  EXPECT_EQ(members.Touch(0, 1, 2).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(members.ExpireSilent(1000).empty());
  EXPECT_EQ(members.Leave(0, 2, 3).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(members.Join(0, 2, "b", "", 3).ok());
  EXPECT_EQ(members.Leave(0, 1, 3).status().code(), absl::StatusCode::kAborted);
}

TEST(Membership, GivesOutTheLowestFreeSlotExpiredOnesLast) {
  Membership members(3, kLease);
  EXPECT_EQ(members.FreeSlot(), 0);
  ASSERT_TRUE(members.Join(0, 1, "a", "", 0).ok());
  EXPECT_EQ(members.FreeSlot(), 1);
  members.ExpireSilent(1000);
  EXPECT_EQ(members.FreeSlot(), 1);
  ASSERT_TRUE(members.Join(1, 1, "b", "", 1000).ok());
  ASSERT_TRUE(members.Join(2, 1, "c", "", 1000).ok());
  EXPECT_EQ(members.FreeSlot(), 0);  // the expired one
  ASSERT_TRUE(members.Leave(2, 1, 1000).ok());
  EXPECT_EQ(members.FreeSlot(), 2);
  ASSERT_TRUE(members.Join(0, 2, "d", "", 1000).ok());
  ASSERT_TRUE(members.Join(2, 2, "e", "", 1000).ok());
  EXPECT_EQ(members.FreeSlot(), std::nullopt);
}

}  // namespace
}  // namespace foreshard
