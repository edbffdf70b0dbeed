// The 1-bit block: what of a payload is refused.
#include <cmath>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/codecs/codec.h"

namespace foreshard {
namespace {

TEST(SignBlockTest, WhatLiesIsNamed) {
  for (const char* name : {"one_bit", "one_bit_mean"}) {
    const Codec& codec = *FindCodec(name);
    const std::vector<float> values(11, 1.0f);
    std::vector<uint8_t> good(codec.BlockBytes(11));
    codec.EncodeBlock(values.data(), nullptr, 11, {}, good.data());
    EXPECT_EQ(codec.Fault(good.data(), 11), "");
    const auto with_scale = [&](float scale) {
      std::vector<uint8_t> bytes = good;
      std::memcpy(bytes.data(), &scale, sizeof scale);
      return codec.Fault(bytes.data(), 11);
    };
    EXPECT_EQ(with_scale(-2), "a negative scale");
    EXPECT_EQ(with_scale(-0.0f), "a negative scale");
    EXPECT_EQ(with_scale(std::nanf("")), "a scale that is not finite");
    good.back() |= 0x08;
    EXPECT_EQ(codec.Fault(good.data(), 11), "padding bits that are not zero");
  }
}

}  // namespace
}  // namespace foreshard
