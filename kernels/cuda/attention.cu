// Attention in tiles of 64 x 64: four warps a thread block, each with 16 rows of the block's own
// tile in registers, while the tiles of the other side pass through shared memory. With
// S = Q K' / sqrt(d), P = softmax(S), M dropout, O = M(P) V and D = rowsum(dO O):
//
//   dV = M(P)' dO;  dS = P (M(dO V') - D);  dQ = dS K / sqrt(d);  dK = dS' Q / sqrt(d)
//
// Exponentials are powers of 2, and so is what is kept a row: the logarithm of the sum, base 2, of
// scores times log2 e. What limits: the tensor cores, with dropout the drawing of words beside them.
#include "kernels/cuda/attention.h"

#include <cmath>
#include <string>

#include "kernels/cuda/dropping.h"
#include "kernels/cuda/packs.h"
#include "kernels/cuda/tile_products.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

constexpr uint32_t kTile = 64;
constexpr uint32_t kWarps = 4;
constexpr uint32_t kThreads = kWarps * kWarpSize;
constexpr uint32_t kWarpRows = kTile / kWarps;
// Elements and bytes behind each row, so that lanes meet other banks.
constexpr uint32_t kRowGap = 8;
constexpr uint32_t kFlagStride = kTile + 4;

struct Sizes {
  uint32_t positions = 0, heads = 0, head_channels = 0;
  float factor = 0;       // 1 / sqrt(d)
  float log2_factor = 0;  // times log2 e
};

// Which head of which example, and which 64 positions of it, a block has.
struct Place {
  uint32_t example, head, first;
};
__device__ __forceinline__ Place PlaceOfBlock(const Sizes& s) {
  const uint32_t tiles = (s.positions + kTile - 1) / kTile;
  const uint32_t head = blockIdx.x / tiles;
  return {head / s.heads, head % s.heads, blockIdx.x % tiles * kTile};
}

// Where the position 0 of Q (0), K (1) or V (2) of a head begins, and of y.
__device__ __forceinline__ uint64_t BeginOf(const Sizes& s, const Place& place, uint32_t which) {
  const uint64_t channels = uint64_t{s.heads} * s.head_channels;
  return (uint64_t{place.example} * s.positions * 3 + which) * channels +
         uint64_t{place.head} * s.head_channels;
}
__device__ __forceinline__ uint64_t BeginOfOutput(const Sizes& s, const Place& place) {
  const uint64_t channels = uint64_t{s.heads} * s.head_channels;
  return uint64_t{place.example} * s.positions * channels + uint64_t{place.head} * s.head_channels;
}
__device__ __forceinline__ uint64_t RowNumber(const Sizes& s, const Place& place) {
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
    for (uint32_t i = threadIdx.x; i < kTile * kPacks; i += kThreads) {
      const uint32_t row = i / kPacks, q = i % kPacks;
      float4 word = {};
      if (first + row < length) {
        word = *CastPointer<const float4>(from + (uint64_t{first + row} * row_stride + q * kSize));
      }
      *CastPointer<float4>(tile + (row * (kChannels + kRowGap) + q * kSize)) = word;
    }
    return;
  }
  for (uint32_t i = threadIdx.x; i < kTile * kChannels; i += kThreads) {
    const uint32_t row = i / kChannels, c = i % kChannels;
    T value = 0;
    if (first + row < length && c < channels) value = from[uint64_t{first + row} * row_stride + c];
    tile[row * (kChannels + kRowGap) + c] = value;
  }
}

