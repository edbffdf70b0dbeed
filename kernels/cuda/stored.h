// Elements of activations, fp32 or bf16 (internal to .cu files).
#pragma once

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/layer_library.h"

namespace FORESHARD_CUDA_NAMESPACE {

__device__ __forceinline__ float ValueOf(float stored) { return stored; }
__device__ __forceinline__ float ValueOf(uint16_t stored) {
  return __uint_as_float(static_cast<uint32_t>(stored) << 16);
}

template <typename T>
struct Stored;
template <>
struct Stored<float> {
  static __device__ __forceinline__ float Of(float value) { return value; }
};
// To nearest, ties to even; infinities stay, and NaN stays NaN.
template <>
struct Stored<uint16_t> {
  static __device__ __forceinline__ uint16_t Of(float value) {
    const uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
};

// Of elements, each by one thread.
inline constexpr uint32_t kElementThreads = 256;
inline Grid GridOf(uint64_t elements) {
  constexpr uint64_t kMostBlocks = 1 << 16;
  const uint64_t blocks = (elements + kElementThreads - 1) / kElementThreads;
  return {{static_cast<uint32_t>(blocks < kMostBlocks ? blocks : kMostBlocks)}, {kElementThreads}};
}
__device__ __forceinline__ uint64_t FirstElement() {
  return uint64_t{blockIdx.x} * kElementThreads + threadIdx.x;
}
__device__ __forceinline__ uint64_t ElementStep() { return uint64_t{gridDim.x} * kElementThreads; }

}  // namespace FORESHARD_CUDA_NAMESPACE
