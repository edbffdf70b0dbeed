// What Codec::Fault says where several codecs say the same (internal to kernels/codecs).
#pragma once

#include <cmath>
#include <string_view>

namespace foreshard {

inline constexpr std::string_view kPadding = "padding bits that are not zero";

// A scale is a finite number of 0 or more, never -0.
inline std::string_view ScaleFault(float scale) {
  if (!std::isfinite(scale)) return "a scale that is not finite";
  if (std::signbit(scale)) return "a negative scale";
  return {};
}

}  // namespace foreshard
