// What the halves of attention share (internal to attention.cu and attention_backward.cu): tiles of
// 64 x 64. A thread block has four warps, each with 16 rows of the block's own tile in registers,
// while the tiles of the other side pass through shared memory.
#pragma once

#include <cmath>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/dropping.h"
#include "kernels/cuda/packs.h"
#include "kernels/cuda/tile_products.h"

namespace FORESHARD_CUDA_NAMESPACE {

inline constexpr uint32_t kAttentionTile = 64;
inline constexpr uint32_t kAttentionWarps = 4;
inline constexpr uint32_t kAttentionThreads = kAttentionWarps * kWarpSize;
inline constexpr uint32_t kWarpRows = kAttentionTile / kAttentionWarps;
// Elements and bytes behind each row, so that lanes meet other banks.
inline constexpr uint32_t kRowGap = 8;
inline constexpr uint32_t kFlagStride = kAttentionTile + 4;

struct AttentionSizes {
  uint32_t positions = 0, heads = 0, head_channels = 0;
  float factor = 0;       // 1 / sqrt(d)
  float log2_factor = 0;  // times log2 e
};

// Which head of which example, and which 64 positions of it, a block has.
struct AttentionPlace {
  uint32_t example, head, first;
};
__device__ __forceinline__ AttentionPlace PlaceOfBlock(const AttentionSizes& s) {
  const uint32_t tiles = (s.positions + kAttentionTile - 1) / kAttentionTile;
  const uint32_t head = blockIdx.x / tiles;
  return {head / s.heads, head % s.heads, blockIdx.x % tiles * kAttentionTile};
}

// Where the position 0 of Q (0), K (1) or V (2) of a head begins, and of y.
__device__ __forceinline__ uint64_t BeginOf(const AttentionSizes& s, const AttentionPlace& place,
                                            uint32_t which) {
  const uint64_t channels = uint64_t{s.heads} * s.head_channels;
  return (uint64_t{place.example} * s.positions * 3 + which) * channels +
         uint64_t{place.head} * s.head_channels;
}
__device__ __forceinline__ uint64_t BeginOfOutput(const AttentionSizes& s,
                                                  const AttentionPlace& place) {
  const uint64_t channels = uint64_t{s.heads} * s.head_channels;
  return uint64_t{place.example} * s.positions * channels + uint64_t{place.head} * s.head_channels;
}
__device__ __forceinline__ uint64_t RowNumber(const AttentionSizes& s,
                                              const AttentionPlace& place) {
  return (uint64_t{place.example} * s.heads + place.head) * s.positions;
}

// Positions [first, first + 64) to the tile; zeros where there is no position or no channel.
template <typename T, uint32_t kChannels>
__device__ __forceinline__ void LoadTile(const Pointer<const T>& from, uint32_t row_stride,
                                         uint32_t first, uint32_t length, uint32_t channels,
                                         const Pointer<T>& tile) {
  constexpr uint32_t kSize = Pack<T>::kSize, kPacks = kChannels / kSize;
  // Rows begin at multiples of the head's channels.
  if (channels == kChannels) {
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < kAttentionTile * kPacks; i += kAttentionThreads) {
      const uint32_t row = i / kPacks, q = i % kPacks;
      float4 word = {};
      if (first + row < length) {
        word = *CastPointer<const float4>(from + (uint64_t{first + row} * row_stride + q * kSize));
      }
      *CastPointer<float4>(tile + (row * (kChannels + kRowGap) + q * kSize)) = word;
    }
    return;
  }
  for (uint32_t i = threadIdx.x; i < kAttentionTile * kChannels; i += kAttentionThreads) {
    const uint32_t row = i / kChannels, c = i % kChannels;
    T value = 0;
    if (first + row < length && c < channels) value = from[uint64_t{first + row} * row_stride + c];
    tile[row * (kChannels + kRowGap) + c] = value;
  }
}

