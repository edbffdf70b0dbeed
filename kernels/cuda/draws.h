// The random choices of codecs on the GPU (internal to .cu files): kernels/codecs/README.md, Keys
// and draws; the same numbers as codec_key.h.
#pragma once

#include "kernels/cuda/device_code.h"

namespace FORESHARD_CUDA_NAMESPACE {

__device__ __forceinline__ uint64_t MixBits(uint64_t word) {
  word ^= word >> 30;
  word *= 0xbf58476d1ce4e5b9ull;
  word ^= word >> 27;
  word *= 0x94d049bb133111ebull;
  return word ^ word >> 31;
}

// The key of the block that begins at `offset`, of the message's.
__device__ __forceinline__ uint64_t KeyOfBlock(uint64_t message, uint64_t offset) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;
  constexpr uint64_t kBlockStream = 0x6b6c6264;  // "dblk"
  return MixBits(MixBits(MixBits(message + kGolden) + kBlockStream + kGolden) +
                 (offset + 1) * kGolden);
}

__device__ __forceinline__ uint32_t Draw(uint64_t key, uint32_t i) {
  uint32_t x = static_cast<uint32_t>(key) + i * 0x9e3779b9u;
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x += static_cast<uint32_t>(key >> 32);
  return x * 0x846ca68bu;
}

}  // namespace FORESHARD_CUDA_NAMESPACE
