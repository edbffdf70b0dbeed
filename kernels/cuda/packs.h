// Rows of activations in words of 16 bytes, where their address allows it, else element by element
// (internal to .cu files): four numbers of fp32, or eight of bf16.
#pragma once

#include "kernels/cuda/stored.h"

namespace FORESHARD_CUDA_NAMESPACE {

template <typename T>
struct Pack {
  static constexpr uint32_t kSize = 16 / sizeof(T);
  float x[kSize];
};

template <typename T>
__device__ __forceinline__ uint64_t PacksOf(uint64_t elements) {
  return (elements + Pack<T>::kSize - 1) / Pack<T>::kSize;
}

// Of elements, each pack by one thread.
template <typename T>
Grid GridOfPacks(uint64_t elements) {
  return GridOf((elements + Pack<T>::kSize - 1) / Pack<T>::kSize);
}

// Whether packs of arrays that begin at these addresses, in rows of n elements, are words.
template <typename T, typename... Pointers>
__device__ __forceinline__ bool PacksAligned(uint64_t n, const Pointers&... pointers) {
  return n % Pack<T>::kSize == 0 && ((AddressOf(pointers) | ...) % sizeof(float4)) == 0;
}

__device__ __forceinline__ void Unpack(const float4& word, Pack<float>* pack) {
  pack->x[0] = word.x;
  pack->x[1] = word.y;
  pack->x[2] = word.z;
  pack->x[3] = word.w;
}
__device__ __forceinline__ void Unpack(const float4& word, Pack<uint16_t>* pack) {
  const uint32_t words[4] = {__float_as_uint(word.x), __float_as_uint(word.y),
                             __float_as_uint(word.z), __float_as_uint(word.w)};
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    pack->x[2 * i] = __uint_as_float(words[i] << 16);
    pack->x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}
__device__ __forceinline__ float4 WordOf(const Pack<float>& pack) {
  return {pack.x[0], pack.x[1], pack.x[2], pack.x[3]};
}
__device__ __forceinline__ float4 WordOf(const Pack<uint16_t>& pack) {
  float words[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t low = Stored<uint16_t>::Of(pack.x[2 * i]);
    const uint32_t high = Stored<uint16_t>::Of(pack.x[2 * i + 1]);
    words[i] = __uint_as_float(high << 16 | low);
  }
  return {words[0], words[1], words[2], words[3]};
}

// Pack q of n elements; 0 beyond the end.
template <typename T>
__device__ __forceinline__ Pack<T> LoadPack(const Pointer<const T>& from, uint64_t q, uint64_t n,
                                            bool aligned) {
  const uint64_t first = q * Pack<T>::kSize;
  Pack<T> pack = {};
  if (aligned) {
    const float4 word = *CastPointer<const float4>(from + first);
    Unpack(word, &pack);
  } else {
#pragma unroll
    for (uint32_t k = 0; k < Pack<T>::kSize; ++k) {
      if (first + k < n) pack.x[k] = ValueOf(static_cast<T>(from[first + k]));
    }
  }
  return pack;
}

template <typename T>
__device__ __forceinline__ void StorePack(const Pointer<T>& to, uint64_t q, uint64_t n,
                                          bool aligned, const Pack<T>& pack) {
  const uint64_t first = q * Pack<T>::kSize;
  if (aligned) {
    *CastPointer<float4>(to + first) = WordOf(pack);
  } else {
#pragma unroll
    for (uint32_t k = 0; k < Pack<T>::kSize; ++k) {
      if (first + k < n) to[first + k] = Stored<T>::Of(pack.x[k]);
    }
  }
}

}  // namespace FORESHARD_CUDA_NAMESPACE
