// One number to and from 16 bits, as the codecs fp16 and bf16 define it: round to
// nearest, ties to even; what is too large for the format becomes its largest
// finite value, so that decoded values stay finite and error feedback carries the
// rest. NaN stays NaN. Branch-free where the compiler shall vectorise (internal to
// kernels/codecs).
#pragma once

#include <bit>
#include <cstdint>

namespace foreshard {

inline constexpr float kFp16Max = 65504.0f;
inline constexpr uint32_t kBf16MaxWord = 0x7f7f;  // 0x1.fep127

// Little-endian words at any address. (Name the type: `auto` would drop its alignment.)
using WordAnywhere [[gnu::aligned(1), gnu::may_alias]] = uint16_t;

// value limited to +-kFp16Max. NaN passes through.
inline float SaturateFp16(float value) {
  value = value > kFp16Max ? kFp16Max : value;
  return value < -kFp16Max ? -kFp16Max : value;
}

// IEEE 754 binary16. The same bits as F16C's vcvtps2ph on the saturated value.
inline uint16_t Fp16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(SaturateFp16(value));
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {  // NaN: quiet, the payload's upper bits kept
    return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  }
  if (magnitude < 0x38800000) {
    // Below 2^-14 the result is a multiple of 2^-24: adding 2^-1, whose ulp that
    // is, rounds there (fp32 addition rounds to nearest even).
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

// The same value; NaN is made quiet.
inline float FloatFromFp16(uint16_t word) {
  const uint32_t sign = static_cast<uint32_t>(word & 0x8000) << 16;
  const uint32_t exponent = word >> 10 & 0x1f;
  const uint32_t mantissa = word & 0x3ff;
  if (exponent == 0) {  // zero or a multiple of 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  if (exponent == 0x1f) {
    const uint32_t quiet = mantissa == 0 ? 0 : 0x400000;
    return std::bit_cast<float>(sign | 0x7f800000 | quiet | mantissa << 13);
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

// The upper half of an fp32. Integers and no branch, so that loops over it
// vectorise.
[[gnu::always_inline]] inline uint16_t Bf16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t word = (magnitude + 0x7fff + (magnitude >> 16 & 1)) >> 16;
  word = word > kBf16MaxWord ? kBf16MaxWord : word;
  const uint32_t nan = magnitude >> 16 | 0x40;
  word = magnitude > 0x7f800000 ? nan : word;
  return static_cast<uint16_t>(word | (bits >> 16 & 0x8000));
}

[[gnu::always_inline]] inline float FloatFromBf16(uint16_t word) {
  return std::bit_cast<float>(static_cast<uint32_t>(word) << 16);
}

// Whether none of the n words at `in` has all bits of `exponent` set.
[[gnu::always_inline]] inline bool WordsFinite(const uint8_t* in, uint64_t n, uint16_t exponent) {
  const WordAnywhere* words = reinterpret_cast<const WordAnywhere*>(in);
  uint16_t found = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const uint16_t all = (words[i] & exponent) == exponent ? 1 : 0;
    found = found | all;
  }
  return found == 0;
}

}  // namespace foreshard
