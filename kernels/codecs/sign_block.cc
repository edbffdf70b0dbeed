#include "kernels/codecs/sign_block.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/codecs/faults.h"
#include "kernels/codecs/lanes.h"
#include "kernels/cpu/intrinsics.h"
#include "kernels/cpu/isa.h"

namespace foreshard::sign_block {
namespace {

using kernels::Isa;

float ScaleOf(Scale scale, double sum, uint32_t elements) {
  if (elements == 0) return 0;
  const double mean = sum / elements;
  return static_cast<float>(scale == Scale::kRootMeanSquare ? std::sqrt(mean) : mean);
}

// +magnitude or -magnitude without a branch: signs cannot be predicted.
float Signed(float magnitude, bool positive) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) ^
                              (positive ? 0u : 0x80000000u));
}

void DecodeBaseline(const uint8_t* in, uint32_t elements, float* out) {
  float magnitude;
  std::memcpy(&magnitude, in, sizeof magnitude);
  const uint8_t* bits = in + 4;
  for (uint32_t i = 0; i < elements; ++i) {
    out[i] = Signed(magnitude, (bits[i / 8] >> (i % 8)) & 1);
  }
}

#if defined(__x86_64__)

// Both paths read values and error once from memory: the first pass leaves c in
// `error`, where the second finds it in L1. While the second pass computes, the
// next block's values and errors are already on their way (a prefetch beyond the
// end of an array is harmless).
inline constexpr uint32_t kPrefetchFloats = 16;

// ---- AVX2: lanes 0..3 and 4..7 of the sums in one register each ----

template <Scale kScale>
FORESHARD_TARGET_AVX2 inline __m256d TermAvx2(__m128 c) {
  const __m256d wide = _mm256_cvtps_pd(c);
  if constexpr (kScale == Scale::kRootMeanSquare) return _mm256_mul_pd(wide, wide);
  return _mm256_andnot_pd(_mm256_set1_pd(-0.0), wide);
}

template <Scale kScale, bool kError>
FORESHARD_TARGET_AVX2 void EncodeAvx2(const float* values, float* error, uint32_t n,
                                      uint8_t* out) {
  const uint32_t whole = n / 8 * 8;
  __m256d low = _mm256_setzero_pd();
  __m256d high = _mm256_setzero_pd();
  for (uint32_t i = 0; i < whole; i += 8) {
    __m256 c = _mm256_loadu_ps(values + i);
    if constexpr (kError) {
      c = _mm256_add_ps(c, _mm256_loadu_ps(error + i));
      _mm256_storeu_ps(error + i, c);
    }
    low = _mm256_add_pd(low, TermAvx2<kScale>(_mm256_castps256_ps128(c)));
    high = _mm256_add_pd(high, TermAvx2<kScale>(_mm256_extractf128_ps(c, 1)));
  }
  alignas(32) double lanes[8];
  _mm256_store_pd(lanes, low);
  _mm256_store_pd(lanes + 4, high);
  for (uint32_t i = whole; i < n; ++i) {
    float c = values[i];
    if constexpr (kError) error[i] = c = c + error[i];
    const double wide = c;
    lanes[i % 8] += kScale == Scale::kRootMeanSquare ? wide * wide : std::fabs(wide);
  }
  const float magnitude = ScaleOf(kScale, JoinLanes(lanes), n);
  std::memcpy(out, &magnitude, sizeof magnitude);
  uint8_t* bits = out + 4;

  const __m256 plus = _mm256_set1_ps(magnitude);
  const __m256 minus = _mm256_set1_ps(-magnitude);
  for (uint32_t i = 0; i < whole; i += 8) {
    if (i % kPrefetchFloats == 0) {
      _mm_prefetch(reinterpret_cast<const char*>(values + n + i), _MM_HINT_T1);
      if constexpr (kError) {
        _mm_prefetch(reinterpret_cast<const char*>(error + n + i), _MM_HINT_T1);
      }
    }
    const __m256 c = _mm256_loadu_ps((kError ? error : values) + i);
    const __m256 positive = _mm256_cmp_ps(c, _mm256_setzero_ps(), _CMP_GE_OQ);
    bits[i / 8] = static_cast<uint8_t>(_mm256_movemask_ps(positive));
    if constexpr (kError) {
      const __m256 decoded = _mm256_blendv_ps(minus, plus, positive);
      _mm256_storeu_ps(error + i, _mm256_sub_ps(c, decoded));
    }
  }
  if (whole < n) {
    uint8_t last = 0;
    for (uint32_t i = whole; i < n; ++i) {
      const float c = kError ? error[i] : values[i];
      last |= static_cast<uint8_t>((c >= 0) << (i % 8));
      if constexpr (kError) error[i] = c - Signed(magnitude, c >= 0);
    }
    bits[whole / 8] = last;
  }
}

