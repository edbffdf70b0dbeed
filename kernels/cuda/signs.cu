// one_bit and one_bit_mean: a scale and a bit an element (kernels/codecs/sign_block.h).
//
// Encode: all threads leave c in shared memory, the only place where it lies between the one
// read and the one write; eight threads add up the scale's terms, one a lane, in the format's
// order; then all threads make bits and error. See codecs.h on what that costs.
#include "kernels/cuda/codec_kernel.h"
#include "kernels/cuda/codecs.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

constexpr uint32_t kLanes = 8;
constexpr uint32_t kScaleBytes = 4;
constexpr uint32_t kMostBytes = kScaleBytes + kMaxBlockElements / 8;

// By the first warp, all of it: the scale of the n elements of c.
template <SignScale kScale>
__device__ __forceinline__ float ScaleOf(const Pointer<float>& c, uint32_t n) {
  const uint32_t lane = LaneOfThread();
  double sum = 0;
  if (lane < kLanes) {
    // Unrolled, so that the loads run ahead of the additions that wait for each other.
#pragma unroll 16
    for (uint32_t i = lane; i < n; i += kLanes) {
      const double wide = static_cast<double>(static_cast<float>(c[i]));
      sum = sum + (kScale == SignScale::kRootMeanSquare ? wide * wide : fabs(wide));
    }
  }
  // ((l0+l4)+(l2+l6)) + ((l1+l5)+(l3+l7)) in lane 0.
  sum = sum + __shfl_down_sync(kAllLanes, sum, 4);
  sum = sum + __shfl_down_sync(kAllLanes, sum, 2);
  sum = sum + __shfl_down_sync(kAllLanes, sum, 1);
  const double mean = sum / n;
  return static_cast<float>(kScale == SignScale::kRootMeanSquare ? sqrt(mean) : mean);
}

// +magnitude or -magnitude; 0 gets a sign, too.
__device__ __forceinline__ float Signed(float magnitude, bool positive) {
  return __uint_as_float(__float_as_uint(magnitude) ^ (positive ? 0u : 0x80000000u));
}

template <SignScale kScale>
__global__ void __launch_bounds__(kBlockThreads) EncodeSignsKernel(Encode encode) {
  FORESHARD_SHARED(float, shared_c, kMaxBlockElements);
  FORESHARD_SHARED(uint8_t, bytes, kMostBytes);
  if (encode.stopped()) return;
  const DeviceBlock described = encode.blocks[blockIdx.x];
  const EncodeBlock block(encode, described);
  if (described.plain) {
    EncodePlainBlock(block);
    return;
  }
  for (uint32_t q = threadIdx.x; q < QuadsOf(block.n); q += kBlockThreads) {
    StoreShared(shared_c, q, block.C(q));
  }
  __syncthreads();
  if (WarpOfThread() == 0) {
    const float scale = ScaleOf<kScale>(shared_c, block.n);
    if (LaneOfThread() == 0) *CastPointer<float>(bytes) = scale;
  }
  __syncthreads();
  const float scale = *CastPointer<const float>(bytes);
  for (uint32_t round = 0; round < RoundsOf(block.n); ++round) {
    const uint32_t q = round * kBlockThreads + threadIdx.x;
    uint32_t bits = 0;
    if (q < QuadsOf(block.n)) {
      const Quad c = LoadShared(shared_c, q);
      Quad lost;
#pragma unroll
      for (uint32_t k = 0; k < kQuad; ++k) {
        const bool positive = c.x[k] >= 0;
        // What lies beyond the end has no bit.
        bits |= positive && q * kQuad + k < block.n ? 1u << k : 0u;
        lost.x[k] = c.x[k] - Signed(scale, positive);
      }
      if (block.has_error) block.SetError(q, lost);
    }
    // Eight threads' bits are a word.
    bits <<= kQuad * (threadIdx.x % 8);
    bits |= __shfl_xor_sync(kAllLanes, bits, 1);
    bits |= __shfl_xor_sync(kAllLanes, bits, 2);
    bits |= __shfl_xor_sync(kAllLanes, bits, 4);
    if (q % 8 == 0 && q < QuadsOf(block.n)) {
      *CastPointer<uint32_t>(bytes + kScaleBytes + q / 2) = bits;
    }
  }
  __syncthreads();
  CopyBytes(bytes, kScaleBytes + (block.n + 7) / 8, block.out);
}

template <bool kAdam>
__global__ void __launch_bounds__(kBlockThreads) DecodeSignsKernel(Decode decode) {
  const DeviceBlock described = decode.blocks[blockIdx.x];
  const DecodeBlock<kAdam> block(decode, described);
  if (described.plain) {
    DecodePlainBlock(block);
    return;
  }
  const float scale = __uint_as_float(LoadWord<uint32_t>(block.in));
  for (uint32_t q = threadIdx.x; q < QuadsOf(block.n); q += kBlockThreads) {
    const uint32_t byte = block.in[kScaleBytes + q / 2];
    const uint32_t bits = byte >> kQuad * (q % 2);
    Quad decoded;
#pragma unroll
    for (uint32_t k = 0; k < kQuad; ++k) decoded.x[k] = Signed(scale, (bits >> k & 1) != 0);
    block.Put(q, decoded);
  }
}

}  // namespace

absl::Status EncodeSigns(SignScale scale, const EncodeArguments& arguments, NativeStream stream) {
  if (scale == SignScale::kRootMeanSquare) {
    return LaunchEncode("EncodeOneBit", EncodeSignsKernel<SignScale::kRootMeanSquare>, arguments,
                        stream);
  }
  return LaunchEncode("EncodeOneBitMean", EncodeSignsKernel<SignScale::kMeanMagnitude>, arguments,
                      stream);
}

absl::Status DecodeSigns(const DecodeArguments& arguments, NativeStream stream) {
  const bool adam = arguments.into == DecodeInto::kFrozenAdam;
  return LaunchDecode("DecodeSigns", adam ? DecodeSignsKernel<true> : DecodeSignsKernel<false>,
                      arguments, stream);
}

}  // namespace FORESHARD_CUDA_NAMESPACE
