// top_k: the k elements with the largest |c|, of equal ones those with the lower index
// (kernels/codecs/top_k.cc).
//
// Encode: each thread keeps 16 elements in registers, i = 256 j + t, so that a warp's ballot is
// 32 elements in their order; neighbours load neighbouring floats, which is as good as 16-byte
// words where 16 loads are under way at once. A bound is found by bisection among the
// magnitudes' bits: how many are at or above it is a sum over warps, of which two lie in turn in
// shared memory, so that one barrier a step is enough. It starts from the largest magnitude,
// downwards in widening steps, since the k-th is most often a few powers of two below it, and
// ends once the count is k, or one magnitude is left, some of whose bearers stay.
// Decode: as random_k's.
#include "kernels/cuda/codec_kernel.h"
#include "kernels/cuda/codecs.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

constexpr uint32_t kPerThread = kMaxBlockElements / kBlockThreads;
constexpr uint32_t kWarps = kBlockThreads / kWarpSize;
// Elements in words of 32, in their order.
constexpr uint32_t kWords = kMaxBlockElements / kWarpSize;
constexpr uint32_t kWordsPerLane = kWords / kWarpSize;

// Adds up over the lanes before this one.
__device__ __forceinline__ uint32_t SumBefore(uint32_t value) {
  uint32_t sum = value;
#pragma unroll
  for (uint32_t distance = 1; distance < kWarpSize; distance *= 2) {
    const uint32_t before = __shfl_up_sync(kAllLanes, sum, distance);
    if (LaneOfThread() >= distance) sum += before;
  }
  return sum - value;
}

// A whole block's sums, one after another.
struct BlockSums {
  Pointer<uint32_t> partial;  // [2 * kWarps], shared
  uint32_t turn = 0;

  __device__ __forceinline__ uint32_t Sum(uint32_t value) {
    const uint32_t of_warp = SumOfWarp(value);
    if (LaneOfThread() == 0) partial[turn + WarpOfThread()] = of_warp;
    // Whoever is behind still reads the other half.
    __syncthreads();
    uint32_t sum = 0;
#pragma unroll
    for (uint32_t warp = 0; warp < kWarps; ++warp) sum += partial[turn + warp];
    turn = kWarps - turn;
    return sum;
  }
};

// |c| as a whole number, in the order of the numbers; -1 where there is no element. What is no
// number is limited as on the CPU (the GPU's own NaN has all bits), so that one more than the
// largest is still a whole number.
constexpr uint32_t kMostMagnitude = 0x7ffeffff;
struct Magnitudes {
  int32_t at[kPerThread];

  __device__ __forceinline__ uint32_t Count(int32_t least) const {
    uint32_t count = 0;
#pragma unroll
    for (uint32_t j = 0; j < kPerThread; ++j) count += at[j] >= least ? 1 : 0;
    return count;
  }
};

// from_low magnitudes are at or above low, `above` at or above high; above < k <= from_low.
struct Bracket {
  int32_t low, high;
  uint32_t from_low, above;
};

__device__ __forceinline__ Bracket FindBracket(const Magnitudes& magnitudes, int32_t most,
                                               uint32_t n, uint32_t k, BlockSums sums) {
  Bracket bracket = {0, most + 1, n, 0};
  int32_t width = 1 << 23;  // one power of two
  while (bracket.high > width) {
    const int32_t bound = bracket.high - width;
    const uint32_t count = sums.Sum(magnitudes.Count(bound));
    if (count >= k) {
      bracket.low = bound;
      bracket.from_low = count;
      break;
    }
    bracket.high = bound;
    bracket.above = count;
    width *= 2;
    if (width >= 1 << 30) break;
  }
  while (bracket.high - bracket.low > 1 && bracket.from_low != k) {
    const int32_t middle = bracket.low + (bracket.high - bracket.low) / 2;
    const uint32_t count = sums.Sum(magnitudes.Count(middle));
    if (count >= k) {
      bracket.low = middle;
      bracket.from_low = count;
    } else {
      bracket.high = middle;
      bracket.above = count;
    }
  }
  return bracket;
}

// By the first warp: adds to `taken` so many of the `ties`, the first ones, and leaves in
// `before` how many are taken before each word.
__device__ __forceinline__ void TakeTies(const Pointer<uint32_t>& taken,
                                         const Pointer<uint32_t>& ties,
                                         const Pointer<uint32_t>& before, uint32_t wanted) {
  const uint32_t first = LaneOfThread() * kWordsPerLane;
  uint32_t mine = 0;
#pragma unroll
  for (uint32_t w = 0; w < kWordsPerLane; ++w) mine += __popc(ties[first + w]);
  uint32_t earlier = SumBefore(mine);
  uint32_t count = 0;
#pragma unroll
  for (uint32_t w = 0; w < kWordsPerLane; ++w) {
    uint32_t tied = ties[first + w];
    uint32_t word = taken[first + w];
    while (tied != 0 && earlier < wanted) {
      word |= tied & (0 - tied);
      tied &= tied - 1;
      ++earlier;
    }
    taken[first + w] = word;
    count += __popc(word);
  }
  uint32_t sum = SumBefore(count);
#pragma unroll
  for (uint32_t w = 0; w < kWordsPerLane; ++w) {
    before[first + w] = sum;
    sum += __popc(taken[first + w]);
  }
}

