#include "kernels/cpu/drop.h"

#include <algorithm>

#include "kernels/cpu/isa.h"
#include "kernels/philox.h"

namespace foreshard::kernels::cpu {
namespace {

constexpr uint64_t kLanes = 16;
constexpr uint64_t kBlock = 4 * kLanes;  // values of sixteen counters

// The words of values [block * 64, block * 64 + 64).
FORESHARD_ISA_INLINE void BlockWords(uint64_t block, uint32_t layer, uint64_t key, uint32_t* words) {
  uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  const uint64_t first = block * kLanes;  // no carry within sixteen
  for (uint64_t l = 0; l < kLanes; ++l) {
    c0[l] = static_cast<uint32_t>(first + l);
    c1[l] = static_cast<uint32_t>(first >> 32);
    c2[l] = layer;
    c3[l] = 0;
  }
  auto key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
#pragma GCC ivdep
    for (uint64_t l = 0; l < kLanes; ++l) {
      const uint64_t a = uint64_t{kPhiloxMultiply[0]} * c0[l];
      const uint64_t b = uint64_t{kPhiloxMultiply[1]} * c2[l];
      c0[l] = static_cast<uint32_t>(b >> 32) ^ c1[l] ^ key0;
      c1[l] = static_cast<uint32_t>(b);
      c2[l] = static_cast<uint32_t>(a >> 32) ^ c3[l] ^ key1;
      c3[l] = static_cast<uint32_t>(a);
    }
    key0 += kPhiloxAdd[0];
    key1 += kPhiloxAdd[1];
  }
  for (uint64_t l = 0; l < kLanes; ++l) {
    words[l] = c0[l];
    words[kLanes + l] = c1[l];
    words[2 * kLanes + l] = c2[l];
    words[3 * kLanes + l] = c3[l];
  }
}

FORESHARD_ISA_INLINE void DropRunBody(uint64_t key, uint32_t layer, uint32_t threshold, float scale,
                                   uint64_t first, uint64_t n, float* values) {
  uint32_t words[kBlock];
  for (uint64_t done = 0; done < n;) {
    const uint64_t at = first + done, within = at % kBlock;
    const uint64_t count = std::min(kBlock - within, n - done);
    BlockWords(at / kBlock, layer, key, words);
    float* const run = values + done;
#pragma GCC ivdep
    for (uint64_t i = 0; i < count; ++i) {
      run[i] = words[within + i] < threshold ? 0.0f : run[i] * scale;
    }
    done += count;
  }
}
FORESHARD_ISA_VARIANTS(void, DropRun,
                       (uint64_t key, uint32_t layer, uint32_t threshold, float scale,
                        uint64_t first, uint64_t n, float* values),
                       (key, layer, threshold, scale, first, n, values))

}  // namespace

void Drop(const DropStream& stream, uint64_t first, uint64_t n, float* values) {
  DropRun(stream.key, stream.layer, DropoutThreshold(stream.rate), DropoutScale(stream.rate), first,
          n, values);
}

}  // namespace foreshard::kernels::cpu
