#include "common/core/schedule.h"

#include <algorithm>

#include "gtest/gtest.h"

#include "common/core/random.h"

namespace foreshard {
namespace {

TEST(Schedule, WarmsUpFromOneWorkersShareAndIsNotMultiplied) {
  const Schedule schedule{.learning_rate = 0.8, .warmup_epochs = 2, .workers = 8, .batches_per_epoch = 100};
  EXPECT_FLOAT_EQ(schedule.At(0), 0.1f);
  EXPECT_FLOAT_EQ(schedule.At(100), 0.45f);
  EXPECT_FLOAT_EQ(schedule.At(200), 0.8f);
  EXPECT_FLOAT_EQ(schedule.At(5000), 0.8f);
}

TEST(Schedule, StepDecayActsAtItsEpochs) {
  const Schedule schedule{.learning_rate = 1, .decay = Decay::kStep, .decay_epochs = {1, 2},
                          .decay_factor = 0.1, .batches_per_epoch = 10};
  EXPECT_FLOAT_EQ(schedule.At(9), 1);
  EXPECT_FLOAT_EQ(schedule.At(10), 0.1f);
  EXPECT_FLOAT_EQ(schedule.At(20), 0.01f);
}

// Where At changes, found ticket by ticket.
std::vector<uint64_t> Jumps(const Schedule& schedule, uint64_t from, uint64_t tickets) {
  std::vector<uint64_t> jumps;
  for (uint64_t t = std::max<uint64_t>(from, 1); t < tickets; ++t) {
    if (schedule.At(t) != schedule.At(t - 1)) jumps.push_back(t);
  }
  return jumps;
}

TEST(Schedule, StepsAreTheFirstTicketsAtEachNewRate) {
  Schedule schedule{.learning_rate = 1, .decay = Decay::kStep, .decay_epochs = {1, 1.5, 2.7, 3},
                    .decay_factor = 0.5};
  for (const uint64_t batches : {1, 2, 3, 7, 10, 49, 469}) {
    schedule.batches_per_epoch = batches;
    EXPECT_EQ(schedule.Steps(), Jumps(schedule, 0, 5 * batches)) << batches;
  }
  schedule.batches_per_epoch = 10;
  EXPECT_EQ(schedule.Steps(), (std::vector<uint64_t>{10, 15, 27, 30}));
  schedule.decay_epochs = {0.01, 1, 1.01, 1e300};  // in the first batch; twice in one; never
  EXPECT_EQ(schedule.Steps(), (std::vector<uint64_t>{1, 10, 11}));
  schedule.decay = Decay::kConstant;
  EXPECT_TRUE(schedule.Steps().empty());
  schedule.decay = Decay::kCosine;
  EXPECT_TRUE(schedule.Steps().empty());
}

// A step within the warm-up is seen when that is over.
TEST(Schedule, AStepInTheWarmUpActsAtItsEnd) {
  const Schedule schedule{.learning_rate = 1, .warmup_epochs = 2, .workers = 4, .decay = Decay::kStep,
                          .decay_epochs = {1, 3}, .decay_factor = 0.1, .batches_per_epoch = 10};
  EXPECT_EQ(schedule.Steps(), (std::vector<uint64_t>{20, 30}));
  EXPECT_GT(schedule.At(19), 0.9f);
  EXPECT_FLOAT_EQ(schedule.At(20), 0.1f);
  EXPECT_EQ(Jumps(schedule, 20, 50), schedule.Steps());
}

TEST(Schedule, NewestStepIsTheLastOneReached) {
  const std::vector<uint64_t> steps = {10, 20};
  EXPECT_EQ(NewestStep(steps, 9), 0u);
  EXPECT_EQ(NewestStep(steps, 10), 10u);
  EXPECT_EQ(NewestStep(steps, 19), 10u);
  EXPECT_EQ(NewestStep(steps, 1000), 20u);
  EXPECT_EQ(NewestStep({}, 1000), 0u);
}

TEST(Schedule, CosineEndsAtItsFraction) {
  const Schedule schedule{.learning_rate = 1, .warmup_epochs = 1, .decay = Decay::kCosine,
                          .final_fraction = 0.1, .epochs = 5, .batches_per_epoch = 10};
  EXPECT_FLOAT_EQ(schedule.At(10), 1);
  EXPECT_FLOAT_EQ(schedule.At(30), 0.55f);
  EXPECT_FLOAT_EQ(schedule.At(50), 0.1f);
  EXPECT_FLOAT_EQ(schedule.At(1000), 0.1f);
}

TEST(Random, PermutationHoldsEveryIndexOnceAndDependsOnItsKey) {
  auto permutation = RandomPermutation(1, 2, 1000);
  EXPECT_EQ(permutation, RandomPermutation(1, 2, 1000));
  EXPECT_NE(permutation, RandomPermutation(1, 3, 1000));
  EXPECT_NE(permutation, RandomPermutation(2, 2, 1000));
  std::sort(permutation.begin(), permutation.end());
  for (uint32_t i = 0; i < 1000; ++i) EXPECT_EQ(permutation[i], i);
}

TEST(Random, NormalHasUnitMoments) {
  double sum = 0, squares = 0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double draw = RandomNormal(5, 6, i);
    sum += draw;
    squares += draw * draw;
  }
  EXPECT_NEAR(sum / kDraws, 0, 0.015);
  EXPECT_NEAR(squares / kDraws, 1, 0.03);
}

}  // namespace
}  // namespace foreshard