// Sums as a warp has them, [16, kChannels], times `factor`, to positions from `first` on; rows from
// `length` to `positions` are 0.
template <typename T, uint32_t kChannels>
__device__ __forceinline__ void StoreRows(const float (&sums)[kChannels / 8][4], const float* factors,
                                          uint32_t row_stride, uint32_t first, uint32_t length,
                                          const Sizes& s, const Pointer<T>& to) {
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
__device__ __forceinline__ void StoreZeros(uint32_t row_stride, const Place& place, const Sizes& s,
                                           const Pointer<T>& to) {
  for (uint32_t i = threadIdx.x; i < kTile * s.head_channels; i += kThreads) {
    const uint32_t row = place.first + i / s.head_channels;
    if (row < s.positions) {
      to[uint64_t{row} * row_stride + i % s.head_channels] = static_cast<T>(0);
    }
  }
}

// Which of rows [row, row + 64) x columns [column, column + 64) of a head are dropped; rows from
// `length` on are left out. A word stands for one value, and a thread draws four.
__device__ __forceinline__ void DrawFlags(const Dropping& dropping, uint64_t key, const Sizes& s,
                                          const Place& place, uint32_t row, uint32_t column,
                                          uint32_t length, const Pointer<uint8_t>& flags) {
  // 64 values in a row are numbered from a multiple of 64 on, or lie in two such runs.
  const uint32_t counters = s.positions % kTile == 0 ? 16 : 32;
  for (uint32_t i = threadIdx.x; i < kTile * counters; i += kThreads) {
    const uint32_t r = i / counters, k = i % counters;
    if (row + r >= length) continue;
    const uint64_t first =
        (uint64_t{place.head} * s.positions + row + r) * s.positions + column;
    const uint64_t c = first / 64 * 16 + k;
    const DropWords drawn = WordsOf(key, dropping.layer, c);
#pragma unroll
    for (uint32_t w = 0; w < 4; ++w) {
      const uint64_t value = c / 16 * 64 + w * 16 + c % 16;
      if (value < first || value - first >= kTile) continue;
      flags[r * kFlagStride + static_cast<uint32_t>(value - first)] =
          drawn.words[w] < dropping.threshold ? 1 : 0;
    }
  }
}

__device__ __forceinline__ float SumOfQuad(float value) {
  value = value + __shfl_xor_sync(kAllLanes, value, 1);
  return value + __shfl_xor_sync(kAllLanes, value, 2);
}

template <typename P, uint32_t kChannels>
__global__ void __launch_bounds__(kThreads)
    AttentionKernel(Sizes s, Dropping dropping, bool training, Pointer<const int32_t> lengths,
                    Pointer<const typename P::Element> qkv, Pointer<typename P::Element> y,
                    Pointer<float> logarithms) {
  using T = typename P::Element;
  constexpr uint32_t kStride = kChannels + kRowGap, kSteps = kChannels / 16, kColumns = kTile / 8;
  FORESHARD_SHARED(T, k_tile, kTile * kStride);
  FORESHARD_SHARED(T, v_tile, kTile * kStride);
  FORESHARD_SHARED(uint8_t, flags, kTile * kFlagStride);
  const Place place = PlaceOfBlock(s);
  const uint32_t channels = s.heads * s.head_channels, lane = LaneOfThread();
  const uint32_t length = static_cast<uint32_t>(static_cast<int32_t>(lengths[place.example]));
  const Pointer<T> to = y + BeginOfOutput(s, place);
  if (place.first >= length) {
    StoreZeros<T>(channels, place, s, to);
    return;
  }
  const bool drops = training && Drops(dropping);
  const uint64_t key = drops ? static_cast<uint64_t>(dropping.keys[place.example]) : 0;
  const uint32_t warp_first = WarpOfThread() * kWarpRows;  // in the tile

  LoadTile<T, kChannels>(qkv + BeginOf(s, place, 0), 3 * channels, place.first, length,
                         s.head_channels, k_tile);
  __syncthreads();
  typename P::Left q[kSteps];
#pragma unroll
  for (uint32_t step = 0; step < kSteps; ++step) {
    q[step] = P::ReadLeft(k_tile, kStride, warp_first, step * 16);
  }
  __syncthreads();

  float out[kChannels / 8][4] = {};
  // Of rows g and g + 8; the sums are of this lane's columns.
  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  for (uint32_t column = 0; column < length; column += kTile) {
    LoadTile<T, kChannels>(qkv + BeginOf(s, place, 1), 3 * channels, column, length,
                           s.head_channels, k_tile);
    LoadTile<T, kChannels>(qkv + BeginOf(s, place, 2), 3 * channels, column, length,
                           s.head_channels, v_tile);
    if (drops) DrawFlags(dropping, key, s, place, place.first, column, length, flags);
    __syncthreads();

    float scores[kColumns][4] = {};
    float most[2] = {largest[0], largest[1]};
#pragma unroll
    for (uint32_t n = 0; n < kColumns; ++n) {
#pragma unroll
      for (uint32_t step = 0; step < kSteps; ++step) {
        P::Add(scores[n], q[step], P::ReadRows(k_tile, kStride, n * 8, step * 16));
      }
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const bool there = column + n * 8 + lane % 4 * 2 + i % 2 < length;
        const float score = there ? scores[n][i] * s.log2_factor : -INFINITY;
        scores[n][i] = score;
        most[i / 2] = score > most[i / 2] ? score : most[i / 2];
      }
    }
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
#pragma unroll
      for (uint32_t other = 1; other < 4; other *= 2) {
        const float theirs = __shfl_xor_sync(kAllLanes, most[r], other);
        most[r] = theirs > most[r] ? theirs : most[r];
      }
      const float before = exp2f(largest[r] - most[r]);
      largest[r] = most[r];
      sum[r] = sum[r] * before;
#pragma unroll
      for (uint32_t n = 0; n < kChannels / 8; ++n) {
        out[n][2 * r] = out[n][2 * r] * before;
        out[n][2 * r + 1] = out[n][2 * r + 1] * before;
      }
    }
#pragma unroll
    for (uint32_t n = 0; n < kColumns; ++n) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const float power = exp2f(scores[n][i] - largest[i / 2]);
        sum[i / 2] = sum[i / 2] + power;
        scores[n][i] = power;
        if (drops) {
          const uint32_t r = warp_first + lane / 4 + i / 2 * 8, c = n * 8 + lane % 4 * 2 + i % 2;
          const uint8_t dropped = flags[r * kFlagStride + c];
          scores[n][i] = dropped != 0 ? 0.0f : power * dropping.scale;
        }
      }
    }