FORESHARD_TARGET_AVX2 void DecodeAvx2(const uint8_t* in, uint32_t n, float* out) {
  float magnitude;
  std::memcpy(&magnitude, in, sizeof magnitude);
  const uint8_t* bits = in + 4;
  const uint32_t whole = n / 8 * 8;
  const __m256 plus = _mm256_set1_ps(magnitude);
  const __m256 minus = _mm256_set1_ps(-magnitude);
  // Element i's bit is moved to the sign position of its lane.
  const __m256i shifts = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
  for (uint32_t i = 0; i < whole; i += 8) {
    const __m256i spread = _mm256_sllv_epi32(_mm256_set1_epi32(bits[i / 8]), shifts);
    _mm256_storeu_ps(out + i, _mm256_blendv_ps(minus, plus, _mm256_castsi256_ps(spread)));
  }
  for (uint32_t i = whole; i < n; ++i) {
    out[i] = Signed(magnitude, (bits[i / 8] >> (i % 8)) & 1);
  }
}

// ---- AVX-512: the eight lanes in one register; the tail is masked with zeros,
// which change no sum ----

template <Scale kScale>
FORESHARD_TARGET_AVX512 inline __m512d TermAvx512(__m256 c) {
  const __m512d wide = _mm512_cvtps_pd(c);
  if constexpr (kScale == Scale::kRootMeanSquare) return _mm512_mul_pd(wide, wide);
  return _mm512_abs_pd(wide);
}

template <Scale kScale, bool kError>
FORESHARD_TARGET_AVX512 void EncodeAvx512(const float* values, float* error, uint32_t n,
                                          uint8_t* out) {
  const uint32_t whole = n / 16 * 16;
  const __mmask16 tail = static_cast<__mmask16>((1u << (n - whole)) - 1);
  __m512d sums = _mm512_setzero_pd();
  for (uint32_t i = 0; i < whole; i += 16) {
    __m512 c = _mm512_loadu_ps(values + i);
    if constexpr (kError) {
      c = _mm512_add_ps(c, _mm512_loadu_ps(error + i));
      _mm512_storeu_ps(error + i, c);
    }
    sums = _mm512_add_pd(sums, TermAvx512<kScale>(_mm512_castps512_ps256(c)));
    sums = _mm512_add_pd(sums, TermAvx512<kScale>(_mm512_extractf32x8_ps(c, 1)));
  }
  if (tail != 0) {
    __m512 c = _mm512_maskz_loadu_ps(tail, values + whole);
    if constexpr (kError) {
      c = _mm512_add_ps(c, _mm512_maskz_loadu_ps(tail, error + whole));
      _mm512_mask_storeu_ps(error + whole, tail, c);
    }
    sums = _mm512_add_pd(sums, TermAvx512<kScale>(_mm512_castps512_ps256(c)));
    sums = _mm512_add_pd(sums, TermAvx512<kScale>(_mm512_extractf32x8_ps(c, 1)));
  }
  alignas(64) double lanes[8];
  _mm512_store_pd(lanes, sums);
  const float magnitude = ScaleOf(kScale, JoinLanes(lanes), n);
  std::memcpy(out, &magnitude, sizeof magnitude);
  uint8_t* bits = out + 4;

  const __m512 plus = _mm512_set1_ps(magnitude);
  const __m512 minus = _mm512_set1_ps(-magnitude);
  for (uint32_t i = 0; i < whole; i += 16) {
    _mm_prefetch(reinterpret_cast<const char*>(values + n + i), _MM_HINT_T1);
    if constexpr (kError) {
      _mm_prefetch(reinterpret_cast<const char*>(error + n + i), _MM_HINT_T1);
    }
    const __m512 c = _mm512_loadu_ps((kError ? error : values) + i);
    const __mmask16 positive = _mm512_cmp_ps_mask(c, _mm512_setzero_ps(), _CMP_GE_OQ);
    const auto word = static_cast<uint16_t>(positive);
    std::memcpy(bits + i / 8, &word, sizeof word);
    if constexpr (kError) {
      const __m512 decoded = _mm512_mask_blend_ps(positive, minus, plus);
      _mm512_storeu_ps(error + i, _mm512_sub_ps(c, decoded));
    }
  }
  if (tail != 0) {
    const __m512 c = _mm512_maskz_loadu_ps(tail, (kError ? error : values) + whole);
    const __mmask16 positive =
        _mm512_mask_cmp_ps_mask(tail, c, _mm512_setzero_ps(), _CMP_GE_OQ);
    const auto word = static_cast<uint16_t>(positive);
    std::memcpy(bits + whole / 8, &word, (n - whole + 7) / 8);
    if constexpr (kError) {
      const __m512 decoded = _mm512_mask_blend_ps(positive, minus, plus);
      _mm512_mask_storeu_ps(error + whole, tail, _mm512_sub_ps(c, decoded));
    }
  }
}

