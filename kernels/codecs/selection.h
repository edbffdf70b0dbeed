// What top_k and random_k share: how many elements of a block are sent, and what is
// sent of them (internal to kernels/codecs).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/isa.h"

namespace foreshard {

// floor(fraction * elements + 1/2) in fp64, at least 1 (none of an empty block).
inline uint32_t SelectedElements(float fraction, uint32_t elements) {
  const auto wanted = static_cast<uint32_t>(double{fraction} * elements + 0.5);
  return std::min(std::max(wanted, 1u), elements);
}

// error = values + error: c, from which the selected elements are taken.
[[gnu::always_inline]] inline void AddValues(const float* __restrict values,
                                             float* __restrict error, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) error[i] = values[i] + error[i];
}

// Writes c at the indices as fp32 words to `out`; their error becomes c - c.
inline void SendSelected(const float* values, float* error, const uint16_t* indices, uint32_t count,
                         uint8_t* out) {
  const float* c = error == nullptr ? values : error;
  for (uint32_t j = 0; j < count; ++j) {
    const float value = c[indices[j]];
    std::memcpy(out + j * sizeof value, &value, sizeof value);
    if (error != nullptr) error[indices[j]] = value - value;
  }
}

}  // namespace foreshard
