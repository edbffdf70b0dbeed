#include "kernels/worker_half.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/core/catalogue.h"
#include "common/core/random.h"
#include "gtest/gtest.h"
#include "kernels/cpu/isa.h"
#include "kernels/worker_half_reference.h"
#include "tests/kernels/numbers.h"

namespace foreshard {
namespace {

using kernels::Isa;
using kernels::ScopedIsa;

TEST(WorkerHalfTest, ExistsWhereTheCatalogueSaysSo) {
  for (const RuleTraits& rule : Rules()) {
    EXPECT_EQ(MakeWorkerHalf(rule.name, {}, 10) != nullptr, rule.worker_half) << rule.name;
  }
  EXPECT_EQ(MakeWorkerHalf("no_such_rule", {}, 10), nullptr);
}

// gamma = 1/2, lambda = 1/4: every number here is exact.
TEST(WorkerHalfTest, Formula) {
  const auto half = MakeWorkerHalf("dana_slim", {.momentum = 0.5f, .weight_decay = 0.25f}, 2);
  const std::vector<Block> blocks = {{0, 1, true}, {1, 1, false}};
  const float parameters[] = {4, 4};
  float first[] = {1, 1};
  half->Transform(blocks, 0, 0.5f, 0.5f, parameters, first);
  EXPECT_EQ(half->momentum()[0], 2);  // g' = 1 + 4/4
  EXPECT_EQ(half->momentum()[1], 1);
  EXPECT_EQ(first[0], 3);     // 2/2 + 2
  EXPECT_EQ(first[1], 1.5f);  // 1/2 + 1

  // The rate doubles: r = gamma (1 - 0.5) / 1 = 1/4 of the old v.
  float second[] = {1, 1};
  half->Transform(blocks, 0, 1.0f, 0.5f, parameters, second);
  EXPECT_EQ(half->momentum()[0], 3);  // 2/2 + 2
  EXPECT_EQ(half->momentum()[1], 1.5f);
  EXPECT_EQ(second[0], 1.5f + 2 + 0.5f);
  EXPECT_EQ(second[1], 0.75f + 1 + 0.25f);
}

TEST(WorkerHalfTest, EverySetOfInstructionsIsTheReference) {
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > kernels::BestIsa()) continue;
    ScopedIsa forced(isa);
    const std::vector<Block> blocks = {{0, 4096, true}, {4096, 100, false}, {4196, 3, true}};
    constexpr uint64_t kBegin = 5;
    constexpr uint64_t kElements = 4199;
    const auto half =
        MakeWorkerHalf("dana_slim", {.momentum = 0.9f, .weight_decay = 1e-2f}, kBegin + kElements);
    std::vector<float> v(kElements);
    for (uint64_t push = 0; push < 4; ++push) {
      const std::vector<float> parameters = Numbers(10 + push, kElements);
      std::vector<float> pushed = Numbers(20 + push, kElements);
      std::vector<float> expected = pushed;
      const float eta = push == 2 ? 0.05f : 0.1f;
      const float previous = push == 3 ? 0.05f : 0.1f;
      half->Transform(blocks, kBegin, eta, previous, parameters.data(), pushed.data());
      for (const Block& block : blocks) {
        DanaSlimHalfReference(0.9f, block.decayed ? 1e-2f : 0, DanaSlimRepair(0.9f, eta, previous),
                              block.elements, parameters.data() + block.offset,
                              v.data() + block.offset, expected.data() + block.offset);
      }
      EXPECT_TRUE(SameBits(pushed, expected)) << kernels::IsaName(isa) << " push " << push;
      EXPECT_TRUE(SameBits(half->momentum().subspan(kBegin), v)) << kernels::IsaName(isa);
    }
    for (uint64_t i = 0; i < kBegin; ++i) EXPECT_EQ(half->momentum()[i], 0);
  }
}

TEST(WorkerHalfTest, ARateOfZeroStaysFinite) {
  EXPECT_EQ(DanaSlimRepair(0.9f, 0.0f, 0.1f), 0.0f);
  EXPECT_EQ(DanaSlimRepair(0.9f, 0.1f, 0.1f), 0.0f);
  EXPECT_FLOAT_EQ(DanaSlimRepair(0.9f, 0.2f, 0.1f), 0.45f);
  EXPECT_FLOAT_EQ(DanaSlimRepair(0.9f, 0.1f, 0.2f), -0.9f);
}

}  // namespace
}  // namespace foreshard
