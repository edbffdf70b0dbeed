// Dropout of runs of values, by the stream of philox.h.
#pragma once

#include <cstdint>

namespace foreshard::kernels::cpu {

struct DropStream {
  uint64_t key = 0;
  uint32_t layer = 0;
  float rate = 0;
};

// values[i] is value first + i of the stream: 0 where it is dropped, else divided by 1 - rate.
// Every instruction set gives the same bits.
void Drop(const DropStream& stream, uint64_t first, uint64_t n, float* values);

}  // namespace foreshard::kernels::cpu
