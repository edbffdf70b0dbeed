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
