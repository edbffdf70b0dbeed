// Attention forward: a running maximum and sum a row, the output rescaled as the maximum grows.
// Exponentials are powers of 2, and what is kept a row is the logarithm of the sum, base 2, of
// scores times log2 e. What limits: tensor cores, and with dropout the drawing of words.
#include <string>

#include "kernels/cuda/attention_tiles.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

template <typename P, uint32_t kChannels>
__global__ void __launch_bounds__(kAttentionThreads)
    AttentionKernel(AttentionSizes s, Dropping dropping, bool training,
                    Pointer<const int32_t> lengths,
                    Pointer<const typename P::Element> qkv, Pointer<typename P::Element> y,
                    Pointer<float> logarithms) {
  using T = typename P::Element;
  constexpr uint32_t kStride = kChannels + kRowGap, kSteps = kChannels / 16;
  constexpr uint32_t kColumns = kAttentionTile / 8;
  FORESHARD_SHARED(T, k_tile, kAttentionTile * kStride);
  FORESHARD_SHARED(T, v_tile, kAttentionTile * kStride);
  FORESHARD_SHARED(uint8_t, flags, kAttentionTile * kFlagStride);
  const AttentionPlace place = PlaceOfBlock(s);
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
  for (uint32_t column = 0; column < length; column += kAttentionTile) {
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
    for (uint32_t step = 0; step < kAttentionTile / 16; ++step) {
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

template <typename P, uint32_t kChannels>
struct Forward {
  using T = typename P::Element;

  static absl::Status Run(const AttentionArguments& a, void* y, float* logarithms,
                          NativeStream stream) {
    return Launch("Attention", AttentionKernel<P, kChannels>, GridOfTiles(a), stream, SizesOf(a),
                  DroppingOf(a.drop), logarithms != nullptr, Pointer<const int32_t>(a.lengths),
                  Pointer<const T>(static_cast<const T*>(a.qkv)), Pointer<T>(static_cast<T*>(y)),
                  Pointer<float>(logarithms));
  }
};

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
  return ChooseAttention<Forward>(arguments, [&](auto passes) {
    return decltype(passes)::Run(arguments, y, logarithms, stream);
  });
}

}  // namespace FORESHARD_CUDA_NAMESPACE
