// none, fp16 and bf16: each element by itself. Nothing is shared by threads, so registers
// alone limit how many run: a pure copy with a few operations in between.
#include "kernels/cuda/codec_kernel.h"
#include "kernels/cuda/codecs.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

// Rounded to nearest, ties to even, what is too large to the largest finite: the same bits as
// kernels/codecs/half_words.h. Whole numbers, so that no conversion of the GPU's own differs.
__device__ __forceinline__ uint16_t Fp16Word(float value) {
  constexpr float kMost = 65504.0f;
  value = value > kMost ? kMost : value;
  value = value < -kMost ? -kMost : value;
  const uint32_t bits = __float_as_uint(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t word;
  if (magnitude > 0x7f800000) {  // NaN
    word = 0x7e00 | (magnitude >> 13 & 0x3ff);
  } else if (magnitude < 0x38800000) {  // a multiple of 2^-24: adding 2^-1 rounds there
    word = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000;
  } else {
    word = (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13;
  }
  return static_cast<uint16_t>(sign | word);
}

__device__ __forceinline__ float ValueOfFp16(uint16_t word) {
  const uint32_t sign = static_cast<uint32_t>(word & 0x8000) << 16;
  const uint32_t exponent = word >> 10 & 0x1f;
  const uint32_t mantissa = word & 0x3ff;
  uint32_t magnitude = (exponent + 112) << 23 | mantissa << 13;
  if (exponent == 0) {
    magnitude = __float_as_uint(static_cast<float>(mantissa) * 0x1p-24f);
  } else if (exponent == 0x1f) {
    magnitude = 0x7f800000 | (mantissa == 0 ? 0 : 0x400000) | mantissa << 13;
  }
  return __uint_as_float(sign | magnitude);
}

__device__ __forceinline__ uint16_t Bf16Word(float value) {
  constexpr uint32_t kMost = 0x7f7f;
  const uint32_t bits = __float_as_uint(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t word = (magnitude + 0x7fff + (magnitude >> 16 & 1)) >> 16;
  word = word > kMost ? kMost : word;
  if (magnitude > 0x7f800000) word = magnitude >> 16 | 0x40;  // NaN
  return static_cast<uint16_t>(word | (bits >> 16 & 0x8000));
}

template <WordFormat kFormat>
__device__ __forceinline__ uint16_t WordOf(float value) {
  return kFormat == WordFormat::kFp16 ? Fp16Word(value) : Bf16Word(value);
}
template <WordFormat kFormat>
__device__ __forceinline__ float ValueOf(uint16_t word) {
  if (kFormat == WordFormat::kFp16) return ValueOfFp16(word);
  return __uint_as_float(static_cast<uint32_t>(word) << 16);
}

template <WordFormat kFormat>
__global__ void __launch_bounds__(kBlockThreads) EncodeWordsKernel(Encode encode) {
  if (encode.stopped()) return;
  const DeviceBlock described = encode.blocks[blockIdx.x];
  const EncodeBlock block(encode, described);
  if (kFormat == WordFormat::kFp32 || described.plain) {
    EncodePlainBlock(block);
    return;
  }
  const bool pairs = AddressOf(block.out) % sizeof(uint64_t) == 0;
  for (uint32_t q = threadIdx.x; q < QuadsOf(block.n); q += kBlockThreads) {
    const Quad c = block.C(q);
    Quad lost;
    uint64_t words = 0;
#pragma unroll
    for (uint32_t k = 0; k < kQuad; ++k) {
      const uint16_t word = WordOf<kFormat>(c.x[k]);
      words |= static_cast<uint64_t>(word) << 16 * k;
      lost.x[k] = c.x[k] - ValueOf<kFormat>(word);
    }
    const Pointer<uint8_t> out = block.out + q * sizeof(words);
    if (pairs && (q + 1) * kQuad <= block.n) {
      *CastPointer<uint64_t>(out) = words;
    } else {
#pragma unroll
      for (uint32_t k = 0; k < kQuad; ++k) {
        if (q * kQuad + k < block.n) StoreWord(out + 2 * k, static_cast<uint16_t>(words >> 16 * k));
      }
    }
    if (block.has_error) block.SetError(q, lost);
  }
}

template <WordFormat kFormat, bool kAdam>
__global__ void __launch_bounds__(kBlockThreads) DecodeWordsKernel(Decode decode) {
  const DeviceBlock described = decode.blocks[blockIdx.x];
  const DecodeBlock<kAdam> block(decode, described);
  if (kFormat == WordFormat::kFp32 || described.plain) {
    DecodePlainBlock(block);
    return;
  }
  const bool pairs = AddressOf(block.in) % sizeof(uint64_t) == 0;
  for (uint32_t q = threadIdx.x; q < QuadsOf(block.n); q += kBlockThreads) {
    const Pointer<const uint8_t> in = block.in + q * sizeof(uint64_t);
    uint64_t words = 0;
    if (pairs && (q + 1) * kQuad <= block.n) {
      words = *CastPointer<const uint64_t>(in);
    } else {
#pragma unroll
      for (uint32_t k = 0; k < kQuad; ++k) {
        if (q * kQuad + k < block.n) {
          words |= static_cast<uint64_t>(LoadWord<uint16_t>(in + 2 * k)) << 16 * k;
        }
      }
    }
    Quad decoded;
#pragma unroll
    for (uint32_t k = 0; k < kQuad; ++k) {
      decoded.x[k] = ValueOf<kFormat>(static_cast<uint16_t>(words >> 16 * k));
    }
    block.Put(q, decoded);
  }
}

}  // namespace

absl::Status EncodeWords(WordFormat format, const EncodeArguments& arguments, NativeStream stream) {
  switch (format) {
    case WordFormat::kFp32:
      return LaunchEncode("EncodeFp32", EncodeWordsKernel<WordFormat::kFp32>, arguments, stream);
    case WordFormat::kFp16:
      return LaunchEncode("EncodeFp16", EncodeWordsKernel<WordFormat::kFp16>, arguments, stream);
    case WordFormat::kBf16: break;
  }
  return LaunchEncode("EncodeBf16", EncodeWordsKernel<WordFormat::kBf16>, arguments, stream);
}

absl::Status DecodeWords(WordFormat format, const DecodeArguments& arguments, NativeStream stream) {
  const bool adam = arguments.into == DecodeInto::kFrozenAdam;
  switch (format) {
    case WordFormat::kFp32:
      return LaunchDecode("DecodeFp32",
                          adam ? DecodeWordsKernel<WordFormat::kFp32, true>
                               : DecodeWordsKernel<WordFormat::kFp32, false>,
                          arguments, stream);
    case WordFormat::kFp16:
      return LaunchDecode("DecodeFp16",
                          adam ? DecodeWordsKernel<WordFormat::kFp16, true>
                               : DecodeWordsKernel<WordFormat::kFp16, false>,
                          arguments, stream);
    case WordFormat::kBf16: break;
  }
  return LaunchDecode("DecodeBf16",
                      adam ? DecodeWordsKernel<WordFormat::kBf16, true>
                           : DecodeWordsKernel<WordFormat::kBf16, false>,
                      arguments, stream);
}

}  // namespace FORESHARD_CUDA_NAMESPACE