#pragma unroll
    for (uint32_t step = 0; step < kTile / 16; ++step) {
      const typename P::Left left = P::FromSums(scores[2 * step], scores[2 * step + 1]);
#pragma unroll
      for (uint32_t n = 0; n < kChannels / 8; ++n) {
        P::Add(out[n], left, P::ReadColumns(v_tile, kStride, step * 16, n * 8));
      }
    }
    __syncthreads();
  }
  float factors[2];
#pragma unroll
  for (uint32_t r = 0; r < 2; ++r) {
    sum[r] = SumOfQuad(sum[r]);
    factors[r] = 1.0f / sum[r];
    const uint32_t row = place.first + warp_first + lane / 4 + r * 8;
    if (training && lane % 4 == 0 && row < length) {
      logarithms[RowNumber(s, place) + row] = largest[r] + log2f(sum[r]);
    }
  }
  StoreRows<T, kChannels>(out, factors, channels, place.first + warp_first, length, s, to);
}

// dQ of a block's rows, and D of each, which the other half of backward reads.
template <typename P, uint32_t kChannels>
__global__ void __launch_bounds__(kThreads)
    AttentionRowsKernel(Sizes s, Dropping dropping, Pointer<const int32_t> lengths,
                        Pointer<const typename P::Element> qkv,
                        Pointer<const typename P::Element> y,
                        Pointer<const typename P::Element> dy, Pointer<const float> logarithms,
                        Pointer<float> delta, Pointer<typename P::Element> dqkv) {
  using T = typename P::Element;
  constexpr uint32_t kStride = kChannels + kRowGap, kSteps = kChannels / 16;
  FORESHARD_SHARED(T, k_tile, kTile * kStride);
  FORESHARD_SHARED(T, v_tile, kTile * kStride);
  FORESHARD_SHARED(uint8_t, flags, kTile * kFlagStride);
  const Place place = PlaceOfBlock(s);
  const uint32_t channels = s.heads * s.head_channels, lane = LaneOfThread();
  const uint32_t length = static_cast<uint32_t>(static_cast<int32_t>(lengths[place.example]));
  const Pointer<T> to = dqkv + BeginOf(s, place, 0);
  if (place.first >= length) {
    StoreZeros<T>(3 * channels, place, s, to);
    return;
  }
  const bool drops = Drops(dropping);
  const uint64_t key = drops ? static_cast<uint64_t>(dropping.keys[place.example]) : 0;
  const uint32_t warp_first = WarpOfThread() * kWarpRows;

  LoadTile<T, kChannels>(dy + BeginOfOutput(s, place), channels, place.first, length,
                         s.head_channels, k_tile);
  LoadTile<T, kChannels>(y + BeginOfOutput(s, place), channels, place.first, length,
                         s.head_channels, v_tile);
  __syncthreads();
  typename P::Left q[kSteps], dout[kSteps];
  float row_log[2], row_delta[2];
#pragma unroll
  for (uint32_t step = 0; step < kSteps; ++step) {
    dout[step] = P::ReadLeft(k_tile, kStride, warp_first, step * 16);
  }
#pragma unroll
  for (uint32_t r = 0; r < 2; ++r) {
    const uint32_t within = warp_first + lane / 4 + r * 8, row = place.first + within;
    float dot = 0;
    for (uint32_t c = lane % 4; c < kChannels; c += 4) {
      const uint32_t at = within * kStride + c;
      dot = dot + ValueOf(static_cast<T>(k_tile[at])) * ValueOf(static_cast<T>(v_tile[at]));
    }
    row_delta[r] = SumOfQuad(dot);
    row_log[r] = 0;
    if (row < length) {
      row_log[r] = logarithms[RowNumber(s, place) + row];
      if (lane % 4 == 0) delta[RowNumber(s, place) + row] = row_delta[r];
    }
  }
  __syncthreads();
  LoadTile<T, kChannels>(qkv + BeginOf(s, place, 0), 3 * channels, place.first, length,
                         s.head_channels, k_tile);
  __syncthreads();
#pragma unroll
  for (uint32_t step = 0; step < kSteps; ++step) {
    q[step] = P::ReadLeft(k_tile, kStride, warp_first, step * 16);
  }
  __syncthreads();

  float out[kChannels / 8][4] = {};
  for (uint32_t column = 0; column < length; column += kTile) {
    LoadTile<T, kChannels>(qkv + BeginOf(s, place, 1), 3 * channels, column, length,
                           s.head_channels, k_tile);
    LoadTile<T, kChannels>(qkv + BeginOf(s, place, 2), 3 * channels, column, length,
                           s.head_channels, v_tile);
    if (drops) DrawFlags(dropping, key, s, place, place.first, column, length, flags);
    __syncthreads();
#pragma unroll 1
    for (uint32_t part = 0; part < kTile; part += 16) {
      float scores[2][4] = {}, slopes[2][4] = {};
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
#pragma unroll
        for (uint32_t step = 0; step < kSteps; ++step) {
          P::Add(scores[half], q[step],
                 P::ReadRows(k_tile, kStride, part + half * 8, step * 16));
          P::Add(slopes[half], dout[step],
                 P::ReadRows(v_tile, kStride, part + half * 8, step * 16));
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          const uint32_t c = part + half * 8 + lane % 4 * 2 + i % 2;
          float power = 0;
          if (column + c < length) {
            power = exp2f(scores[half][i] * s.log2_factor - row_log[i / 2]);
          }
          float slope = slopes[half][i];
          if (drops) {
            const uint32_t r = warp_first + lane / 4 + i / 2 * 8;
            const uint8_t dropped = flags[r * kFlagStride + c];
            slope = dropped != 0 ? 0.0f : slope * dropping.scale;
          }
          scores[half][i] = power * (slope - row_delta[i / 2]);
        }
      }
      const typename P::Left left = P::FromSums(scores[0], scores[1]);
#pragma unroll
      for (uint32_t n = 0; n < kChannels / 8; ++n) {
        P::Add(out[n], left, P::ReadColumns(k_tile, kStride, part, n * 8));
      }
    }
    __syncthreads();
  }
  const float factors[2] = {s.factor, s.factor};
  StoreRows<T, kChannels>(out, factors, 3 * channels, place.first + warp_first, length, s, to);
}

