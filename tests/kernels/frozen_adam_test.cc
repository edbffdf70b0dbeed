#include "kernels/frozen_adam.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/isa.h"
#include "kernels/frozen_adam_reference.h"
#include "tests/kernels/numbers.h"

namespace foreshard {
namespace {

using kernels::Isa;
using kernels::ScopedIsa;

std::vector<float> Positive(uint64_t seed, uint64_t n) {
  std::vector<float> values = Numbers(seed, n);
  for (float& value : values) value = std::fabs(value) + 1e-3f;
  return values;
}

TEST(FrozenAdamTest, EveryInstructionSetGivesTheReferencesBits) {
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > kernels::BestIsa()) continue;
    const ScopedIsa scoped(isa);
    for (const uint64_t n : {0, 1, 7, 8, 31, 4096}) {
      std::vector<float> mixed = Numbers(1, n), plainly = mixed;
      const std::vector<float> momentum = Numbers(2, n);
      MixMomentum(0.9f, n, momentum.data(), mixed.data());
      MixMomentumReference(0.9f, n, momentum.data(), plainly.data());
      EXPECT_TRUE(SameBits(mixed, plainly)) << n;
      for (const bool of_gradients : {false, true}) {
        for (const float lambda : {0.0f, 0.01f}) {
          const FrozenAdamStep step = {.eta = 0.003f, .beta1 = 0.9f, .weight_decay = lambda,
                                       .of_gradients = of_gradients};
          const std::vector<float> result = Numbers(3, n), denominator = Positive(4, n);
          std::vector<float> m = momentum, theta = Numbers(5, n), m2 = m, theta2 = theta;
          TakeResult(step, n, result.data(), m.data(), denominator.data(), theta.data());
          TakeResultReference(step, n, result.data(), m2.data(), denominator.data(), theta2.data());
          EXPECT_TRUE(SameBits(m, m2)) << n;
          EXPECT_TRUE(SameBits(theta, theta2)) << n;
        }
      }
    }
  }
}

TEST(FrozenAdamTest, TheVarianceIsFlooredByItsNeighbourhood) {
  // Root mean square 5: sqrt((49 + 1 + 0 + 50) / 4).
  std::vector<float> v = {49, 1, 0, 50};
  FreezeVariance(4, 1, 0.5f, 0.25f, 1, v.data());
  EXPECT_FLOAT_EQ(v[0], 7.25f);
  EXPECT_FLOAT_EQ(v[1], 2.75f);
  EXPECT_FLOAT_EQ(v[2], 2.75f);
  EXPECT_FLOAT_EQ(v[3], std::sqrt(50.0f) + 0.25f);
}

TEST(FrozenAdamTest, TheBiasIsCorrectedBeforeTheFloor) {
  std::vector<float> v = {1, 0};
  FreezeVariance(2, 4, 0.01f, 0, 1, v.data());
  EXPECT_FLOAT_EQ(v[0], 2);
  EXPECT_FLOAT_EQ(v[1], static_cast<float>(0.01 * std::sqrt(2.0)));
}

TEST(FrozenAdamTest, WhereNoGradientCameTheFallbackIsTaken) {
  std::vector<float> v(5, 0.0f);
  FreezeVariance(5, 1, 0.01f, 0.5f, 3, v.data());
  for (const float d : v) EXPECT_EQ(d, 3.5f);
  FreezeVariance(0, 1, 0.01f, 0.5f, 3, nullptr);
}

}  // namespace
}  // namespace foreshard
