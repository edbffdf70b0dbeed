// Reductions over the lanes of a warp, all of which must call them, in an order that is always the
// same (internal to .cu files). Those of integers, in any order, are in device_code.h.
#pragma once

#include "kernels/cuda/device_code.h"

namespace FORESHARD_CUDA_NAMESPACE {

// The sum, given to all lanes. T: float or double.
template <typename T>
__device__ __forceinline__ T SumOfLanes(T value) {
#pragma unroll
  for (uint32_t other = kWarpSize / 2; other > 0; other /= 2) {
    value = value + __shfl_xor_sync(kAllLanes, value, other);
  }
  return value;
}

// A value and where it lies in its row.
struct Best {
  float value;
  uint32_t at;

  // Takes the other where that is larger, or as large and further in front; a NaN stays, and is never taken.
  __device__ __forceinline__ void Join(float their_value, uint32_t their_at) {
    if (their_value > value || (their_value == value && their_at < at)) {
      value = their_value;
      at = their_at;
    }
  }
};

// The best of all lanes, given to all lanes.
__device__ __forceinline__ Best BestOfLanes(Best best) {
#pragma unroll
  for (uint32_t other = kWarpSize / 2; other > 0; other /= 2) {
    const float their_value = __shfl_xor_sync(kAllLanes, best.value, other);
    const uint32_t their_at = __shfl_xor_sync(kAllLanes, best.at, other);
    best.Join(their_value, their_at);
  }
  return best;
}

}  // namespace FORESHARD_CUDA_NAMESPACE
