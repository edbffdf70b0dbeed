// What a step drops, drawn as kernels/philox.h numbers it (internal to .cu files).
#pragma once

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/text.h"
#include "kernels/philox.h"

namespace FORESHARD_CUDA_NAMESPACE {

// A kernel's DropArguments. Values are dropped where their word is below the threshold.
struct Dropping {
  uint32_t layer = 0, threshold = 0;
  float scale = 1;  // of the others
  Pointer<const uint64_t> keys;
  Pointer<const StepScalars> scalars;
};

inline Dropping DroppingOf(const DropArguments& drop) {
  return {drop.layer, DropoutThreshold(drop.rate), DropoutScale(drop.rate),
          Pointer<const uint64_t>(drop.keys), Pointer<const StepScalars>(drop.scalars)};
}

__device__ __forceinline__ bool Drops(const Dropping& dropping) {
  if (dropping.threshold == 0) return false;
  const StepScalars step = *dropping.scalars;
  return step.drops != 0;
}

// The four words of counter c of an example's layer: values (c / 16) * 64 + c % 16 + 16 w.
struct DropWords {
  uint32_t words[4];
};
__device__ __forceinline__ DropWords WordsOf(uint64_t key, uint32_t layer, uint64_t c) {
  constexpr uint32_t kMultiply0 = kPhiloxMultiply[0], kMultiply1 = kPhiloxMultiply[1];
  constexpr uint32_t kAdd0 = kPhiloxAdd[0], kAdd1 = kPhiloxAdd[1];
  DropWords w = {{static_cast<uint32_t>(c), static_cast<uint32_t>(c >> 32), layer, 0}};
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint32_t a = __umulhi(kMultiply0, w.words[0]), b = __umulhi(kMultiply1, w.words[2]);
    const uint32_t low_a = kMultiply0 * w.words[0], low_b = kMultiply1 * w.words[2];
    w = {{b ^ w.words[1] ^ key0, low_b, a ^ w.words[3] ^ key1, low_a}};
    key0 += kAdd0;
    key1 += kAdd1;
  }
  return w;
}

}  // namespace FORESHARD_CUDA_NAMESPACE
