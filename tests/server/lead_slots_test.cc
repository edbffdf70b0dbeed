#include "server/lead_slots.h"

#include "gmock/gmock.h"
#include "tests/server/server_harness.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;
using Kind = DealerEvent::Kind;

// 25 examples in batches of 10: an epoch's last one has 5.
class LeadSlotsTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kExamples = 25;
  void Apply(const DealerEvent& event, uint64_t incarnation = 0) {
    slots_.Apply(event, incarnation, job_, kExamples, &dealer_);
  }

  const v1::JobSpec job_ = TestJob();
  Dealer dealer_{{.batches_per_epoch = 3, .epochs = 4}};
  LeadSlots slots_{2};
};

TEST_F(LeadSlotsTest, FollowsWhoIsDealtToAndWhatTheyComplete) {
  Apply({Kind::kJoin, 1}, 7);
  Apply({Kind::kFetch, 1, 3});
  Apply({Kind::kComplete, 1, 0});
  Apply({Kind::kComplete, 1, 2});
  Apply({Kind::kComplete, 1, 2});  // again: nothing
  EXPECT_EQ(slots_.dealing(1), 7u);
  EXPECT_EQ(slots_.examples(1), 15u);
  // Its lease is over, and it comes back with what it had; a newer one begins anew.
  Apply({Kind::kLost, 1});
  EXPECT_EQ(slots_.dealing(1), 0u);
  EXPECT_EQ(slots_.known(1), 7u);
  Apply({Kind::kJoin, 1}, 7);
  EXPECT_EQ(slots_.examples(1), 15u);
  Apply({Kind::kJoin, 1}, 9);
  EXPECT_EQ(slots_.examples(1), 0u);
  EXPECT_EQ(slots_.known(1), 9u);
  EXPECT_EQ(slots_.known(0), 0u);
}

TEST_F(LeadSlotsTest, RecordsGiveTheSame) {
  LeadSlots again(2);
  Dealer dealer({.batches_per_epoch = 3, .epochs = 4});
  for (const DealerEvent& event : {DealerEvent{Kind::kJoin, 0}, {Kind::kFetch, 0, 2}, {Kind::kComplete, 0, 1}}) {
    Apply(event, 5);
    Event record = ToEvent(event);
    record.incarnation = 5;
    ASSERT_TRUE(again.Replay(record, job_, kExamples, &dealer).ok());
  }
  v1::LeadState live, replayed;
  slots_.Save(&live);
  again.Save(&replayed);
  EXPECT_EQ(live.SerializeAsString(), replayed.SerializeAsString());
  EXPECT_EQ(dealer.Save(), dealer_.Save());
  EXPECT_EQ(again.examples(0), 10u);
  EXPECT_FALSE(again.Replay(ToEvent({Kind::kJoin, 2}), job_, kExamples, &dealer).ok());
  EXPECT_FALSE(again.Replay({.kind = EventKind::kPush}, job_, kExamples, &dealer).ok());
}

TEST_F(LeadSlotsTest, LoadsWhatItSavedAndRefusesMoreSlots) {
  Apply({Kind::kJoin, 1}, 7);
  v1::LeadState state;
  slots_.Save(&state);
  LeadSlots loaded(3);
  ASSERT_TRUE(loaded.Load(state).ok());
  EXPECT_EQ(loaded.dealing(1), 7u);
  EXPECT_EQ(loaded.dealing(2), 0u);
  LeadSlots fewer(1);
  const absl::Status refused = fewer.Load(state);
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("2 worker slots, and the job has 1"));
}

}  // namespace
}  // namespace foreshard