// Sums as a warp has them, [16, kChannels], times `factor`, to positions from `first` on; rows from
// `length` to `positions` are 0.
template <typename T, uint32_t kChannels>
__device__ __forceinline__ void StoreRows(const float (&sums)[kChannels / 8][4],
                                          const float* factors, uint32_t row_stride,
                                          uint32_t first, uint32_t length, const AttentionSizes& s,
                                          const Pointer<T>& to) {
  const uint32_t lane = LaneOfThread();
#pragma unroll
  for (uint32_t n = 0; n < kChannels / 8; ++n) {
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t row = first + lane / 4 + i / 2 * 8, c = n * 8 + lane % 4 * 2 + i % 2;
      if (row >= s.positions || c >= s.head_channels) continue;
      const float value = row < length ? sums[n][i] * factors[i / 2] : 0.0f;
      to[uint64_t{row} * row_stride + c] = Stored<T>::Of(value);
    }
  }
}

// Zeros to a whole tile that lies in the padding.
template <typename T>
__device__ __forceinline__ void StoreZeros(uint32_t row_stride, const AttentionPlace& place,
                                           const AttentionSizes& s, const Pointer<T>& to) {
  for (uint32_t i = threadIdx.x; i < kAttentionTile * s.head_channels; i += kAttentionThreads) {
    const uint32_t row = place.first + i / s.head_channels;
    if (row < s.positions) {
      to[uint64_t{row} * row_stride + i % s.head_channels] = static_cast<T>(0);
    }
  }
}

// Which of rows [row, row + 64) x columns [column, column + 64) of a head are dropped; rows from
// `length` on are left out. A word stands for one value, and a thread draws four.
__device__ __forceinline__ void DrawFlags(const Dropping& dropping, uint64_t key,
                                          const AttentionSizes& s, const AttentionPlace& place,
                                          uint32_t row, uint32_t column, uint32_t length,
                                          const Pointer<uint8_t>& flags) {
  // 64 values in a row are numbered from a multiple of 64 on, or lie in two such runs.
  const uint32_t counters = s.positions % kAttentionTile == 0 ? 16 : 32;
  for (uint32_t i = threadIdx.x; i < kAttentionTile * counters; i += kAttentionThreads) {
    const uint32_t r = i / counters, k = i % counters;
    if (row + r >= length) continue;
    const uint64_t first =
        (uint64_t{place.head} * s.positions + row + r) * s.positions + column;
    const uint64_t c = first / 64 * 16 + k;
    const DropWords drawn = WordsOf(key, dropping.layer, c);
#pragma unroll
    for (uint32_t w = 0; w < 4; ++w) {
      const uint64_t value = c / 16 * 64 + w * 16 + c % 16;
      if (value < first || value - first >= kAttentionTile) continue;
      flags[r * kFlagStride + static_cast<uint32_t>(value - first)] =
          drawn.words[w] < dropping.threshold ? 1 : 0;
    }
  }
}

__device__ __forceinline__ float SumOfQuad(float value) {
  value = value + __shfl_xor_sync(kAllLanes, value, 1);
  return value + __shfl_xor_sync(kAllLanes, value, 2);
}

inline AttentionSizes SizesOf(const AttentionArguments& a) {
  const double factor = 1 / std::sqrt(static_cast<double>(a.head_channels));
  return {a.positions, a.heads, a.head_channels, static_cast<float>(factor),
          static_cast<float>(factor * 1.4426950408889634)};
}

inline Grid GridOfTiles(const AttentionArguments& a) {
  const uint32_t tiles = (a.positions + kAttentionTile - 1) / kAttentionTile;
  return {{tiles * a.heads * a.examples}, {kAttentionThreads}};
}

// Calls `run` with the Passes<kind of products, channels> that fit.
template <template <typename, uint32_t> class Passes, typename Run>
absl::Status ChooseAttention(const AttentionArguments& a, const Run& run) {
  if (const absl::Status fits = CheckAttention(a.head_channels); !fits.ok()) return fits;
  const bool narrow = a.head_channels <= 16;
  if (a.storage == Storage::kBf16) {
    return narrow ? run(Passes<Bf16Products, 16>()) : run(Passes<Bf16Products, 64>());
  }
  if (a.round_products) {
    return narrow ? run(Passes<Tf32Products, 16>()) : run(Passes<Tf32Products, 64>());
  }
  return narrow ? run(Passes<Fp32Products, 16>()) : run(Passes<Fp32Products, 64>());
}

}  // namespace FORESHARD_CUDA_NAMESPACE