__global__ void __launch_bounds__(kBlockThreads) EncodeTopKKernel(Encode encode) {
  FORESHARD_SHARED(uint32_t, partial, 2 * kWarps);
  FORESHARD_SHARED(uint32_t, largest, kWarps);
  FORESHARD_SHARED(uint32_t, taken, kWords);
  FORESHARD_SHARED(uint32_t, ties, kWords);
  FORESHARD_SHARED(uint32_t, before, kWords);
  if (encode.stopped()) return;
  const DeviceBlock described = encode.blocks[blockIdx.x];
  const EncodeBlock block(encode, described);
  if (described.plain) {
    EncodePlainBlock(block);
    return;
  }
  float c[kPerThread];
#pragma unroll
  for (uint32_t j = 0; j < kPerThread; ++j) {
    const uint32_t i = j * kBlockThreads + threadIdx.x;
    c[j] = i < block.n ? LoadStreaming(block.values + i) : 0;
  }
  if (block.has_error) {
#pragma unroll
    for (uint32_t j = 0; j < kPerThread; ++j) {
      const uint32_t i = j * kBlockThreads + threadIdx.x;
      if (i < block.n) c[j] = c[j] + LoadStreaming(block.error + i);
    }
  }
  Magnitudes magnitudes;
  uint32_t most = 0;
#pragma unroll
  for (uint32_t j = 0; j < kPerThread; ++j) {
    const uint32_t i = j * kBlockThreads + threadIdx.x;
    uint32_t magnitude = __float_as_uint(c[j]) & 0x7fffffff;
    magnitude = magnitude < kMostMagnitude ? magnitude : kMostMagnitude;
    magnitudes.at[j] = i < block.n ? static_cast<int32_t>(magnitude) : -1;
    most = magnitude > most ? magnitude : most;
  }
  most = LargestOfWarp(most);
  if (LaneOfThread() == 0) largest[WarpOfThread()] = most;
  __syncthreads();
#pragma unroll
  for (uint32_t warp = 0; warp < kWarps; ++warp) {
    const uint32_t theirs = largest[warp];
    most = theirs > most ? theirs : most;
  }
  const uint32_t k = described.selected;
  const Bracket bracket =
      FindBracket(magnitudes, static_cast<int32_t>(most), block.n, k, BlockSums{partial, 0});
  // Where more than k are at or above low, low alone is left between the bounds: those above it
  // are taken, and so many of those equal to it.
  const bool tied = bracket.from_low != k;
#pragma unroll
  for (uint32_t j = 0; j < kPerThread; ++j) {
    const uint32_t sure =
        __ballot_sync(kAllLanes, magnitudes.at[j] >= (tied ? bracket.high : bracket.low));
    const uint32_t tie = __ballot_sync(kAllLanes, tied && magnitudes.at[j] == bracket.low);
    if (LaneOfThread() == 0) {
      taken[j * kWarps + WarpOfThread()] = sure;
      ties[j * kWarps + WarpOfThread()] = tie;
    }
  }
  __syncthreads();
  if (WarpOfThread() == 0) TakeTies(taken, ties, before, k - bracket.above);
  __syncthreads();
  const Pointer<uint8_t> indices = block.out;
  const Pointer<uint8_t> words = block.out + k * sizeof(uint16_t);
#pragma unroll
  for (uint32_t j = 0; j < kPerThread; ++j) {
    const uint32_t i = j * kBlockThreads + threadIdx.x;
    const uint32_t word = j * kWarps + WarpOfThread();
    const uint32_t map = taken[word];
    if ((map >> LaneOfThread() & 1) != 0) {
      const uint32_t place = before[word] + __popc(map & ((1u << LaneOfThread()) - 1));
      StoreWord(indices + place * sizeof(uint16_t), static_cast<uint16_t>(i));
      StoreWord(words + place * sizeof(float), __float_as_uint(c[j]));
      c[j] = c[j] - c[j];
    }
    if (block.has_error && i < block.n) StoreStreaming(block.error + i, c[j]);
  }
}

template <bool kAdam>
__global__ void __launch_bounds__(kBlockThreads) DecodeTopKKernel(Decode decode) {
  FORESHARD_SHARED(float, decoded, kMaxBlockElements);
  const DeviceBlock described = decode.blocks[blockIdx.x];
  const DecodeBlock<kAdam> block(decode, described);
  if (described.plain) {
    DecodePlainBlock(block);
    return;
  }
  const uint32_t k = described.selected;
  const Pointer<const uint8_t> words = block.in + k * sizeof(uint16_t);
  for (uint32_t q = threadIdx.x; q < QuadsOf(block.n); q += kBlockThreads)
    StoreShared(decoded, q, {});
  __syncthreads();
  for (uint32_t j = threadIdx.x; j < k; j += kBlockThreads) {
    const uint32_t index = LoadWord<uint16_t>(block.in + j * sizeof(uint16_t));
    if (index < block.n) {
      decoded[index] = __uint_as_float(LoadWord<uint32_t>(words + j * sizeof(float)));
    }
  }
  __syncthreads();
  for (uint32_t q = threadIdx.x; q < QuadsOf(block.n); q += kBlockThreads) {
    block.Put(q, LoadShared(decoded, q));
  }
}

}  // namespace

absl::Status EncodeTopK(const EncodeArguments& arguments, NativeStream stream) {
  return LaunchEncode("EncodeTopK", EncodeTopKKernel, arguments, stream);
}

absl::Status DecodeTopK(const DecodeArguments& arguments, NativeStream stream) {
  const bool adam = arguments.into == DecodeInto::kFrozenAdam;
  return LaunchDecode("DecodeTopK", adam ? DecodeTopKKernel<true> : DecodeTopKKernel<false>,
                      arguments, stream);
}

}  // namespace FORESHARD_CUDA_NAMESPACE
