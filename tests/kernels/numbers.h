// What tests of arithmetic share: numbers to compute with, and whether results are the
// same to the bit.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/types/span.h"
#include "common/core/random.h"

namespace foreshard {

inline std::vector<float> Numbers(uint64_t seed, uint64_t n) {
  std::vector<float> values(n);
  for (uint64_t i = 0; i < n; ++i) {
    values[i] = static_cast<float>(RandomUniform(seed, 4, i) - 0.5);
  }
  return values;
}

inline bool SameBits(absl::Span<const float> a, absl::Span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace foreshard
