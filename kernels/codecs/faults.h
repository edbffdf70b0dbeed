// What Codec::Fault says where several codecs say the same (internal to kernels/codecs).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "common/core/block.h"
#include "kernels/codecs/codec.h"
#include "kernels/cpu/vector_math.h"

namespace foreshard {

inline constexpr std::string_view kPadding = "padding bits that are not zero";

// A scale is a finite number of 0 or more, never -0.
inline std::string_view ScaleFault(float scale) {
  if (!std::isfinite(scale)) return "a scale that is not finite";
  if (std::signbit(scale)) return "a negative scale";
  return {};
}

// Of fp32 words, at most a block of them, at any address.
inline std::string_view WordsFault(const uint8_t* in, uint32_t count) {
  float copy[kMaxBlockElements];
  const auto* values = reinterpret_cast<const float*>(in);
  if (reinterpret_cast<uintptr_t>(in) % alignof(float) != 0) {
    std::memcpy(copy, in, count * sizeof(float));
    values = copy;
  }
  return kernels::AllFinite(values, count) ? std::string_view() : kNotFinite;
}

}  // namespace foreshard