// dK and dV of a block's positions: everything transposed, rows of the products are keys.
template <typename P, uint32_t kChannels>
__global__ void __launch_bounds__(kThreads)
    AttentionColumnsKernel(Sizes s, Dropping dropping, Pointer<const int32_t> lengths,
                           Pointer<const typename P::Element> qkv,
                           Pointer<const typename P::Element> dy, Pointer<const float> logarithms,
                           Pointer<const float> delta, Pointer<typename P::Element> dqkv) {
  using T = typename P::Element;
  constexpr uint32_t kStride = kChannels + kRowGap, kSteps = kChannels / 16;
  FORESHARD_SHARED(T, q_tile, kTile * kStride);
  FORESHARD_SHARED(T, dy_tile, kTile * kStride);
  FORESHARD_SHARED(uint8_t, flags, kTile * kFlagStride);
  FORESHARD_SHARED(float, row_logs, kTile);
  FORESHARD_SHARED(float, row_deltas, kTile);
  const Place place = PlaceOfBlock(s);
  const uint32_t channels = s.heads * s.head_channels, lane = LaneOfThread();
  const uint32_t length = static_cast<uint32_t>(static_cast<int32_t>(lengths[place.example]));
  const Pointer<T> to_k = dqkv + BeginOf(s, place, 1), to_v = dqkv + BeginOf(s, place, 2);
  if (place.first >= length) {
    StoreZeros<T>(3 * channels, place, s, to_k);
    StoreZeros<T>(3 * channels, place, s, to_v);
    return;
  }
  const bool drops = Drops(dropping);
  const uint64_t key = drops ? static_cast<uint64_t>(dropping.keys[place.example]) : 0;
  const uint32_t warp_first = WarpOfThread() * kWarpRows;

  LoadTile<T, kChannels>(qkv + BeginOf(s, place, 1), 3 * channels, place.first, length,
                         s.head_channels, q_tile);
  LoadTile<T, kChannels>(qkv + BeginOf(s, place, 2), 3 * channels, place.first, length,
                         s.head_channels, dy_tile);
  __syncthreads();
  typename P::Left k[kSteps], v[kSteps];
#pragma unroll
  for (uint32_t step = 0; step < kSteps; ++step) {
    k[step] = P::ReadLeft(q_tile, kStride, warp_first, step * 16);
    v[step] = P::ReadLeft(dy_tile, kStride, warp_first, step * 16);
  }
  __syncthreads();

  float out_k[kChannels / 8][4] = {}, out_v[kChannels / 8][4] = {};
  for (uint32_t row = 0; row < length; row += kTile) {
    LoadTile<T, kChannels>(qkv + BeginOf(s, place, 0), 3 * channels, row, length, s.head_channels,
                           q_tile);
    LoadTile<T, kChannels>(dy + BeginOfOutput(s, place), channels, row, length, s.head_channels,
                           dy_tile);
    if (threadIdx.x < kTile) {
      const bool there = row + threadIdx.x < length;
      const uint64_t at = RowNumber(s, place) + row + threadIdx.x;
      row_logs[threadIdx.x] = there ? static_cast<float>(logarithms[at]) : 0.0f;
      row_deltas[threadIdx.x] = there ? static_cast<float>(delta[at]) : 0.0f;
    }
    if (drops) DrawFlags(dropping, key, s, place, row, place.first, length, flags);
    __syncthreads();
#pragma unroll 1
    for (uint32_t part = 0; part < kTile; part += 16) {
      float powers[2][4] = {}, slopes[2][4] = {};
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
#pragma unroll
        for (uint32_t step = 0; step < kSteps; ++step) {
          P::Add(powers[half], k[step],
                 P::ReadRows(q_tile, kStride, part + half * 8, step * 16));
          P::Add(slopes[half], v[step],
                 P::ReadRows(dy_tile, kStride, part + half * 8, step * 16));
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          const uint32_t r = part + half * 8 + lane % 4 * 2 + i % 2;
          const uint32_t c = warp_first + lane / 4 + i / 2 * 8;
          float power = 0;
          if (row + r < length && place.first + c < length) {
            power = exp2f(powers[half][i] * s.log2_factor - static_cast<float>(row_logs[r]));
          }
          float slope = slopes[half][i], given = power;
          if (drops) {
            const uint8_t dropped = flags[r * kFlagStride + c];
            given = dropped != 0 ? 0.0f : power * dropping.scale;
            slope = dropped != 0 ? 0.0f : slope * dropping.scale;
          }
          powers[half][i] = given;
          slopes[half][i] = power * (slope - static_cast<float>(row_deltas[r]));
        }
      }
      const typename P::Left given = P::FromSums(powers[0], powers[1]);
      const typename P::Left slope = P::FromSums(slopes[0], slopes[1]);
#pragma unroll
      for (uint32_t n = 0; n < kChannels / 8; ++n) {
        P::Add(out_v[n], given, P::ReadColumns(dy_tile, kStride, part, n * 8));
        P::Add(out_k[n], slope, P::ReadColumns(q_tile, kStride, part, n * 8));
      }
    }
    __syncthreads();
  }
  const float factors[2] = {s.factor, s.factor}, ones[2] = {1, 1};
  StoreRows<T, kChannels>(out_k, factors, 3 * channels, place.first + warp_first, length, s, to_k);
  StoreRows<T, kChannels>(out_v, ones, 3 * channels, place.first + warp_first, length, s, to_v);
}

