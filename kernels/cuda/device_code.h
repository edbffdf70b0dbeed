// What every .cu file here begins with: the few words by which one source is both CUDA and,
// under kernels/cuda/emulation, ordinary C++.
//
//   __global__ void Double(Pointer<float> values, uint32_t n) {
//     FORESHARD_SHARED(float, tile, 256);
//     const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
//     if (i < n) values[i] = 2 * values[i];
//   }
//   const Grid grid = {.blocks = {4}, .threads = {256}};
//   absl::Status status = Launch("Double", Double, grid, stream, values, n);
//
// Pointer<T> is T* on the GPU. In the emulation it knows its memory: accesses beyond it, races
// and host pointers end the launch. So kernels take and pass Pointers, never T*, and do not
// write `auto x = p[i]`. Dimensions beyond .x are there, and unused here.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/memory.h"

#if defined(FORESHARD_CUDA_EMULATION)

#include "kernels/cuda/emulation/cuda_names.h"

namespace FORESHARD_CUDA_NAMESPACE {

using emulation::AddressOf;
using emulation::CastPointer;
using emulation::Grid;
using emulation::Launch;
using emulation::LoadStreaming;
using emulation::Pointer;
using emulation::StoreStreaming;

}  // namespace FORESHARD_CUDA_NAMESPACE

#else

#include <cuda_runtime.h>

#include "kernels/cuda/errors.h"

// An array that the threads of a block share, aligned to 16 bytes; its place in the source is
// its identity.
#define FORESHARD_SHARED(type, name, count) __shared__ __align__(16) type name[count]
// That of the launch's shared_bytes; one a kernel.
#define FORESHARD_DYNAMIC_SHARED(type, name)                    \
  extern __shared__ __align__(16) unsigned char name##_bytes[]; \
  type* const name = reinterpret_cast<type*>(name##_bytes)

namespace foreshard::kernels::cuda {

template <typename T>
using Pointer = T*;

template <typename To, typename From>
__device__ __forceinline__ To* CastPointer(From* pointer) {
  return reinterpret_cast<To*>(pointer);
}
template <typename T>
__device__ __forceinline__ uintptr_t AddressOf(T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}
// Of what is read or written once: it is the first to leave the cache.
template <typename T>
__device__ __forceinline__ T LoadStreaming(const T* pointer) {
  return __ldcs(pointer);
}
template <typename T>
__device__ __forceinline__ void StoreStreaming(T* pointer, const T& value) {
  __stcs(pointer, value);
}

struct Dimensions {
  uint32_t x = 1, y = 1, z = 1;
};

struct Grid {
  Dimensions blocks;
  Dimensions threads;
  uint32_t shared_bytes = 0;
};

// Gives the kernel to the stream; Ok says that it was taken, not that it has run.
template <typename... Parameters, typename... Arguments>
absl::Status Launch(const char* name, void (*kernel)(Parameters...), const Grid& grid,
                    NativeStream stream, const Arguments&... arguments) {
  const dim3 blocks(grid.blocks.x, grid.blocks.y, grid.blocks.z);
  const dim3 threads(grid.threads.x, grid.threads.y, grid.threads.z);
  kernel<<<blocks, threads, grid.shared_bytes, stream>>>(arguments...);
  return CudaStatus(cudaGetLastError(), name);
}

}  // namespace foreshard::kernels::cuda

#endif

namespace FORESHARD_CUDA_NAMESPACE {

inline constexpr uint32_t kWarpSize = 32;
inline constexpr uint32_t kAllLanes = 0xffffffff;

__device__ __forceinline__ uint32_t LaneOfThread() { return threadIdx.x % kWarpSize; }
__device__ __forceinline__ uint32_t WarpOfThread() { return threadIdx.x / kWarpSize; }

// Of all lanes, given to all lanes. From sm_80 on one instruction does it.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
__device__ __forceinline__ uint32_t SumOfWarp(uint32_t value) {
#pragma unroll
  for (uint32_t other = kWarpSize / 2; other > 0; other /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, other);
  }
  return value;
}
__device__ __forceinline__ uint32_t LargestOfWarp(uint32_t value) {
#pragma unroll
  for (uint32_t other = kWarpSize / 2; other > 0; other /= 2) {
    const uint32_t theirs = __shfl_xor_sync(kAllLanes, value, other);
    value = theirs > value ? theirs : value;
  }
  return value;
}
#else
__device__ __forceinline__ uint32_t SumOfWarp(uint32_t value) {
  return __reduce_add_sync(kAllLanes, value);
}
__device__ __forceinline__ uint32_t LargestOfWarp(uint32_t value) {
  return __reduce_max_sync(kAllLanes, value);
}
#endif

}  // namespace FORESHARD_CUDA_NAMESPACE
