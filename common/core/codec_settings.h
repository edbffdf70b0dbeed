// What the codecs with parameters are made from, as data (compression in the JobSpec).
#pragma once

#include <cstdint>

namespace foreshard {

inline constexpr float kDefaultCodecFraction = 1.0f / 32;
inline constexpr uint32_t kDefaultCodecBits = 4;
inline constexpr uint32_t kMinCodecBits = 2;
inline constexpr uint32_t kMaxCodecBits = 8;

struct CodecSettings {
  // top_k, random_k: the part of a block's elements that is sent, above 0 and at most 1.
  float fraction = kDefaultCodecFraction;
  // quantized: bits an element, kMinCodecBits to kMaxCodecBits.
  uint32_t bits = kDefaultCodecBits;
};

}  // namespace foreshard
