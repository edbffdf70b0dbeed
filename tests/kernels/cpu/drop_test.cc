#include "kernels/cpu/drop.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/philox.h"

namespace foreshard::kernels::cpu {
namespace {

TEST(DropTest, FollowsTheStreamWhereverARunBegins) {
  const DropStream stream{0x123456789abcdef0, 7, 0.25f};
  for (Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > BestIsa()) continue;
    const ScopedIsa forced(isa);
    for (uint64_t first : {uint64_t{0}, uint64_t{5}, uint64_t{63}, uint64_t{64}, (uint64_t{1} << 34) - 3}) {
      std::vector<float> values(200);
      for (size_t i = 0; i < values.size(); ++i) values[i] = 1.0f + static_cast<float>(i);
      std::vector<float> wanted = values;
      uint64_t dropped = 0;
      for (size_t i = 0; i < wanted.size(); ++i) {
        const bool drop = DropoutWord(stream.key, stream.layer, first + i) < DropoutThreshold(stream.rate);
        wanted[i] = drop ? 0.0f : wanted[i] * DropoutScale(stream.rate);
        dropped += drop;
      }
      Drop(stream, first, values.size(), values.data());
      EXPECT_EQ(values, wanted) << IsaName(isa) << " from " << first;
      EXPECT_GT(dropped, 20u);
      EXPECT_LT(dropped, 80u);
    }
  }
}

TEST(DropTest, DropsTheRateAndKeepsTheMean) {
  constexpr uint64_t kValues = 1 << 20;
  std::vector<float> values(kValues, 1.0f);
  Drop({99, 3, 0.1f}, 0, kValues, values.data());
  double sum = 0;
  uint64_t zeros = 0;
  for (float value : values) {
    sum += value;
    zeros += value == 0;
  }
  // Five standard deviations of the count.
  EXPECT_NEAR(static_cast<double>(zeros) / kValues, 0.1, 1.5e-3);
  EXPECT_NEAR(sum / kValues, 1, 2e-3);
}

}  // namespace
}  // namespace foreshard::kernels::cpu
