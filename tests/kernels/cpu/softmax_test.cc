#include "kernels/cpu/softmax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "common/core/random.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/loss.h"

namespace foreshard::kernels::cpu {
namespace {

TEST(SoftmaxTest, ExpIsNearTheTrueValueFromZeroToWhereItVanishes) {
  std::vector<float> x;
  for (float value = 0; value > -86.9f; value -= 0.00371f) x.push_back(value);
  std::vector<float> e(x.size());
  const double sum = ExpAndSum(x.data(), x.size(), 0, e.data());
  double wanted = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double value = std::exp(static_cast<double>(x[i]));
    wanted += value;
    ASSERT_NEAR(e[i] / value, 1, 2.5e-7) << x[i];
  }
  EXPECT_NEAR(sum / wanted, 1, 1e-6);
  const float far[] = {-87.5f, -1000.0f, -INFINITY};
  ExpAndSum(far, 3, 0, e.data());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(e[i], 0.0f);
  const float nan[] = {0, NAN};
  EXPECT_TRUE(std::isnan(ExpAndSum(nan, 2, 0, e.data())));
}

TEST(SoftmaxTest, EveryInstructionSetGivesTheSameBits) {
  for (uint64_t n : {1, 15, 16, 17, 1023, 1025, 3000}) {
    std::vector<float> x(n), first, out(n);
    for (uint64_t i = 0; i < n; ++i) x[i] = 5 * static_cast<float>(RandomNormal(1, n, i));
    double sum = 0;
    for (Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
      if (isa > BestIsa()) continue;
      const ScopedIsa forced(isa);
      const float largest = Largest(x.data(), n);
      EXPECT_EQ(largest, *std::max_element(x.begin(), x.end()));
      const double got = ExpAndSum(x.data(), n, largest, out.data());
      if (first.empty()) {
        first = out;
        sum = got;
      }
      EXPECT_EQ(out, first) << IsaName(isa);
      EXPECT_EQ(got, sum) << IsaName(isa);
    }
  }
}

TEST(MaskedCrossEntropyTest, LeavesOutRowsWithoutATarget) {
  constexpr uint32_t kClasses = 37;
  std::vector<float> logits(3 * kClasses), gradient(3 * kClasses, 7.0f);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(RandomNormal(2, 1, i));
  const int32_t targets[] = {4, kNoTarget, 36};
  const LossSum loss = MaskedCrossEntropy(logits.data(), targets, 3, kClasses, 0.5f, gradient.data());
  EXPECT_EQ(loss.count, 2u);
  const int32_t labels[] = {4, 0, 36};
  std::vector<float> wanted(3 * kClasses);
  const LossSum all = SoftmaxCrossEntropy(logits.data(), labels, 3, kClasses, 0.5f, wanted.data());
  const LossSum second = SoftmaxCrossEntropy(logits.data() + kClasses, labels + 1, 1, kClasses, 0, nullptr);
  EXPECT_NEAR(loss.loss, all.loss - second.loss, 1e-6);
  for (uint32_t c = 0; c < kClasses; ++c) {
    EXPECT_NEAR(gradient[c], wanted[c], 1e-7);
    EXPECT_EQ(gradient[kClasses + c], 0.0f);
    EXPECT_NEAR(gradient[2 * kClasses + c], wanted[2 * kClasses + c], 1e-7);
  }
  // In the place of the logits, and without a gradient, the same.
  const LossSum without = MaskedCrossEntropy(logits.data(), targets, 3, kClasses, 0, nullptr);
  EXPECT_EQ(without.loss, loss.loss);
  const LossSum in_place = MaskedCrossEntropy(logits.data(), targets, 3, kClasses, 0.5f, logits.data());
  EXPECT_EQ(in_place.loss, loss.loss);
  EXPECT_EQ(logits, gradient);
}

TEST(MaskedCrossEntropyTest, TheFirstOfEqualLargestIsTheGuess) {
  const float logits[] = {1, 3, 3, 0};
  for (int32_t target = 0; target < 4; ++target) {
    EXPECT_EQ(MaskedCrossEntropy(logits, &target, 1, 4, 0, nullptr).correct, target == 1 ? 1u : 0u);
  }
}

}  // namespace
}  // namespace foreshard::kernels::cpu
