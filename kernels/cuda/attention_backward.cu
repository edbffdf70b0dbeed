// Attention backward. With S = Q K' / sqrt(d), P = softmax(S), M dropout, O = M(P) V and
// D = rowsum(dO O):
//
//   dV = M(P)' dO;  dS = P (M(dO V') - D);  dQ = dS K / sqrt(d);  dK = dS' Q / sqrt(d)
//
// One kernel goes by rows and has dQ and D, another by columns and has dK and dV; each makes the
// scores' tiles again, so that no two blocks add to the same place.
#include "kernels/cuda/attention_tiles.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

// dQ of a block's rows, and D of each, which the other half of backward reads.
template <typename P, uint32_t kChannels>
__global__ void __launch_bounds__(kAttentionThreads)
    AttentionRowsKernel(AttentionSizes s, Dropping dropping, Pointer<const int32_t> lengths,
                        Pointer<const typename P::Element> qkv,
                        Pointer<const typename P::Element> y,
                        Pointer<const typename P::Element> dy, Pointer<const float> logarithms,
                        Pointer<float> delta, Pointer<typename P::Element> dqkv) {
  using T = typename P::Element;
  constexpr uint32_t kStride = kChannels + kRowGap, kSteps = kChannels / 16;
  FORESHARD_SHARED(T, k_tile, kAttentionTile * kStride);
  FORESHARD_SHARED(T, v_tile, kAttentionTile * kStride);
  FORESHARD_SHARED(uint8_t, flags, kAttentionTile * kFlagStride);
  const AttentionPlace place = PlaceOfBlock(s);
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
  for (uint32_t column = 0; column < length; column += kAttentionTile) {
    LoadTile<T, kChannels>(qkv + BeginOf(s, place, 1), 3 * channels, column, length,
                           s.head_channels, k_tile);
    LoadTile<T, kChannels>(qkv + BeginOf(s, place, 2), 3 * channels, column, length,
                           s.head_channels, v_tile);
    if (drops) DrawFlags(dropping, key, s, place, place.first, column, length, flags);
    __syncthreads();
#pragma unroll 1
    for (uint32_t part = 0; part < kAttentionTile; part += 16) {
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
__global__ void __launch_bounds__(kAttentionThreads)
    AttentionColumnsKernel(AttentionSizes s, Dropping dropping, Pointer<const int32_t> lengths,
                           Pointer<const typename P::Element> qkv,
                           Pointer<const typename P::Element> dy, Pointer<const float> logarithms,
                           Pointer<const float> delta, Pointer<typename P::Element> dqkv) {
  using T = typename P::Element;
  constexpr uint32_t kStride = kChannels + kRowGap, kSteps = kChannels / 16;
  FORESHARD_SHARED(T, q_tile, kAttentionTile * kStride);
  FORESHARD_SHARED(T, dy_tile, kAttentionTile * kStride);
  FORESHARD_SHARED(uint8_t, flags, kAttentionTile * kFlagStride);
  FORESHARD_SHARED(float, row_logs, kAttentionTile);
  FORESHARD_SHARED(float, row_deltas, kAttentionTile);
  const AttentionPlace place = PlaceOfBlock(s);
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
  for (uint32_t row = 0; row < length; row += kAttentionTile) {
    LoadTile<T, kChannels>(qkv + BeginOf(s, place, 0), 3 * channels, row, length, s.head_channels,
                           q_tile);
    LoadTile<T, kChannels>(dy + BeginOfOutput(s, place), channels, row, length, s.head_channels,
                           dy_tile);
    if (threadIdx.x < kAttentionTile) {
      const bool there = row + threadIdx.x < length;
      const uint64_t at = RowNumber(s, place) + row + threadIdx.x;
      row_logs[threadIdx.x] = there ? static_cast<float>(logarithms[at]) : 0.0f;
      row_deltas[threadIdx.x] = there ? static_cast<float>(delta[at]) : 0.0f;
    }
    if (drops) DrawFlags(dropping, key, s, place, row, place.first, length, flags);
    __syncthreads();
#pragma unroll 1
    for (uint32_t part = 0; part < kAttentionTile; part += 16) {
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

template <typename P, uint32_t kChannels>
struct Backward {
  using T = typename P::Element;

  static absl::Status Run(const AttentionArguments& a, const void* y, const float* logarithms,
                          const void* dy, float* delta, void* dqkv, NativeStream stream) {
    const Pointer<const T> qkv(static_cast<const T*>(a.qkv)), out(static_cast<const T*>(y)),
        gradient(static_cast<const T*>(dy));
    const Pointer<T> to(static_cast<T*>(dqkv));
    const absl::Status status =
        Launch("AttentionRows", AttentionRowsKernel<P, kChannels>, GridOfTiles(a), stream,
               SizesOf(a), DroppingOf(a.drop), Pointer<const int32_t>(a.lengths), qkv, out,
               gradient, Pointer<const float>(logarithms), Pointer<float>(delta), to);
    if (!status.ok()) return status;
    return Launch("AttentionColumns", AttentionColumnsKernel<P, kChannels>, GridOfTiles(a), stream,
                  SizesOf(a), DroppingOf(a.drop), Pointer<const int32_t>(a.lengths), qkv, gradient,
                  Pointer<const float>(logarithms), Pointer<const float>(delta), to);
  }
};

}  // namespace

absl::Status AttentionBackward(const AttentionArguments& arguments, const void* y,
                               const float* logarithms, const void* dy, float* delta, void* dqkv,
                               NativeStream stream) {
  if (arguments.examples == 0) return absl::OkStatus();
  return ChooseAttention<Backward>(arguments, [&](auto passes) {
    return decltype(passes)::Run(arguments, y, logarithms, dy, delta, dqkv, stream);
  });
}

}  // namespace FORESHARD_CUDA_NAMESPACE
