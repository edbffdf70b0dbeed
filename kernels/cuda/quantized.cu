// quantized: b bits an element, stochastically rounded (kernels/codecs/quantized.cc).
//
// Encode: c to shared memory and its largest magnitude, a maximum of whole numbers that has no
// order; then each pair of threads rounds eight elements and packs them into b bytes.
#include "kernels/cuda/codec_kernel.h"
#include "kernels/cuda/codecs.h"
#include "kernels/cuda/draws.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

constexpr uint32_t kScaleBytes = 4;
constexpr uint32_t kMostBytes = kScaleBytes + kMaxBlockElements;
constexpr float kMinScale = 0x1p-96f;

// What all elements of a block are rounded by, as in quantized.cc.
struct Levels {
  uint32_t most = 0;  // L
  float factor = 0;   // 2^24 L / s, 0 where s is
  float step = 0;     // s / L
};

__device__ __forceinline__ float NextBelow(float positive) {
  return __uint_as_float(__float_as_uint(positive) - 1);
}

__device__ __forceinline__ Levels LevelsOf(float scale, uint32_t bits) {
  Levels levels;
  levels.most = (1u << (bits - 1)) - 1;
  if (scale == 0) return levels;
  const float most = static_cast<float>(levels.most);
  levels.factor = most * 0x1p24f / scale;
  if (scale * levels.factor > most * 0x1p24f) levels.factor = NextBelow(levels.factor);
  levels.step = scale / most;
  // All bits of the exponent: an infinity.
  if ((__float_as_uint(most * levels.step) & 0x7f800000) == 0x7f800000) {
    levels.step = NextBelow(levels.step);
  }
  return levels;
}

__device__ __forceinline__ uint32_t FieldOf(float c, uint32_t draw, const Levels& levels) {
  const uint32_t fixed = static_cast<uint32_t>(static_cast<int32_t>(c * levels.factor));
  return (fixed + (levels.most << 24) + (draw >> 8)) >> 24;
}

__device__ __forceinline__ float ValueOf(uint32_t field, const Levels& levels) {
  return static_cast<float>(static_cast<int32_t>(field - levels.most)) * levels.step;
}

__global__ void __launch_bounds__(kBlockThreads)
    EncodeQuantizedKernel(Encode encode, uint32_t bits) {
  FORESHARD_SHARED(float, shared_c, kMaxBlockElements);
  FORESHARD_SHARED(uint8_t, bytes, kMostBytes);
  FORESHARD_SHARED(uint32_t, largest, 1);
  if (encode.stopped()) return;
  const DeviceBlock described = encode.blocks[blockIdx.x];
  const EncodeBlock block(encode, described);
  if (described.plain) {
    EncodePlainBlock(block);
    return;
  }
  if (threadIdx.x == 0) largest[0] = 0;
  __syncthreads();
  uint32_t most = 0;
  for (uint32_t q = threadIdx.x; q < QuadsOf(block.n); q += kBlockThreads) {
    const Quad c = block.C(q);
    StoreShared(shared_c, q, c);
#pragma unroll
    for (uint32_t k = 0; k < kQuad; ++k) {
      const uint32_t magnitude = __float_as_uint(c.x[k]) & 0x7fffffff;
      most = magnitude > most ? magnitude : most;
    }
  }
  most = LargestOfWarp(most);
  if (LaneOfThread() == 0) atomicMax(largest, most);
  __syncthreads();
  const float magnitude = __uint_as_float(largest[0]);
  const float scale = magnitude < kMinScale ? 0.0f : magnitude;
  const Levels levels = LevelsOf(scale, bits);
  const uint64_t key = KeyOfBlock(encode.own_key, described.offset);
  if (threadIdx.x == 0) *CastPointer<float>(bytes) = scale;
  for (uint32_t round = 0; round < RoundsOf(block.n); ++round) {
    const uint32_t q = round * kBlockThreads + threadIdx.x;
    uint32_t fields = 0;  // four of at most 8 bits
    if (q < QuadsOf(block.n)) {
      const Quad c = LoadShared(shared_c, q);
      Quad lost;
#pragma unroll
      for (uint32_t k = 0; k < kQuad; ++k) {
        const uint32_t i = q * kQuad + k;
        const uint32_t field = FieldOf(c.x[k], Draw(key, i), levels);
        // What lies beyond the end has no bits.
        fields |= (i < block.n ? field : 0) << bits * k;
        lost.x[k] = c.x[k] - ValueOf(field, levels);
      }
      if (block.has_error) block.SetError(q, lost);
    }
    const uint32_t next = __shfl_down_sync(kAllLanes, fields, 1);
    if (q % 2 == 0 && q < QuadsOf(block.n)) {
      const uint64_t packed = fields | static_cast<uint64_t>(next) << kQuad * bits;
      const uint32_t begin = kScaleBytes + q / 2 * bits;
      for (uint32_t byte = 0; byte < bits; ++byte) {
        bytes[begin + byte] = static_cast<uint8_t>(packed >> 8 * byte);
      }
    }
  }
  __syncthreads();
  CopyBytes(bytes, kScaleBytes + (block.n * bits + 7) / 8, block.out);
}

template <bool kAdam>
__global__ void __launch_bounds__(kBlockThreads)
    DecodeQuantizedKernel(Decode decode, uint32_t bits) {
  const DeviceBlock described = decode.blocks[blockIdx.x];
  const DecodeBlock<kAdam> block(decode, described);
  if (described.plain) {
    DecodePlainBlock(block);
    return;
  }
  const Levels levels = LevelsOf(__uint_as_float(LoadWord<uint32_t>(block.in)), bits);
  const Pointer<const uint8_t> packed = block.in + kScaleBytes;
  const uint32_t packed_bytes = (block.n * bits + 7) / 8;
  for (uint32_t q = threadIdx.x; q < QuadsOf(block.n); q += kBlockThreads) {
    // The quad's 4b bits begin within the first of up to five bytes.
    const uint32_t at = q * kQuad * bits;
    uint64_t word = 0;
    for (uint32_t byte = 0; byte < (at % 8 + kQuad * bits + 7) / 8; ++byte) {
      const uint32_t place = at / 8 + byte;
      if (place < packed_bytes) word |= static_cast<uint64_t>(packed[place]) << 8 * byte;
    }
    word >>= at % 8;
    Quad decoded;
#pragma unroll
    for (uint32_t k = 0; k < kQuad; ++k) {
      const uint32_t field = static_cast<uint32_t>(word >> bits * k) & ((1u << bits) - 1);
      decoded.x[k] = ValueOf(field, levels);
    }
    block.Put(q, decoded);
  }
}

}  // namespace

absl::Status EncodeQuantized(uint32_t bits, const EncodeArguments& arguments, NativeStream stream) {
  return LaunchEncode("EncodeQuantized", EncodeQuantizedKernel, arguments, stream, bits);
}

absl::Status DecodeQuantized(uint32_t bits, const DecodeArguments& arguments, NativeStream stream) {
  const bool adam = arguments.into == DecodeInto::kFrozenAdam;
  return LaunchDecode("DecodeQuantized",
                      adam ? DecodeQuantizedKernel<true> : DecodeQuantizedKernel<false>, arguments,
                      stream, bits);
}

}  // namespace FORESHARD_CUDA_NAMESPACE
