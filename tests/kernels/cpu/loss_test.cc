#include "kernels/cpu/loss.h"

#include <gtest/gtest.h>

#include <cmath>

namespace foreshard::kernels::cpu {
namespace {

TEST(SoftmaxCrossEntropyTest, KnownValues) {
  // Equal logits: loss ln 3, probabilities 1/3, the first class is the guess.
  const float logits[] = {2, 2, 2, 0, std::log(3.0f), 0};
  const int32_t labels[] = {0, 1};
  float gradient[6];
  const LossSum loss = SoftmaxCrossEntropy(logits, labels, 2, 3, 0.5f, gradient);
  EXPECT_NEAR(loss.loss, std::log(3.0) + std::log(5.0 / 3), 1e-6);
  EXPECT_EQ(loss.correct, 2u);
  const double want[] = {-1.0 / 3, 1.0 / 6, 1.0 / 6, 0.1, -0.2, 0.1};
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(gradient[i], want[i], 1e-6) << i;
}

TEST(SoftmaxCrossEntropyTest, LargeLogitsDoNotOverflow) {
  const float logits[] = {3e4f, -3e4f};
  const int32_t labels[] = {1};
  float gradient[2];
  const LossSum loss = SoftmaxCrossEntropy(logits, labels, 1, 2, 1, gradient);
  EXPECT_NEAR(loss.loss, 6e4, 1e-3);
  EXPECT_EQ(loss.correct, 0u);
  EXPECT_EQ(gradient[0], 1);
  EXPECT_EQ(gradient[1], -1);
}

TEST(SoftmaxCrossEntropyTest, GradientMayOverwriteLogits) {
  const float logits[] = {1, -2, 0.5f, 3};
  const int32_t labels[] = {1, 0};
  float apart[4], same[4] = {1, -2, 0.5f, 3};
  const LossSum want = SoftmaxCrossEntropy(logits, labels, 2, 2, 0.5f, apart);
  const LossSum got = SoftmaxCrossEntropy(same, labels, 2, 2, 0.5f, same);
  EXPECT_EQ(got.loss, want.loss);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(same[i], apart[i]);
}

}  // namespace
}  // namespace foreshard::kernels::cpu
