// top_k: the k of the block's n elements with the largest |c|, as k ascending 16-bit indices
// and k fp32 words; of equal ones those with the lower index. What is sent is exact, so that
// its error is zero and feedback brings the others in time (arXiv 1809.07599).
//
// The k-th largest magnitude is found by bisection over the bits of the magnitudes: counting
// those at or above a bound is a vectorised pass over the block, which lies in L1; the
// upper halves of the magnitudes alone decide most of it. Then one pass gathers.
#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "kernels/codecs/faults.h"
#include "kernels/codecs/registry.h"
#include "kernels/codecs/selection.h"
#include "kernels/cpu/intrinsics.h"
#include "kernels/cpu/isa.h"

namespace foreshard {
namespace {

using kernels::Isa;

constexpr std::string_view kIndexRange = "an index out of range";
constexpr std::string_view kDuplicate = "a duplicate index";
constexpr std::string_view kDescending = "indices that are not ascending";

// |c| as a whole number: as the numbers, so their bits are ordered.
[[gnu::always_inline]] inline int32_t Magnitude(float c) {
  return static_cast<int32_t>(std::bit_cast<uint32_t>(c) & 0x7fffffff);
}

// The upper half of each magnitude to keys; the largest one.
FORESHARD_ISA_INLINE int32_t KeysBody(const float* __restrict c, uint32_t n,
                                      int16_t* __restrict keys) {
  int32_t most = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const int32_t magnitude = Magnitude(c[i]);
    keys[i] = static_cast<int16_t>(magnitude >> 16);
    most = magnitude > most ? magnitude : most;
  }
  return most;
}
FORESHARD_ISA_VARIANTS(int32_t, Keys, (const float* c, uint32_t n, int16_t* keys), (c, n, keys))

FORESHARD_ISA_INLINE void AddErrorBody(const float* values, float* error, uint64_t n) {
  AddValues(values, error, n);
}
FORESHARD_ISA_VARIANTS(void, AddError, (const float* values, float* error, uint64_t n),
                       (values, error, n))

// How many keys, or magnitudes, are at least so large.
FORESHARD_ISA_INLINE uint32_t CountKeysBody(const int16_t* keys, uint32_t n, int16_t least) {
  uint16_t count = 0;
  for (uint32_t i = 0; i < n; ++i) {
    count = static_cast<uint16_t>(count + (keys[i] >= least ? 1 : 0));
  }
  return count;
}
FORESHARD_ISA_VARIANTS(uint32_t, CountKeys, (const int16_t* keys, uint32_t n, int16_t least),
                       (keys, n, least))

FORESHARD_ISA_INLINE uint32_t CountMagnitudesBody(const float* c, uint32_t n, int32_t least) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < n; ++i) count += Magnitude(c[i]) >= least ? 1 : 0;
  return count;
}
FORESHARD_ISA_VARIANTS(uint32_t, CountMagnitudes, (const float* c, uint32_t n, int32_t least),
                       (c, n, least))

// Taken are the magnitudes above `bound`, and the first `ties` of those equal to it.
struct Cut {
  int32_t bound = -1;
  uint32_t ties = 0;
};

// Narrows [low, high) with count(low) >= k > count(high), until low alone is left or count(low)
// is k. `above` is count(high), `most` the largest of what is counted.
template <typename Count>
void Bisect(const Count& count, uint32_t k, int32_t* low, int32_t* high, uint32_t* from_low,
            uint32_t* above) {
  while (*high - *low > 1 && *from_low != k) {
    const int32_t middle = *low + (*high - *low) / 2;
    const uint32_t from_middle = count(middle);
    if (from_middle >= k) {
      *low = middle;
      *from_low = from_middle;
    } else {
      *high = middle;
      *above = from_middle;
    }
  }
}

