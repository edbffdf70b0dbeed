#include "kernels/local_sgd.h"

#include <cstring>
#include <limits>
#include <vector>

#include "common/core/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/isa.h"
#include "kernels/local_sgd_reference.h"
#include "tests/kernels/numbers.h"

namespace foreshard {
namespace {

using kernels::Isa;
using kernels::ScopedIsa;
using testing::ElementsAre;

const std::vector<Block> kPlainAndDecayed = {{0, 1, true}, {1, 1, false}};

TEST(LocalSgdTest, PlainSteps) {
  LocalSgd local({.weight_decay = 0.25f}, 2, 3);
  const float start[] = {4, 4, 7}, gradient[] = {1, 1};
  local.Restart(start);
  local.LookAhead(0, 2, 0.5f);
  EXPECT_EQ(local.gradient_point(), local.parameters().data());
  local.Step(kPlainAndDecayed, 0, 0.5f, gradient);  // g' = 2 and 1
  EXPECT_THAT(local.parameters(), ElementsAre(3, 3.5f, 7));
  EXPECT_TRUE(local.velocity().empty());
}

TEST(LocalSgdTest, NesterovSteps) {
  LocalSgd local({.momentum = 0.5f, .weight_decay = 0.25f}, 2, 3);
  const float start[] = {4, 4, 7}, gradient[] = {1, 1};
  local.Restart(start);
  for (int step = 0; step < 2; ++step) {
    local.LookAhead(0, 2, 0.5f);
    const std::vector<float> at(local.gradient_point(), local.gradient_point() + 3);
    if (step == 0) {
      EXPECT_THAT(at, ElementsAre(4, 4, 7));
    } else {
      EXPECT_THAT(at, ElementsAre(2.5f, 3.25f, 7));  // minus v/4
    }
    local.Step(kPlainAndDecayed, 0, 0.5f, gradient);
    if (step == 0) {
      EXPECT_THAT(local.velocity(), ElementsAre(2, 1));
      EXPECT_THAT(local.parameters(), ElementsAre(3, 3.5f, 7));
    }
  }
  EXPECT_THAT(local.velocity(), ElementsAre(2.75f, 1.5f));  // g' = 1.75 and 1
  EXPECT_THAT(local.parameters(), ElementsAre(1.625f, 2.75f, 7));
}

TEST(LocalSgdTest, WorkerLosesWhatIsWritten) {
  LocalSgd local({.momentum = 0.5f}, 2, 2);
  const float start[] = {4, -4}, center[] = {2, 4}, gradient[] = {2, 2};
  local.Restart(start);
  local.Step({{0, 2, false}}, 0, 0.5f, gradient);
  float difference[2];
  EXPECT_TRUE(local.Difference(0, 2, 0.25f, center, difference));
  EXPECT_THAT(difference, ElementsAre(0.25f, -2.25f));  // of 3 - 2 and -5 - 4
  EXPECT_THAT(local.parameters(), ElementsAre(2.75f, -2.75f));
  EXPECT_THAT(local.velocity(), ElementsAre(2, 2));  // it keeps its way
  local.Restart(center);
  EXPECT_THAT(local.parameters(), ElementsAre(2, 4));
  EXPECT_THAT(local.velocity(), ElementsAre(0, 0));
  local.LookAhead(0, 2, 0.5f);
  EXPECT_EQ(local.gradient_point()[1], 4);
}

TEST(LocalSgdTest, SaysWhenADifferenceIsNotFinite) {
  constexpr uint64_t kElements = 3 * kMaxBlockElements + 5;
  const std::vector<float> center(kElements, 1);
  std::vector<float> start(kElements, 2), difference(kElements);
  LocalSgd local({}, kElements, kElements);
  for (const uint64_t bad : {uint64_t{0}, uint64_t{kMaxBlockElements}, kElements - 1}) {
    start.assign(kElements, 2);
    local.Restart(start.data());
    EXPECT_TRUE(local.Difference(0, kElements, 0.5f, center.data(), difference.data()));
    start[bad] = std::numeric_limits<float>::infinity();
    local.Restart(start.data());
    EXPECT_FALSE(local.Difference(0, kElements, 0.5f, center.data(), difference.data())) << bad;
  }
}

TEST(LocalSgdTest, EverySetOfInstructionsIsTheReference) {
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > kernels::BestIsa()) continue;
    ScopedIsa forced(isa);
    for (const float delta : {0.0f, 0.9f}) {
      SCOPED_TRACE(kernels::IsaName(isa));
      const std::vector<Block> blocks = {{0, 4096, true}, {4096, 100, false}, {4196, 3, true}};
      constexpr uint64_t kBegin = 5, kElements = 4199, kAll = kBegin + kElements + 2;
      LocalSgd local({.momentum = delta, .weight_decay = 1e-2f}, kBegin + kElements, kAll);
      const std::vector<float> start = Numbers(1, kAll);
      local.Restart(start.data());
      std::vector<float> x(start.begin() + kBegin, start.begin() + kBegin + kElements);
      std::vector<float> v(kElements), ahead(kElements), e(kElements), difference(kElements);
      for (uint64_t step = 0; step < 6; ++step) {
        const float eta = step < 3 ? 0.1f : 0.05f;
        local.LookAhead(kBegin, kElements, eta);
        LookAheadReference(delta, eta, kElements, x.data(), v.data(), ahead.data());
        EXPECT_TRUE(SameBits({local.gradient_point() + kBegin, kElements}, ahead));
        const std::vector<float> gradient = Numbers(10 + step, kElements);
        local.Step(blocks, kBegin, eta, gradient.data());
        for (const Block& block : blocks) {
          LocalStepReference(delta, block.decayed ? 1e-2f : 0, eta, block.elements,
                             gradient.data() + block.offset,
                             delta == 0 ? nullptr : v.data() + block.offset,
                             x.data() + block.offset);
        }
        EXPECT_TRUE(SameBits(local.parameters().subspan(kBegin, kElements), x)) << step;
        if (step % 2 == 0) continue;
        const std::vector<float> center = Numbers(20 + step, kElements);
        EXPECT_TRUE(local.Difference(kBegin, kElements, 0.225f, center.data(), difference.data()));
        ElasticDifferenceReference(0.225f, kElements, center.data(), x.data(), e.data());
        EXPECT_TRUE(SameBits(difference, e)) << step;
        EXPECT_TRUE(SameBits(local.parameters().subspan(kBegin, kElements), x)) << step;
      }
      if (delta != 0) {
        EXPECT_TRUE(SameBits(local.velocity().subspan(kBegin), v));
      }
      // What lies around the segment stays.
      for (uint64_t i = 0; i < kBegin; ++i) EXPECT_EQ(local.parameters()[i], start[i]);
      for (uint64_t i = kBegin + kElements; i < kAll; ++i) {
        EXPECT_EQ(local.parameters()[i], start[i]);
      }
    }
  }
}

}  // namespace
}  // namespace foreshard
