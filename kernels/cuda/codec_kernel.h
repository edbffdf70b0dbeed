// What all codecs' kernels share: blocks that go as fp32 words whatever the codec, done by all
// threads of a thread block, and the launches (internal to .cu files).
#pragma once

#include "kernels/cuda/decode_into.h"
#include "kernels/cuda/quads.h"

namespace FORESHARD_CUDA_NAMESPACE {

// Quad q of n fp32 words at any address.
__device__ __forceinline__ Quad LoadPlain(const Pointer<const uint8_t>& in, uint32_t q,
                                          uint32_t n) {
  Quad quad = {};
  const uint32_t first = q * kQuad;
  if (AddressOf(in) % sizeof(float4) == 0 && first + kQuad <= n) {
    const float4 word = LoadStreaming(CastPointer<const float4>(in + q * sizeof(float4)));
    return {word.x, word.y, word.z, word.w};
  }
#pragma unroll
  for (uint32_t k = 0; k < kQuad; ++k) {
    if (first + k < n) {
      quad.x[k] = __uint_as_float(LoadWord<uint32_t>(in + (first + k) * sizeof(float)));
    }
  }
  return quad;
}

// A block that goes as fp32 whatever the codec, by all threads.
__device__ __forceinline__ void EncodePlainBlock(const EncodeBlock& block) {
  const bool words = AddressOf(block.out) % sizeof(float4) == 0;
  for (uint32_t q = threadIdx.x; q < QuadsOf(block.n); q += kBlockThreads) {
    const Quad c = block.C(q);
    if (words && (q + 1) * kQuad <= block.n) {
      StoreStreaming(CastPointer<float4>(block.out + q * sizeof(float4)),
                     float4{c.x[0], c.x[1], c.x[2], c.x[3]});
    } else {
#pragma unroll
      for (uint32_t k = 0; k < kQuad; ++k) {
        const uint32_t i = q * kQuad + k;
        if (i < block.n) StoreWord(block.out + i * sizeof(float), __float_as_uint(c.x[k]));
      }
    }
    // 0 of what is finite, as on the CPU.
    if (block.has_error) {
      block.SetError(q, {c.x[0] - c.x[0], c.x[1] - c.x[1], c.x[2] - c.x[2], c.x[3] - c.x[3]});
    }
  }
}
template <bool kAdam>
__device__ __forceinline__ void DecodePlainBlock(const DecodeBlock<kAdam>& block) {
  for (uint32_t q = threadIdx.x; q < QuadsOf(block.n); q += kBlockThreads) {
    block.Put(q, LoadPlain(block.in, q, block.n));
  }
}

// One thread block for each block of the table; `more` are the kernel's further arguments.
template <typename... Parameters, typename... More>
absl::Status LaunchEncode(const char* name, void (*kernel)(Encode, Parameters...),
                          const EncodeArguments& arguments, NativeStream stream,
                          const More&... more) {
  if (arguments.table.count == 0) return absl::OkStatus();
  const Grid grid = {.blocks = {arguments.table.count}, .threads = {kBlockThreads}};
  return Launch(name, kernel, grid, stream, Encode(arguments), more...);
}
template <typename... Parameters, typename... More>
absl::Status LaunchDecode(const char* name, void (*kernel)(Decode, Parameters...),
                          const DecodeArguments& arguments, NativeStream stream,
                          const More&... more) {
  if (arguments.table.count == 0) return absl::OkStatus();
  const Grid grid = {.blocks = {arguments.table.count}, .threads = {kBlockThreads}};
  return Launch(name, kernel, grid, stream, Decode(arguments), more...);
}

}  // namespace FORESHARD_CUDA_NAMESPACE