Cut FindCut(const float* c, uint32_t n, uint32_t k) {
  alignas(64) int16_t keys[kMaxBlockElements];
  const int32_t most = Keys(c, n, keys);
  const auto count_keys = [&](int32_t least) {
    return CountKeys(keys, n, static_cast<int16_t>(least));
  };
  int32_t low = 0, high = (most >> 16) + 1;
  uint32_t from_low = n, above = 0;
  // Most often the bound is within a few powers of two from the largest: down from there in
  // widening steps, of which the first is one power of two.
  for (int32_t width = 1 << 7; high - width > 0; width *= 2) {
    const uint32_t counted = count_keys(high - width);
    if (counted >= k) {
      low = high - width;
      from_low = counted;
      break;
    }
    high -= width;
    above = counted;
  }
  Bisect(count_keys, k, &low, &high, &from_low, &above);
  low <<= 16;
  high <<= 16;
  Bisect([&](int32_t least) { return CountMagnitudes(c, n, least); }, k, &low, &high, &from_low,
         &above);
  if (from_low == k) return {.bound = low - 1, .ties = 0};
  return {.bound = low, .ties = k - above};
}

// Keeps the lowest *ties bits of the mask, and counts them off.
uint32_t Limit(uint32_t mask, uint32_t* ties) {
  while (static_cast<uint32_t>(std::popcount(mask)) > *ties) mask &= ~std::bit_floor(mask);
  *ties -= static_cast<uint32_t>(std::popcount(mask));
  return mask;
}

// Room for k indices and what a whole vector writes beyond them.
using Indices = uint16_t[kMaxBlockElements + 16];

void GatherBaseline(const float* c, uint32_t begin, uint32_t n, Cut cut, uint32_t count,
                    uint16_t* indices) {
  for (uint32_t i = begin; i < n; ++i) {
    const int32_t magnitude = Magnitude(c[i]);
    const bool tie = magnitude == cut.bound && cut.ties > 0;
    cut.ties -= tie;
    if (magnitude > cut.bound || tie) indices[count++] = static_cast<uint16_t>(i);
  }
}

#if defined(__x86_64__)

FORESHARD_TARGET_AVX2 void GatherAvx2(const float* c, uint32_t n, Cut cut, uint16_t* indices) {
  const __m256i bits = _mm256_set1_epi32(0x7fffffff);
  const __m256i bound = _mm256_set1_epi32(cut.bound);
  const uint32_t whole = n / 32 * 32;
  uint32_t count = 0;
  for (uint32_t i = 0; i < whole; i += 32) {
    uint32_t above = 0, equal = 0;
    for (uint32_t part = 0; part < 32; part += 8) {
      const __m256i magnitude = _mm256_and_si256(
          bits, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(c + i + part)));
      above |= static_cast<uint32_t>(_mm256_movemask_ps(
                   _mm256_castsi256_ps(_mm256_cmpgt_epi32(magnitude, bound)))) << part;
      equal |= static_cast<uint32_t>(_mm256_movemask_ps(
                   _mm256_castsi256_ps(_mm256_cmpeq_epi32(magnitude, bound)))) << part;
    }
    if (equal != 0) above |= Limit(equal, &cut.ties);
    for (; above != 0; above &= above - 1) {
      indices[count++] = static_cast<uint16_t>(i + static_cast<uint32_t>(std::countr_zero(above)));
    }
  }
  GatherBaseline(c, whole, n, cut, count, indices);
}

FORESHARD_TARGET_AVX512 void GatherAvx512(const float* c, uint32_t n, Cut cut, uint16_t* indices) {
  const __m512i bits = _mm512_set1_epi32(0x7fffffff);
  const __m512i bound = _mm512_set1_epi32(cut.bound);
  const uint32_t whole = n / 16 * 16;
  __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  uint32_t count = 0;
  for (uint32_t i = 0; i < whole; i += 16) {
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_loadu_si512(c + i));
    uint32_t taken = _mm512_cmpgt_epi32_mask(magnitude, bound);
    const uint32_t equal = _mm512_cmpeq_epi32_mask(magnitude, bound);
    if (equal != 0) taken |= Limit(equal, &cut.ties);
    const __m512i packed = _mm512_maskz_compress_epi32(static_cast<__mmask16>(taken), places);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(indices + count), _mm512_cvtepi32_epi16(packed));
    count += static_cast<uint32_t>(std::popcount(taken));
    places = _mm512_add_epi32(places, _mm512_set1_epi32(16));
  }
  GatherBaseline(c, whole, n, cut, count, indices);
}