FORESHARD_TARGET_AVX512 void DecodeAvx512(const uint8_t* in, uint32_t n, float* out) {
  float magnitude;
  std::memcpy(&magnitude, in, sizeof magnitude);
  const uint8_t* bits = in + 4;
  const uint32_t whole = n / 16 * 16;
  const __m512 plus = _mm512_set1_ps(magnitude);
  const __m512 minus = _mm512_set1_ps(-magnitude);
  for (uint32_t i = 0; i < whole; i += 16) {
    uint16_t word;
    std::memcpy(&word, bits + i / 8, sizeof word);
    _mm512_storeu_ps(out + i, _mm512_mask_blend_ps(word, minus, plus));
  }
  if (whole < n) {
    uint16_t word = 0;
    std::memcpy(&word, bits + whole / 8, (n - whole + 7) / 8);
    const __mmask16 tail = static_cast<__mmask16>((1u << (n - whole)) - 1);
    _mm512_mask_storeu_ps(out + whole, tail, _mm512_mask_blend_ps(word, minus, plus));
  }
}

template <Scale kScale>
void EncodeWide(Isa isa, const float* values, float* error, uint32_t n, uint8_t* out) {
  if (isa == Isa::kAvx512) {
    return error == nullptr ? EncodeAvx512<kScale, false>(values, error, n, out)
                            : EncodeAvx512<kScale, true>(values, error, n, out);
  }
  return error == nullptr ? EncodeAvx2<kScale, false>(values, error, n, out)
                          : EncodeAvx2<kScale, true>(values, error, n, out);
}

#endif  // __x86_64__

}  // namespace

void EncodeReference(Scale scale, const float* values, float* error, uint32_t elements,
                     uint8_t* out) {
  double lanes[8] = {};
  for (uint32_t i = 0; i < elements; ++i) {
    const float c = error == nullptr ? values[i] : values[i] + error[i];
    const double wide = c;
    lanes[i % 8] += scale == Scale::kRootMeanSquare ? wide * wide : std::fabs(wide);
  }
  const float magnitude = ScaleOf(scale, JoinLanes(lanes), elements);
  std::memcpy(out, &magnitude, sizeof magnitude);
  uint8_t* bits = out + 4;
  std::memset(bits, 0, (elements + 7) / 8);
  for (uint32_t i = 0; i < elements; ++i) {
    const float c = error == nullptr ? values[i] : values[i] + error[i];
    const bool positive = c >= 0;
    bits[i / 8] |= static_cast<uint8_t>(positive << (i % 8));
    if (error != nullptr) error[i] = c - Signed(magnitude, positive);
  }
}

void Encode(Scale scale, const float* values, float* error, uint32_t elements, uint8_t* out) {
#if defined(__x86_64__)
  const Isa isa = kernels::ActiveIsa();
  if (isa != Isa::kBaseline) {
    return scale == Scale::kRootMeanSquare
               ? EncodeWide<Scale::kRootMeanSquare>(isa, values, error, elements, out)
               : EncodeWide<Scale::kMeanMagnitude>(isa, values, error, elements, out);
  }
#endif
  EncodeReference(scale, values, error, elements, out);
}

void Decode(const uint8_t* in, uint32_t elements, float* out) {
#if defined(__x86_64__)
  switch (kernels::ActiveIsa()) {
    case Isa::kAvx512: return DecodeAvx512(in, elements, out);
    case Isa::kAvx2: return DecodeAvx2(in, elements, out);
    case Isa::kBaseline: break;
  }
#endif
  DecodeBaseline(in, elements, out);
}

std::string_view Fault(const uint8_t* in, uint32_t elements) {
  float magnitude;
  std::memcpy(&magnitude, in, sizeof magnitude);
  if (const std::string_view fault = ScaleFault(magnitude); !fault.empty()) return fault;
  if (elements % 8 != 0 && in[4 + elements / 8] >> (elements % 8) != 0) return kPadding;
  return {};
}

}  // namespace foreshard::sign_block
