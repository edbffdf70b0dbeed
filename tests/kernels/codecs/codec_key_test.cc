// The keys and draws of kernels/codecs/README.md: pinned (by a separate program, from that
// page), different where they must be, the same where they must be.
#include "kernels/codecs/codec_key.h"

#include <cmath>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace foreshard {
namespace {

TEST(CodecKeyTest, NumbersStay) {
  EXPECT_EQ(CodecDraw(0x0123456789abcdef, 0), 0x3bee110fu);
  EXPECT_EQ(CodecDraw(0x0123456789abcdef, 1), 0x3aa5aaf2u);
  EXPECT_EQ(CodecDraw(0x0123456789abcdef, 4095), 0x61473021u);
  EXPECT_EQ(CodecDraw(0xfedcba9876543210, 1), 0xe57d9354u);
  const CodecKey push = PushKey(7, 3, {.worker = 2, .sequence = 17});
  EXPECT_EQ(push.shared, 0x6a4a6f16eb6d0adcu);
  EXPECT_EQ(push.own, 0xf6d34fe231b81261u);
  const CodecKey round = PushKey(7, 3, {.worker = 2, .sequence = 5, .round = 17});
  EXPECT_EQ(round.shared, 0x605552cbc4b40a2fu);
  EXPECT_EQ(round.own, 0xdfebc2940edc89bdu);
  const CodecKey block =
      BlockKey({.shared = 0x0123456789abcdef, .own = 0xfedcba9876543210}, 4096);
  EXPECT_EQ(block.shared, 0xc64d714d05c1abf8u);
  EXPECT_EQ(block.own, 0x8674cdf5991c620du);
}

// Seed, segment, worker, sequence and block each make other keys, `shared` and `own` differ.
TEST(CodecKeyTest, EveryPushAndBlockHasItsOwn) {
  std::set<uint64_t> keys;
  size_t made = 0;
  for (uint64_t seed : {0, 1}) {
    for (uint32_t segment : {0u, 1u, 2u}) {
      for (uint32_t worker : {0u, 1u, 2u}) {
        for (uint64_t sequence = 0; sequence < 5; ++sequence) {
          const CodecKey push = PushKey(seed, segment, {.worker = worker, .sequence = sequence});
          for (uint64_t offset : {0, 100, 4096}) {
            const CodecKey block = BlockKey(push, offset);
            keys.insert({block.shared, block.own});
            made += 2;
          }
        }
      }
    }
  }
  EXPECT_EQ(keys.size(), made);
}

TEST(CodecKeyTest, ARoundIsSharedByItsWorkers) {
  const CodecKey a = PushKey(1, 2, {.worker = 0, .sequence = 8, .round = 5});
  const CodecKey b = PushKey(1, 2, {.worker = 1, .sequence = 3, .round = 5});
  EXPECT_EQ(a.shared, b.shared);
  EXPECT_NE(a.own, b.own);
  // Whoever was started again rounds as it would have.
  EXPECT_EQ(a.own, PushKey(1, 2, {.worker = 0, .sequence = 1, .round = 5}).own);
  EXPECT_NE(a.shared, PushKey(1, 2, {.worker = 0, .sequence = 8, .round = 6}).shared);
  EXPECT_NE(a.shared, PushKey(1, 3, {.worker = 0, .sequence = 8, .round = 5}).shared);
  EXPECT_NE(a.shared, PushKey(2, 2, {.worker = 0, .sequence = 8, .round = 5}).shared);
  EXPECT_NE(a.shared, PushKey(1, 2, {.worker = 0, .sequence = 5}).shared);
}

// Draws of a block and of neighbouring blocks: mean, variance, every bit, correlation of
// neighbours in both directions, within five standard deviations.
TEST(CodecKeyTest, DrawsAreUniformAndIndependent) {
  constexpr int kBlocks = 200, kDraws = 4096;
  constexpr double kAll = double{kBlocks} * kDraws;
  double sum = 0, squares = 0, along = 0, across = 0;
  std::vector<int> bits(32);
  std::vector<double> before(kDraws);
  for (int block = 0; block < kBlocks; ++block) {
    const uint64_t key = BlockKey(PushKey(5, 0, {.sequence = 1}), 4096u * block).own;
    double last = 0;
    for (int i = 0; i < kDraws; ++i) {
      const uint32_t draw = CodecDraw(key, i);
      const double value = draw * 0x1p-32 - 0.5;
      sum += value;
      squares += value * value;
      along += value * last;
      across += value * before[i];
      last = before[i] = value;
      for (int bit = 0; bit < 32; ++bit) bits[bit] += draw >> bit & 1;
    }
  }
  EXPECT_NEAR(sum / kAll, 0, 5 * std::sqrt(1 / 12.0 / kAll));
  EXPECT_NEAR(squares / kAll, 1 / 12.0, 5 * std::sqrt(1 / 180.0 / kAll));
  EXPECT_NEAR(along / kAll, 0, 5 / 12.0 / std::sqrt(kAll));
  EXPECT_NEAR(across / kAll, 0, 5 / 12.0 / std::sqrt(kAll));
  for (int bit = 0; bit < 32; ++bit) EXPECT_NEAR(bits[bit] / kAll, 0.5, 2.5 / std::sqrt(kAll)) << bit;
}

}  // namespace
}  // namespace foreshard
