// top_k: which elements are sent, and what of a payload is refused.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "common/core/random.h"
#include "gtest/gtest.h"
#include "kernels/codecs/codec.h"
#include "kernels/cpu/isa.h"

namespace foreshard {
namespace {

std::vector<uint16_t> Indices(const std::vector<uint8_t>& bytes) {
  std::vector<uint16_t> indices(bytes.size() / 6);
  std::memcpy(indices.data(), bytes.data(), 2 * indices.size());
  return indices;
}

std::vector<uint8_t> Encode(const std::vector<float>& values, float fraction) {
  const CodecSet codecs({.fraction = fraction});
  const Codec& codec = *codecs.Find("top_k");
  const auto n = static_cast<uint32_t>(values.size());
  std::vector<uint8_t> bytes(codec.BlockBytes(n));
  codec.EncodeBlock(values.data(), nullptr, n, {}, bytes.data());
  EXPECT_EQ(codec.Fault(bytes.data(), n), "");
  return bytes;
}

TEST(TopKTest, TheLargestMagnitudesTiesToTheLowerIndex) {
  using Expected = std::vector<uint16_t>;
  EXPECT_EQ(Indices(Encode({0, -3, 2, 3, 1, -3}, 0.5f)), (Expected{1, 3, 5}));
  EXPECT_EQ(Indices(Encode({0, -3, 2, 3, 1, -3}, 1.0f / 3)), (Expected{1, 3}));
  EXPECT_EQ(Indices(Encode({1, 1, 1, 1, 1, 1}, 0.5f)), (Expected{0, 1, 2}));
  EXPECT_EQ(Indices(Encode({0, -0.0f, 0, 0x1p-149f}, 0.5f)), (Expected{0, 3}));
  // Equal in the upper half of their bits.
  EXPECT_EQ(Indices(Encode({1, 1 + 0x1p-22f, 1 + 0x1p-23f, -1 - 0x1p-22f, 1 + 0x1p-20f}, 0.4f)),
            (Expected{1, 4}));
  EXPECT_EQ(Indices(Encode({5}, 1e-6f)), (Expected{0}));
  const float most = std::numeric_limits<float>::max();
  EXPECT_EQ(Indices(Encode({1, -most, most, 2}, 0.25f)), (Expected{1}));
}

TEST(TopKTest, OneAndAllOfABlock) {
  std::vector<float> values(kMaxBlockElements);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(RandomNormal(3, 1, i));
  values[1234] = -77;
  EXPECT_EQ(Indices(Encode(values, 1e-6f)), std::vector<uint16_t>{1234});
  const std::vector<uint16_t> all = Indices(Encode(values, 1));
  ASSERT_EQ(all.size(), values.size());
  for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], i);
}

// No element left out is larger than one that is sent, however the magnitudes lie.
TEST(TopKTest, NothingLargerIsLeftOut) {
  for (uint64_t shape = 0; shape < 6; ++shape) {
    for (const float fraction : {1.0f / 32, 0.1f, 0.5f, 0.9f}) {
      std::vector<float> values(kMaxBlockElements - 3);
      for (size_t i = 0; i < values.size(); ++i) {
        const double normal = RandomNormal(4, shape, i);
        const double by_shape[] = {normal,
                                   std::exp(8 * normal),
                                   normal / std::max(1e-3, RandomUniform(4, 10, i)),
                                   RandomUniform(4, 11, i) < 0.02 ? normal : 0,
                                   1 + 1e-6 * normal,
                                   std::floor(3 * normal)};
        values[i] = static_cast<float>(by_shape[shape]);
      }
      const std::vector<uint16_t> sent = Indices(Encode(values, fraction));
      float least = std::numeric_limits<float>::infinity();
      std::vector<bool> is_sent(values.size());
      for (const uint16_t i : sent) {
        least = std::min(least, std::fabs(values[i]));
        is_sent[i] = true;
      }
      for (size_t i = 0; i < values.size(); ++i) {
        if (is_sent[i]) continue;
        ASSERT_LE(std::fabs(values[i]), least) << shape << " " << fraction;
      }
    }
  }
}

