#include "kernels/cuda/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/core/random.h"

namespace foreshard::kernels::cuda {
namespace {

TEST(CudaArenaTest, WhatIsGivenBackIsGivenOutAgain) {
  ArenaPlan plan;
  const auto a = plan.Take(1000);
  const auto b = plan.Take(1);
  EXPECT_EQ(a.offset, 0u);
  EXPECT_EQ(a.bytes, 1024u);
  EXPECT_EQ(b.offset, 1024u);
  plan.Give(a);
  EXPECT_EQ(plan.Take(512).offset, 0u);
  EXPECT_EQ(plan.bytes(), 1024u + 256);
}

TEST(CudaArenaTest, NeighboursBecomeOneHoleAndTheLastOneGrows) {
  ArenaPlan plan;
  const auto a = plan.Take(256);
  const auto b = plan.Take(256);
  const auto c = plan.Take(256);
  plan.Give(a);
  plan.Give(c);
  plan.Give(b);
  EXPECT_EQ(plan.Take(1024).offset, 0u);
  EXPECT_EQ(plan.bytes(), 1024u);
}

TEST(CudaArenaTest, LiveRegionsNeverOverlap) {
  ArenaPlan plan;
  std::vector<ArenaPlan::Region> live;
  uint64_t most = 0;
  for (uint64_t i = 0; i < 5000; ++i) {
    if (live.empty() || RandomBits(3, 1, i) % 5 < 3) {
      const auto made = plan.Take(RandomBits(3, 2, i) % 10000);
      for (const auto& other : live) {
        ASSERT_TRUE(made.offset + made.bytes <= other.offset ||
                    other.offset + other.bytes <= made.offset);
      }
      ASSERT_LE(made.offset + made.bytes, plan.bytes());
      live.push_back(made);
    } else {
      const size_t at = RandomBits(3, 3, i) % live.size();
      plan.Give(live[at]);
      live[at] = live.back();
      live.pop_back();
    }
    uint64_t bytes = 0;
    for (const auto& region : live) bytes += region.bytes;
    ASSERT_EQ(plan.live_bytes(), bytes);
    most = std::max(most, bytes);
  }
  EXPECT_GE(plan.bytes(), most);
  for (const auto& region : live) plan.Give(region);
  EXPECT_EQ(plan.live_bytes(), 0u);
  EXPECT_EQ(plan.Take(plan.bytes()).offset, 0u);
}

}  // namespace
}  // namespace foreshard::kernels::cuda
