// The unit of a codec's scale: at most 4096 elements of one tensor, inside one
// segment.
#pragma once

#include <cstdint>

namespace foreshard {

inline constexpr uint32_t kMaxBlockElements = 4096;

struct Block {
  uint64_t offset = 0;    // first element, counted from the segment's start
  uint32_t elements = 0;  // 1..kMaxBlockElements
  bool decayed = false;   // weight decay applies to its tensor
  bool full = false;      // its tensor stays in full precision, whatever the codec
  bool dead = false;      // its tensor never gets a gradient: nothing of it is coded
};

}  // namespace foreshard