Sizes SizesOf(const AttentionArguments& a) {
  const double factor = 1 / std::sqrt(static_cast<double>(a.head_channels));
  return {a.positions, a.heads, a.head_channels, static_cast<float>(factor),
          static_cast<float>(factor * 1.4426950408889634)};
}

Grid GridOfTiles(const AttentionArguments& a) {
  const uint32_t tiles = (a.positions + kTile - 1) / kTile;
  return {{tiles * a.heads * a.examples}, {kThreads}};
}

// What forward and backward are for one kind of products and channels.
template <typename P, uint32_t kChannels>
struct Passes {
  using T = typename P::Element;

  static absl::Status Forward(const AttentionArguments& a, void* y, float* logarithms,
                              NativeStream stream) {
    return Launch("Attention", AttentionKernel<P, kChannels>, GridOfTiles(a), stream, SizesOf(a),
                  DroppingOf(a.drop), logarithms != nullptr, Pointer<const int32_t>(a.lengths),
                  Pointer<const T>(static_cast<const T*>(a.qkv)), Pointer<T>(static_cast<T*>(y)),
                  Pointer<float>(logarithms));
  }

  static absl::Status Backward(const AttentionArguments& a, const void* y, const float* logarithms,
                               const void* dy, float* delta, void* dqkv, NativeStream stream) {
    const Pointer<const T> qkv(static_cast<const T*>(a.qkv)), out(static_cast<const T*>(y)),
        gradient(static_cast<const T*>(dy));
    const Pointer<T> to(static_cast<T*>(dqkv));
    const absl::Status status =
        Launch("AttentionRows", AttentionRowsKernel<P, kChannels>, GridOfTiles(a), stream,
               SizesOf(a), DroppingOf(a.drop), Pointer<const int32_t>(a.lengths), qkv, out, gradient,
               Pointer<const float>(logarithms), Pointer<float>(delta), to);
    if (!status.ok()) return status;
    return Launch("AttentionColumns", AttentionColumnsKernel<P, kChannels>, GridOfTiles(a), stream,
                  SizesOf(a), DroppingOf(a.drop), Pointer<const int32_t>(a.lengths), qkv, gradient,
                  Pointer<const float>(logarithms), Pointer<const float>(delta), to);
  }
};

// Calls `run` with the passes that fit.
template <typename Run>
absl::Status Choose(const AttentionArguments& a, const Run& run) {
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

}  // namespace

absl::Status CheckAttention(uint32_t head_channels) {
  if (head_channels >= 1 && head_channels <= kMostHeadChannels) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "a head of attention has " + std::to_string(head_channels) + " channels, on a GPU 1 to " +
      std::to_string(kMostHeadChannels) + " are possible: take more heads, or the device cpu");
}

absl::Status AttentionForward(const AttentionArguments& arguments, void* y, float* logarithms,
                              NativeStream stream) {
  if (arguments.examples == 0) return absl::OkStatus();
  return Choose(arguments, [&](auto passes) {
    return decltype(passes)::Forward(arguments, y, logarithms, stream);
  });
}

absl::Status AttentionBackward(const AttentionArguments& arguments, const void* y,
                               const float* logarithms, const void* dy, float* delta, void* dqkv,
                               NativeStream stream) {
  if (arguments.examples == 0) return absl::OkStatus();
  return Choose(arguments, [&](auto passes) {
    return decltype(passes)::Backward(arguments, y, logarithms, dy, delta, dqkv, stream);
  });
}

}  // namespace FORESHARD_CUDA_NAMESPACE
