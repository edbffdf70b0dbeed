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

// The block behind this one, asked for bit by bit during the passes over this one, since memory
// takes only so much at once, and takes nothing while nothing is asked for.
class NextBlock {
 public:
  // `error` may be null.
  NextBlock(const float* values, const float* error, uint32_t elements)
      : values_(values + elements), error_(error), elements_(elements) {
    if (error_ != nullptr) error_ += elements;
  }
  // The next so many of its values and errors, whole lines; nothing once all are asked for.
  [[gnu::always_inline]] void Ask(uint32_t floats) {
    if (asked_ >= elements_) return;
    Prefetch(values_ + asked_, floats);
    if (error_ != nullptr) Prefetch(error_ + asked_, floats);
    asked_ += floats;
  }

 private:
  const float* values_;
  const float* error_;
  const uint32_t elements_;
  uint32_t asked_ = 0;
};

}  // namespace foreshard
