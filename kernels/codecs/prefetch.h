// Memory on its way while a block is computed with (internal to kernels/codecs).
#pragma once

#include <cstdint>

namespace foreshard {

// Asks for these values; they may lie beyond the end of an array.
[[gnu::always_inline]] inline void Prefetch(const float* values, uint32_t n) {
  constexpr uint32_t kLineFloats = 16;
  constexpr int kRead = 0, kIntoL2 = 2;
  for (uint32_t i = 0; i < n; i += kLineFloats) __builtin_prefetch(values + i, kRead, kIntoL2);
}

}  // namespace foreshard
