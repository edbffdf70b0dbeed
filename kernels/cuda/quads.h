// How threads share the elements of a block: in quads, four consecutive elements that move as
// one 16-byte word where all arrays are aligned to that, else one by one (internal to .cu
// files). Thread t of a block has quads t, t + 256, ...: neighbours read neighbouring words.
#pragma once

#include "common/core/block.h"
#include "kernels/cuda/block_table.h"
#include "kernels/cuda/device_code.h"

namespace FORESHARD_CUDA_NAMESPACE {

inline constexpr uint32_t kBlockThreads = 256;
inline constexpr uint32_t kQuad = 4;
// Of the longest block, for one thread.
inline constexpr uint32_t kMostQuads = kMaxBlockElements / kQuad / kBlockThreads;

struct Quad {
  float x[kQuad];
};

__device__ __forceinline__ uint32_t QuadsOf(uint32_t elements) {
  return (elements + kQuad - 1) / kQuad;
}
// Rounds in which all threads of a block have a quad or none, so that all lanes of a warp are
// there in each.
__device__ __forceinline__ uint32_t RoundsOf(uint32_t elements) {
  return (QuadsOf(elements) + kBlockThreads - 1) / kBlockThreads;
}

// Arrays of a block, and whether quads of all of them are 16-byte words.
template <typename... Pointers>
__device__ __forceinline__ bool QuadsAligned(const Pointers&... pointers) {
  return ((AddressOf(pointers) | ...) % sizeof(float4)) == 0;
}

// Quad q of n elements; 0 beyond the end.
__device__ __forceinline__ Quad LoadQuad(const Pointer<const float>& from, uint32_t q, uint32_t n,
                                         bool aligned) {
  const uint32_t first = q * kQuad;
  Quad quad = {};
  if (aligned && first + kQuad <= n) {
    const float4 word = LoadStreaming(CastPointer<const float4>(from + first));
    quad.x[0] = word.x;
    quad.x[1] = word.y;
    quad.x[2] = word.z;
    quad.x[3] = word.w;
  } else {
#pragma unroll
    for (uint32_t k = 0; k < kQuad; ++k) {
      if (first + k < n) quad.x[k] = from[first + k];
    }
  }
  return quad;
}

__device__ __forceinline__ void StoreQuad(const Pointer<float>& to, uint32_t q, uint32_t n,
                                          bool aligned, const Quad& quad) {
  const uint32_t first = q * kQuad;
  if (aligned && first + kQuad <= n) {
    StoreStreaming(CastPointer<float4>(to + first),
                   float4{quad.x[0], quad.x[1], quad.x[2], quad.x[3]});
  } else {
#pragma unroll
    for (uint32_t k = 0; k < kQuad; ++k) {
      if (first + k < n) to[first + k] = quad.x[k];
    }
  }
}

// The same of the block's own shared array, which is aligned and has room for whole quads.
__device__ __forceinline__ Quad LoadShared(const Pointer<float>& from, uint32_t q) {
  const float4 word = *CastPointer<const float4>(from + q * kQuad);
  return {word.x, word.y, word.z, word.w};
}
__device__ __forceinline__ void StoreShared(const Pointer<float>& to, uint32_t q,
                                            const Quad& quad) {
  *CastPointer<float4>(to + q * kQuad) = float4{quad.x[0], quad.x[1], quad.x[2], quad.x[3]};
}

// An encode's arguments, its pointers known to the emulation.
struct Encode {
  explicit Encode(const EncodeArguments& from)
      : blocks(from.table.blocks),
        values(from.values),
        error(from.error),
        out(from.out),
        stop(from.stop),
        shared_key(from.key.shared),
        own_key(from.key.own) {}

  Pointer<const DeviceBlock> blocks;
  Pointer<const float> values;
  Pointer<float> error;
  Pointer<uint8_t> out;
  Pointer<const uint32_t> stop;
  uint64_t shared_key, own_key;

  __device__ bool stopped() const { return !(stop == nullptr) && *stop != 0; }
};

// One block of it. `aligned` holds for all of its arrays.
struct EncodeBlock {
  __device__ EncodeBlock(const Encode& encode, const DeviceBlock& block)
      : values(encode.values + block.offset),
        has_error(!(encode.error == nullptr)),
        n(block.elements),
        out(encode.out + block.position) {
    if (has_error) error = encode.error + block.offset;
    aligned = QuadsAligned(values, error);
  }

  Pointer<const float> values;
  Pointer<float> error = nullptr;
  bool has_error;
  bool aligned;
  uint32_t n;
  Pointer<uint8_t> out;

  // c of quad q.
  __device__ __forceinline__ Quad C(uint32_t q) const {
    Quad c = LoadQuad(values, q, n, aligned);
    if (has_error) {
      const Quad e = LoadQuad(error, q, n, aligned);
#pragma unroll
      for (uint32_t k = 0; k < kQuad; ++k) c.x[k] = c.x[k] + e.x[k];
    }
    return c;
  }
  __device__ __forceinline__ void SetError(uint32_t q, const Quad& quad) const {
    StoreQuad(error, q, n, aligned, quad);
  }
};

// Copies what the block's threads have put together to where it belongs, in words where `to` is
// aligned to them. `from` is shared.
__device__ __forceinline__ void CopyBytes(const Pointer<uint8_t>& from, uint32_t bytes,
                                          const Pointer<uint8_t>& to) {
  const uint32_t words = AddressOf(to) % sizeof(uint32_t) == 0 ? bytes / sizeof(uint32_t) : 0;
  for (uint32_t i = threadIdx.x; i < words; i += kBlockThreads) {
    CastPointer<uint32_t>(to)[i] = CastPointer<const uint32_t>(from)[i];
  }
  for (uint32_t i = words * sizeof(uint32_t) + threadIdx.x; i < bytes; i += kBlockThreads) {
    to[i] = static_cast<uint8_t>(from[i]);
  }
}

// A little-endian word of W at any address.
template <typename W>
__device__ __forceinline__ W LoadWord(const Pointer<const uint8_t>& from) {
  if (AddressOf(from) % sizeof(W) == 0) return *CastPointer<const W>(from);
  W word = 0;
#pragma unroll
  for (uint32_t i = 0; i < sizeof(W); ++i) {
    word = static_cast<W>(word | static_cast<W>(static_cast<W>(from[i]) << 8 * i));
  }
  return word;
}
template <typename W>
__device__ __forceinline__ void StoreWord(const Pointer<uint8_t>& to, W word) {
  if (AddressOf(to) % sizeof(W) == 0) {
    *CastPointer<W>(to) = word;
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < sizeof(W); ++i) to[i] = static_cast<uint8_t>(word >> 8 * i);
}

}  // namespace FORESHARD_CUDA_NAMESPACE
