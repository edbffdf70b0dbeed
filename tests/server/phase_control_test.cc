#include "server/phase_control.h"

#include <cmath>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

PhaseControlOptions Automatic() {
  return {.automatic = true, .span_rounds = 40, .warmup_tickets = 100, .error_limit = 50};
}

TEST(PhaseControl, FreezesOnceTheVarianceIsStableAndTheRateHasRisen) {
  PhaseControl control(Automatic());
  // v = 1 - 0.975^(t + 1): over a span of 40 rounds its sum changes by less than 4 % from
  // round 151 on, and rounds 9, 19, ... are measured.
  for (uint64_t round = 9; round < 150; round += 10) {
    const double sum = 1 - std::pow(0.975, static_cast<double>(round + 1));
    EXPECT_EQ(control.Note({.round = round, .variance_sum = sum}, 1000), std::nullopt) << round;
  }
  EXPECT_GT(control.stability(), 0.95);
  EXPECT_LT(control.stability(), 0.96);
  const RoundSums stable = {.round = 159, .variance_sum = 1 - std::pow(0.975, 160)};
  EXPECT_EQ(control.Note(stable, 99), std::nullopt);  // the rate still rises
  EXPECT_EQ(control.Note(stable, 100), Phase::kFrozen);
  EXPECT_THAT(control.reason(), HasSubstr("between rounds 119 and 159"));
}

// Another start of the lead goes on with what was measured before.
TEST(PhaseControl, ItsHistoryOutlivesIt) {
  PhaseControl control(Automatic());
  control.Note({.round = 9, .variance_sum = 0.5}, 1000);
  control.Note({.round = 49, .variance_sum = 1}, 1000);
  EXPECT_EQ(control.measured_before(), 50u);
  PhaseControl next(Automatic());
  next.Resume(control.history());
  EXPECT_EQ(next.stability(), 0.5);
  EXPECT_EQ(next.Note({.round = 89, .variance_sum = 1}, 1000), Phase::kFrozen);
  // What was measured before a change of phase says nothing of the time since.
  PhaseControl changed(Automatic());
  changed.Announced(Phase::kFull, 60);
  changed.Resume(control.history());
  EXPECT_EQ(changed.measured_before(), 0u);
  EXPECT_EQ(changed.Note({.round = 89, .variance_sum = 1}, 1000), std::nullopt);
}

TEST(PhaseControl, ASumThatFallsOrSaysNothingIsNotStable) {
  const auto decides = [](double before, double after) {
    PhaseControl control(Automatic());
    control.Note({.round = 9, .variance_sum = before}, 1000);
    return control.Note({.round = 49, .variance_sum = after}, 1000).has_value();
  };
  EXPECT_TRUE(decides(1, 0.97));
  EXPECT_TRUE(decides(0.97, 1));
  EXPECT_FALSE(decides(1, 0.95));
  EXPECT_FALSE(decides(0, 0));
  EXPECT_FALSE(decides(std::numeric_limits<double>::quiet_NaN(), 1));
  EXPECT_FALSE(decides(1, std::numeric_limits<double>::quiet_NaN()));
  EXPECT_FALSE(decides(1, std::numeric_limits<double>::infinity()));
  // Without the round a span before there is nothing to compare with.
  PhaseControl control(Automatic());
  control.Note({.round = 19, .variance_sum = 1}, 1000);
  EXPECT_EQ(control.Note({.round = 49, .variance_sum = 1}, 1000), std::nullopt);
}

TEST(PhaseControl, GoesBackWhereTheErrorIsBeyondTheLimit) {
  const auto decides = [](const RoundSums& sums) {
    return PhaseControl({.freeze_round = 10, .error_limit = 5}).Note(sums, 1000);
  };
  EXPECT_EQ(decides({.round = 20, .error_ratio = 5, .server_error_ratio = 5}), std::nullopt);
  EXPECT_EQ(decides({.round = 20, .error_ratio = 5.1}), Phase::kFull);
  EXPECT_EQ(decides({.round = 20, .server_error_ratio = 5.1}), Phase::kFull);
  EXPECT_EQ(decides({.round = 20, .error_ratio = std::numeric_limits<double>::quiet_NaN()}), Phase::kFull);
  EXPECT_EQ(decides({.round = 9, .error_ratio = 9}), std::nullopt);  // not frozen yet
  PhaseControl control({.freeze_round = 10, .error_limit = 5});
  control.Note({.round = 20, .server_error_ratio = 6}, 1000);
  EXPECT_THAT(control.reason(), HasSubstr("at the servers was 6 times"));
}

TEST(PhaseControl, DecidesNothingWhileAnAnnouncedPhaseIsNotInForce) {
  PhaseControl control({.freeze_round = 10, .error_limit = 5});
  ASSERT_EQ(control.Note({.round = 20, .error_ratio = 6}, 1000), Phase::kFull);
  control.Announced(Phase::kFull, 25);
  EXPECT_EQ(control.Note({.round = 20, .error_ratio = 6}, 1000), std::nullopt);
  EXPECT_EQ(control.Note({.round = 24, .error_ratio = 6}, 1000), std::nullopt);
  // A job whose freeze was set for a round stays in full precision.
  EXPECT_EQ(control.Note({.round = 30, .variance_sum = 1}, 1000), std::nullopt);
  EXPECT_EQ(control.Note({.round = 1030, .variance_sum = 1}, 1000), std::nullopt);
}

TEST(PhaseControl, AnAutomaticFreezeComesAgainAfterAReturn) {
  PhaseControl control(Automatic());
  control.Note({.round = 9, .variance_sum = 1}, 1000);
  ASSERT_EQ(control.Note({.round = 49, .variance_sum = 1}, 1000), Phase::kFrozen);
  control.Announced(Phase::kFrozen, 53);
  ASSERT_EQ(control.Note({.round = 59, .error_ratio = 51}, 1000), Phase::kFull);
  control.Announced(Phase::kFull, 63);
  EXPECT_EQ(control.Note({.round = 69, .variance_sum = 2}, 1000), std::nullopt);
  EXPECT_EQ(control.Note({.round = 89, .variance_sum = 1}, 1000), std::nullopt);  // what was before is forgotten
  EXPECT_EQ(control.Note({.round = 109, .variance_sum = 2}, 1000), Phase::kFrozen);
}

}  // namespace
}  // namespace foreshard
