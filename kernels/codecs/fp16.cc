// fp16: IEEE 754 binary16, little-endian, round to nearest even, saturating at
// +-65504 (half_words.h). Hardware conversion (F16C) where it is, the same bits in
// software where it is not.
#include <cstring>

#include "kernels/codecs/half_words.h"
#include "kernels/codecs/registry.h"
#include "kernels/cpu/intrinsics.h"
#include "kernels/cpu/isa.h"

namespace foreshard {
namespace {

using kernels::Isa;

void EncodeOne(const float* values, float* error, uint32_t i, uint8_t* out) {
  const float c = error == nullptr ? values[i] : values[i] + error[i];
  const uint16_t word = Fp16FromFloat(c);
  std::memcpy(out + 2 * i, &word, sizeof word);
  if (error != nullptr) error[i] = c - FloatFromFp16(word);
}

void EncodeReference(const float* values, float* error, uint32_t n, uint8_t* out) {
  for (uint32_t i = 0; i < n; ++i) EncodeOne(values, error, i, out);
}

void DecodeFrom(uint32_t begin, const uint8_t* in, uint32_t n, float* out) {
  for (uint32_t i = begin; i < n; ++i) {
    uint16_t word;
    std::memcpy(&word, in + 2 * i, sizeof word);
    out[i] = FloatFromFp16(word);
  }
}

#if defined(__x86_64__)

// min and max give their second operand back where one is NaN.
FORESHARD_TARGET_AVX2 void EncodeAvx2(const float* values, float* error, uint32_t n,
                                      uint8_t* out) {
  const uint32_t whole = n / 8 * 8;
  const __m256 most = _mm256_set1_ps(kFp16Max);
  const __m256 least = _mm256_set1_ps(-kFp16Max);
  for (uint32_t i = 0; i < whole; i += 8) {
    __m256 c = _mm256_loadu_ps(values + i);
    if (error != nullptr) c = _mm256_add_ps(c, _mm256_loadu_ps(error + i));
    const __m128i words = _mm256_cvtps_ph(_mm256_max_ps(least, _mm256_min_ps(most, c)),
                                          _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * i), words);
    if (error != nullptr) _mm256_storeu_ps(error + i, _mm256_sub_ps(c, _mm256_cvtph_ps(words)));
  }
  for (uint32_t i = whole; i < n; ++i) EncodeOne(values, error, i, out);
}

FORESHARD_TARGET_AVX512 void EncodeAvx512(const float* values, float* error, uint32_t n,
                                          uint8_t* out) {
  const uint32_t whole = n / 16 * 16;
  const __m512 most = _mm512_set1_ps(kFp16Max);
  const __m512 least = _mm512_set1_ps(-kFp16Max);
  for (uint32_t i = 0; i < whole; i += 16) {
    __m512 c = _mm512_loadu_ps(values + i);
    if (error != nullptr) c = _mm512_add_ps(c, _mm512_loadu_ps(error + i));
    const __m256i words = _mm512_cvtps_ph(_mm512_max_ps(least, _mm512_min_ps(most, c)),
                                          _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 2 * i), words);
    if (error != nullptr) _mm512_storeu_ps(error + i, _mm512_sub_ps(c, _mm512_cvtph_ps(words)));
  }
  for (uint32_t i = whole; i < n; ++i) EncodeOne(values, error, i, out);
}

FORESHARD_TARGET_AVX2 void DecodeAvx2(const uint8_t* in, uint32_t n, float* out) {
  const uint32_t whole = n / 8 * 8;
  for (uint32_t i = 0; i < whole; i += 8) {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + 2 * i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(words));
  }
  DecodeFrom(whole, in, n, out);
}

FORESHARD_TARGET_AVX512 void DecodeAvx512(const uint8_t* in, uint32_t n, float* out) {
  const uint32_t whole = n / 16 * 16;
  for (uint32_t i = 0; i < whole; i += 16) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + 2 * i));
    _mm512_storeu_ps(out + i, _mm512_cvtph_ps(words));
  }
  DecodeFrom(whole, in, n, out);
}

#endif  // __x86_64__

FORESHARD_ISA_INLINE bool FiniteBody(const uint8_t* in, uint64_t n) {
  return WordsFinite(in, n, 0x7c00);
}
FORESHARD_ISA_VARIANTS(bool, Finite, (const uint8_t* in, uint64_t n), (in, n))

class Fp16 final : public Codec {
 public:
  CodecId id() const override { return CodecId::kFp16; }
  std::string_view name() const override { return "fp16"; }
  bool replies_carry_values() const override { return true; }
  uint32_t BlockBytes(uint32_t elements) const override { return elements * 2; }

  void EncodeBlock(const float* values, float* error, uint32_t elements, const CodecKey&,
                   uint8_t* out) const override {
#if defined(__x86_64__)
    switch (kernels::ActiveIsa()) {
      case Isa::kAvx512: return EncodeAvx512(values, error, elements, out);
      case Isa::kAvx2: return EncodeAvx2(values, error, elements, out);
      case Isa::kBaseline: break;
    }
#endif
    EncodeReference(values, error, elements, out);
  }

  const float* DecodeBlock(const uint8_t* in, uint32_t elements, const CodecKey&,
                           float* scratch) const override {
#if defined(__x86_64__)
    switch (kernels::ActiveIsa()) {
      case Isa::kAvx512: DecodeAvx512(in, elements, scratch); return scratch;
      case Isa::kAvx2: DecodeAvx2(in, elements, scratch); return scratch;
      case Isa::kBaseline: break;
    }
#endif
    DecodeFrom(0, in, elements, scratch);
    return scratch;
  }

  std::string_view Fault(const uint8_t* in, uint32_t elements) const override {
    return Finite(in, elements) ? std::string_view() : kNotFinite;
  }

  void EncodeBlockReference(const float* values, float* error, uint32_t elements, const CodecKey&,
                            uint8_t* out) const override {
    EncodeReference(values, error, elements, out);
  }
};

}  // namespace

const Codec& Fp16Codec() {
  static const Fp16 codec;
  return codec;
}

}  // namespace foreshard
