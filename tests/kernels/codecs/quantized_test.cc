// quantized: levels, unbiased and independent rounding, and what is refused.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "common/core/random.h"
#include "gtest/gtest.h"
#include "kernels/codecs/codec.h"

namespace foreshard {
namespace {

struct Coded {
  std::vector<uint8_t> bytes;
  std::vector<float> decoded, error;
};

Coded Code(const std::vector<float>& values, uint32_t bits, const CodecKey& key) {
  const CodecSet codecs({.bits = bits});
  const Codec& codec = *codecs.Find("quantized");
  const auto n = static_cast<uint32_t>(values.size());
  Coded coded;
  coded.bytes.resize(codec.BlockBytes(n));
  coded.error.resize(n);
  codec.EncodeBlock(values.data(), coded.error.data(), n, key, coded.bytes.data());
  EXPECT_EQ(codec.Fault(coded.bytes.data(), n), "");
  alignas(64) float scratch[kMaxBlockElements];
  // The receiver knows nothing of how it was rounded.
  const float* decoded = codec.DecodeBlock(coded.bytes.data(), n, {}, scratch);
  coded.decoded.assign(decoded, decoded + n);
  return coded;
}

CodecKey Key(uint64_t i) { return BlockKey({.own = 7}, i); }

// Each value goes to one of its two neighbours; those on a level stay.
TEST(QuantizedTest, LevelsAreNeighbours) {
  for (uint32_t bits = 2; bits <= 8; ++bits) {
    const int most = (1 << (bits - 1)) - 1;
    std::vector<float> values(1000);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(RandomUniform(1, 1, i) - 0.5);
    values[17] = -0.75f;  // the scale
    const Coded coded = Code(values, bits, Key(1));
    const double step = 0.75 / most;
    for (size_t i = 0; i < values.size(); ++i) {
      const double level = coded.decoded[i] / step;
      EXPECT_NEAR(level, std::round(level), 1e-4);
      EXPECT_LT(std::fabs(coded.decoded[i] - values[i]), step * 1.0001) << bits << " " << i;
    }
    EXPECT_NEAR(coded.decoded[17], -0.75f, 1e-6);
    // Powers of two: level and scale are exact.
    std::vector<float> exact(values.size());
    for (size_t i = 0; i < exact.size(); ++i) {
      exact[i] = static_cast<float>(static_cast<int>(i) % (2 * most + 1) - most);
    }
    EXPECT_EQ(Code(exact, bits, Key(2)).decoded, exact) << bits;
  }
}

// The mean over many keys is the value: within five standard deviations of the mean.
TEST(QuantizedTest, RoundingIsUnbiased) {
  constexpr int kTimes = 4000;
  for (const uint32_t bits : {2u, 4u, 8u}) {
    const double step = 1.0 / ((1 << (bits - 1)) - 1);
    std::vector<float> values;
    for (int i = -20; i <= 20; ++i) values.push_back(static_cast<float>(i) / 20);
    values.push_back(1e-3f);
    std::vector<double> sums(values.size());
    for (int i = 0; i < kTimes; ++i) {
      const Coded coded = Code(values, bits, Key(i));
      for (size_t k = 0; k < sums.size(); ++k) sums[k] += coded.decoded[k];
    }
    for (size_t k = 0; k < sums.size(); ++k) {
      const double level = std::fabs(values[k]) / step;
      const double up = level - std::floor(level);
      const double deviation = step * std::sqrt(up * (1 - up) / kTimes);
      EXPECT_NEAR(sums[k] / kTimes, values[k], 5 * deviation + 1e-6) << bits << " " << values[k];
    }
  }
}

// Of two workers, of two blocks, of neighbours in one: no correlation of what was lost.
TEST(QuantizedTest, RoundingIsIndependent) {
  constexpr int kBlocks = 50;
  const std::vector<float> values = [] {
    std::vector<float> v(4096);
    for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(RandomUniform(2, 2, i) - 0.5);
    v[0] = 0.5f;
    return v;
  }();
  double squares = 0, workers = 0, blocks = 0, neighbours = 0;
  for (int i = 0; i < kBlocks; ++i) {
    const auto round = static_cast<uint64_t>(i);
    const CodecKey a = PushKey(1, 0, {.worker = 0, .round = round});
    const CodecKey b = PushKey(1, 0, {.worker = 1, .round = round});
    const Coded first = Code(values, 4, BlockKey(a, 0));
    const Coded second = Code(values, 4, BlockKey(b, 0));
    const Coded next = Code(values, 4, BlockKey(a, 4096));
    for (size_t k = 1; k < values.size(); ++k) {
      squares += double{first.error[k]} * first.error[k];
      workers += double{first.error[k]} * second.error[k];
      blocks += double{first.error[k]} * next.error[k];
      neighbours += double{first.error[k]} * first.error[k - 1];
    }
  }
  const double bound = 5 / std::sqrt(double{kBlocks} * 4096);
  EXPECT_NEAR(workers / squares, 0, bound);
  EXPECT_NEAR(blocks / squares, 0, bound);
  EXPECT_NEAR(neighbours / squares, 0, bound);
}

TEST(QuantizedTest, TheSameKeyRoundsTheSame) {
  std::vector<float> values(100);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(RandomNormal(1, 3, i));
  EXPECT_EQ(Code(values, 3, Key(5)).bytes, Code(values, 3, Key(5)).bytes);
  EXPECT_NE(Code(values, 3, Key(5)).bytes, Code(values, 3, Key(6)).bytes);
  // What both sides know does not enter.
  CodecKey other = Key(5);
  other.shared ^= 1;
  EXPECT_EQ(Code(values, 3, other).bytes, Code(values, 3, Key(5)).bytes);
}

// Whatever the scale, its own elements stay within the levels, and the law of error feedback
// holds.
TEST(QuantizedTest, TheOutermostLevelsAreNeverLeft) {
  for (uint32_t bits = 2; bits <= 8; ++bits) {
    for (uint64_t i = 0; i < 2000; ++i) {
      const auto word = static_cast<uint32_t>(RandomBits(6, bits, i) % 0x7f7fffff + 1);
      const float scale = std::bit_cast<float>(word);
      const Coded coded = Code({scale, -scale, scale / 2}, bits, Key(i));  // asserts no fault
      ASSERT_TRUE(std::isfinite(coded.decoded[0])) << scale;
      ASSERT_EQ(coded.decoded[1], -coded.decoded[0]) << scale;
      ASSERT_NEAR(coded.decoded[0] / scale, scale >= 0x1p-96f ? 1 : 0, 1e-6) << scale;
      for (int k = 0; k < 3; ++k) {
        const float c = k == 0 ? scale : k == 1 ? -scale : scale / 2;
        ASSERT_EQ(coded.error[k], c - coded.decoded[k]) << scale;
      }
    }
  }
}

TEST(QuantizedTest, ScalesBeyondItsLimits) {
  const float most = std::numeric_limits<float>::max();
  for (uint32_t bits = 2; bits <= 8; ++bits) {
    const Coded large = Code({most, -most, 1}, bits, Key(1));
    EXPECT_TRUE(std::isfinite(large.decoded[0]));
    EXPECT_NEAR(large.decoded[0] / most, 1, 1e-6);
    EXPECT_EQ(large.decoded[1], -large.decoded[0]);
    EXPECT_EQ(large.error[0], most - large.decoded[0]);
    const Coded small = Code({0x1p-97f, -0x1p-149f}, bits, Key(1));
    EXPECT_EQ(small.decoded, (std::vector<float>{0, 0}));
    EXPECT_EQ(small.error, (std::vector<float>{0x1p-97f, -0x1p-149f}));
    EXPECT_NEAR(Code({0x1p-96f}, bits, Key(1)).decoded[0] / 0x1p-96, 1, 1e-6);
  }
}

TEST(QuantizedTest, WhatLiesIsNamed) {
  for (uint32_t bits = 2; bits <= 8; ++bits) {
    const CodecSet codecs({.bits = bits});
    const Codec& codec = *codecs.Find("quantized");
    const Coded good = Code({1, 0.5f, -1, 0, 0.25f}, bits, Key(1));
    const auto with_scale = [&](float scale) {
      std::vector<uint8_t> bytes = good.bytes;
      std::memcpy(bytes.data(), &scale, sizeof scale);
      return codec.Fault(bytes.data(), 5);
    };
    EXPECT_EQ(with_scale(-1), "a negative scale");
    EXPECT_EQ(with_scale(-0.0f), "a negative scale");
    EXPECT_EQ(with_scale(std::nanf("")), "a scale that is not finite");
    EXPECT_EQ(with_scale(0x1.fffffep-97f), "a scale out of range");
    EXPECT_EQ(with_scale(0x1p-149f), "a scale out of range");
    EXPECT_EQ(with_scale(0), "");
    EXPECT_EQ(with_scale(0x1p-96f), "");
    EXPECT_EQ(with_scale(std::numeric_limits<float>::max()), "");
    // The field of all ones, at each place.
    for (uint32_t i = 0; i < 5; ++i) {
      std::vector<uint8_t> bytes = good.bytes;
      for (uint32_t bit = i * bits; bit < (i + 1) * bits; ++bit) {
        bytes[4 + bit / 8] |= static_cast<uint8_t>(1 << bit % 8);
      }
      EXPECT_EQ(codec.Fault(bytes.data(), 5), "a level out of range") << bits << " " << i;
    }
    for (uint32_t bit = 5 * bits; bit % 8 != 0; ++bit) {
      std::vector<uint8_t> bytes = good.bytes;
      bytes[4 + bit / 8] |= static_cast<uint8_t>(1 << bit % 8);
      EXPECT_EQ(codec.Fault(bytes.data(), 5), "padding bits that are not zero") << bits << " " << bit;
    }
  }
}

}  // namespace
}  // namespace foreshard