#endif  // __x86_64__

void Gather(const float* c, uint32_t n, const Cut& cut, Indices& indices) {
#if defined(__x86_64__)
  switch (kernels::ActiveIsa()) {
    case Isa::kAvx512: return GatherAvx512(c, n, cut, indices);
    case Isa::kAvx2: return GatherAvx2(c, n, cut, indices);
    case Isa::kBaseline: break;
  }
#endif
  GatherBaseline(c, 0, n, cut, 0, indices);
}

class TopK final : public Codec {
 public:
  explicit TopK(float fraction) : fraction_(fraction) {}

  CodecId id() const override { return CodecId::kTopK; }
  std::string_view name() const override { return "top_k"; }
  bool replies_carry_values() const override { return false; }
  uint32_t BlockBytes(uint32_t elements) const override {
    return Selected(elements) * static_cast<uint32_t>(sizeof(uint16_t) + sizeof(float));
  }

  void EncodeBlock(const float* values, float* error, uint32_t elements, const CodecKey&,
                   uint8_t* out) const override {
    const uint32_t count = Selected(elements);
    if (count == 0) return;
    if (error != nullptr) AddError(values, error, elements);
    const float* c = error == nullptr ? values : error;
    Indices indices;
    Gather(c, elements, FindCut(c, elements, count), indices);
    Send(values, error, indices, count, out);
  }

  const float* DecodeBlock(const uint8_t* in, uint32_t elements, const CodecKey&,
                           float* scratch) const override {
    const uint32_t count = Selected(elements);
    const uint8_t* words = in + count * sizeof(uint16_t);
    std::memset(scratch, 0, elements * sizeof(float));
    for (uint32_t j = 0; j < count; ++j) {
      const uint32_t index = IndexAt(in, j);
      if (index < elements) std::memcpy(scratch + index, words + j * sizeof(float), sizeof(float));
    }
    return scratch;
  }

  std::string_view Fault(const uint8_t* in, uint32_t elements) const override {
    const uint32_t count = Selected(elements);
    for (uint32_t j = 0; j < count; ++j) {
      const uint32_t index = IndexAt(in, j);
      if (index >= elements) return kIndexRange;
      if (j == 0 || index > IndexAt(in, j - 1)) continue;
      return index == IndexAt(in, j - 1) ? kDuplicate : kDescending;
    }
    return WordsFault(in + count * sizeof(uint16_t), count);
  }

  void EncodeBlockReference(const float* values, float* error, uint32_t elements, const CodecKey&,
                            uint8_t* out) const override {
    for (uint32_t i = 0; i < elements && error != nullptr; ++i) error[i] = values[i] + error[i];
    const float* c = error == nullptr ? values : error;
    uint16_t order[kMaxBlockElements];
    std::iota(order, order + elements, uint16_t{0});
    std::stable_sort(order, order + elements, [c](uint16_t a, uint16_t b) {
      return Magnitude(c[a]) > Magnitude(c[b]);
    });
    const uint32_t count = Selected(elements);
    std::sort(order, order + count);
    Send(values, error, order, count, out);
  }

 private:
  uint32_t Selected(uint32_t elements) const { return SelectedElements(fraction_, elements); }

  static uint32_t IndexAt(const uint8_t* in, uint32_t j) {
    uint16_t index;
    std::memcpy(&index, in + j * sizeof index, sizeof index);
    return index;
  }

  static void Send(const float* values, float* error, const uint16_t* indices, uint32_t count,
                   uint8_t* out) {
    const size_t bytes = count * sizeof(uint16_t);
    if (count != 0) std::memcpy(out, indices, bytes);
    SendSelected(values, error, indices, count, out + bytes);
  }

  const float fraction_;
};

}  // namespace

std::unique_ptr<const Codec> MakeTopK(const CodecSettings& settings) {
  return std::make_unique<TopK>(settings.fraction);
}

}  // namespace foreshard