// Sparse or dense, with ties or none, on every instruction set: the reference's bytes and
// error, and nothing beyond the end.
TEST(TopKTest, IsTheReferenceHoweverMuchIsSent) {
  std::vector<kernels::Isa> isas = {kernels::Isa::kBaseline};
  for (const kernels::Isa isa : {kernels::Isa::kAvx2, kernels::Isa::kAvx512}) {
    if (isa <= kernels::BestIsa()) isas.push_back(isa);
  }
  for (const float fraction : {1e-6f, 1.0f / 100, 1.0f / 32, 0.07f, 0.25f, 0.6f, 0.999f, 1.0f}) {
    const CodecSet codecs({.fraction = fraction});
    const Codec& codec = *codecs.Find("top_k");
    for (const uint32_t n : {1u, 15u, 16u, 17u, 63u, 64u, 65u, 1000u, 4095u, kMaxBlockElements}) {
      for (uint64_t shape = 0; shape < 5; ++shape) {
        std::vector<float> values(n), before(n);
        for (uint32_t i = 0; i < n; ++i) {
          const double normal = RandomNormal(8, shape, i);
          const double by_shape[] = {normal, std::exp(8 * normal), std::floor(2 * normal), 1 + 1e-6 * normal, 0};
          values[i] = static_cast<float>(by_shape[shape]);
          before[i] = shape == 4 ? 0 : static_cast<float>(std::round(RandomNormal(8, 10, i)));
        }
        for (const bool with_error : {false, true}) {
          const uint32_t size = codec.BlockBytes(n);
          std::vector<uint8_t> expected(size + 64, 0xa5);
          std::vector<float> expected_error = before;
          codec.EncodeBlockReference(values.data(), with_error ? expected_error.data() : nullptr, n, {},
                                     expected.data());
          for (const kernels::Isa isa : isas) {
            kernels::ScopedIsa forced(isa);
            std::vector<uint8_t> out(size + 64, 0xa5);
            std::vector<float> error = before;
            codec.EncodeBlock(values.data(), with_error ? error.data() : nullptr, n, {}, out.data());
            const std::string at = std::string(IsaName(isa)) + ", fraction " + std::to_string(fraction) + ", " +
                                   std::to_string(n) + " elements, shape " + std::to_string(shape);
            ASSERT_TRUE(out == expected) << at;
            ASSERT_EQ(std::memcmp(error.data(), expected_error.data(), n * sizeof(float)), 0) << at;
          }
        }
      }
    }
  }
}

// Bits of a number that is none, as GPUs make them: no bound lies beyond their magnitude.
TEST(TopKTest, WhatIsNoNumberWritesNothingBeyondTheEnd) {
  const float none = std::bit_cast<float>(0x7fffffffu);
  std::vector<kernels::Isa> isas = {kernels::Isa::kBaseline};
  for (const kernels::Isa isa : {kernels::Isa::kAvx2, kernels::Isa::kAvx512}) {
    if (isa <= kernels::BestIsa()) isas.push_back(isa);
  }
  for (const float fraction : {1.0f / 32, 0.25f, 0.6f, 1.0f}) {
    const CodecSet codecs({.fraction = fraction});
    const Codec& codec = *codecs.Find("top_k");
    for (const uint32_t every : {1u, 2u, 7u, 5000u}) {
      std::vector<float> values(kMaxBlockElements);
      for (uint32_t i = 0; i < values.size(); ++i) {
        values[i] = i % every == 0 ? none : static_cast<float>(RandomNormal(8, 20, i));
      }
      const auto n = static_cast<uint32_t>(values.size());
      const uint32_t size = codec.BlockBytes(n);
      std::vector<uint8_t> expected(size + 65536, 0xa5);
      codec.EncodeBlockReference(values.data(), nullptr, n, {}, expected.data());
      for (const kernels::Isa isa : isas) {
        kernels::ScopedIsa forced(isa);
        std::vector<uint8_t> out(size + 65536, 0xa5);
        codec.EncodeBlock(values.data(), nullptr, n, {}, out.data());
        ASSERT_TRUE(out == expected) << IsaName(isa) << ", fraction " << fraction << ", every " << every;
      }
    }
  }
}

TEST(TopKTest, WhatLiesIsNamed) {
  const CodecSet codecs({.fraction = 0.5f});
  const Codec& codec = *codecs.Find("top_k");
  const std::vector<uint8_t> good = Encode({1, 2, 3, 4, 5, 6}, 0.5f);  // indices 3, 4, 5
  const auto fault = [&](size_t j, uint16_t index) {
    std::vector<uint8_t> bad = good;
    std::memcpy(bad.data() + 2 * j, &index, sizeof index);
    return codec.Fault(bad.data(), 6);
  };
  EXPECT_EQ(fault(2, 6), "an index out of range");
  EXPECT_EQ(fault(2, 0xffff), "an index out of range");
  EXPECT_EQ(fault(0, 6), "an index out of range");
  EXPECT_EQ(fault(1, 3), "a duplicate index");
  EXPECT_EQ(fault(2, 4), "a duplicate index");
  EXPECT_EQ(fault(1, 2), "indices that are not ascending");
  EXPECT_EQ(fault(0, 5), "indices that are not ascending");
  EXPECT_EQ(fault(0, 0), "");
  // Whatever lies in the indices, nothing outside the block is written.
  std::vector<uint8_t> bad(good.size(), 0xff);
  alignas(64) float values[8] = {7, 7, 7, 7, 7, 7, 7, 7};
  codec.DecodeBlock(bad.data(), 6, {}, values);
  EXPECT_EQ(values[5], 0);
  EXPECT_EQ(values[6], 7);
}

}  // namespace
}  // namespace foreshard
