// top_k: the k of the block's n elements with the largest |c|, as k ascending 16-bit indices
// and k fp32 words; of equal ones those with the lower index. What is sent is exact, so that
// its error is zero and feedback brings the others in time (arXiv 1809.07599).
//
// Found between two bounds that approach each other: how many of the magnitudes' upper halves
// are at or above a bound is one vectorised pass over the block, which lies in L1. Once only a
// few elements are left between what is taken and what is not, it goes on among those. During
// all passes the next block is on its way.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>

#include "kernels/codecs/faults.h"
#include "kernels/codecs/prefetch.h"
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

// |c| as a whole number: as the numbers, so their bits are ordered. What is no number is limited,
// so that a bound beyond every magnitude is still a whole number of 32 bits, and one beyond every
// upper half of 16.
constexpr int16_t kMostKey = 0x7ffe;
constexpr int32_t kMostMagnitude = kMostKey << 16 | 0xffff;
[[gnu::always_inline]] inline int32_t Magnitude(float c) {
  const auto magnitude = static_cast<int32_t>(std::bit_cast<uint32_t>(c) & 0x7fffffff);
  return magnitude < kMostMagnitude ? magnitude : kMostMagnitude;
}

// How many values and errors of the next block are asked for at once, in passes that take 64
// elements at a time and in those of the compiler's making.
constexpr uint32_t kAskInPass = 16, kAskBetween = 512;

FORESHARD_ISA_INLINE void AddErrorBody(const float* values, float* error, uint64_t n) {
  AddValues(values, error, n);
}
FORESHARD_ISA_VARIANTS(void, AddError, (const float* values, float* error, uint64_t n),
                       (values, error, n))

FORESHARD_ISA_INLINE int16_t KeysOfBody(const float* __restrict c, uint32_t n,
                                        int16_t* __restrict keys) {
  int16_t most = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const auto key = static_cast<int16_t>(Magnitude(c[i]) >> 16);
    keys[i] = key;
    most = key > most ? key : most;
  }
  return most;
}
FORESHARD_ISA_VARIANTS(int16_t, KeysOf, (const float* c, uint32_t n, int16_t* keys), (c, n, keys))

FORESHARD_ISA_INLINE uint32_t CountKeysBody(const int16_t* keys, uint32_t n, int16_t least) {
  uint16_t count = 0;
  for (uint32_t i = 0; i < n; ++i) {
    count = static_cast<uint16_t>(count + (keys[i] >= least ? 1 : 0));
  }
  return count;
}
FORESHARD_ISA_VARIANTS(uint32_t, CountKeys, (const int16_t* keys, uint32_t n, int16_t least),
                       (keys, n, least))

#if defined(__x86_64__)

// AVX-512 takes 64 keys at a time: behind the last one up to a whole 64 are others, below
// every bound.
constexpr uint32_t kWide = 64;
constexpr int16_t kNoKey = -1;

// The upper halves of 32 magnitudes.
FORESHARD_TARGET_AVX512 inline __m512i UpperHalves(__m512 first, __m512 second) {
  alignas(64) static constexpr auto kOdd = [] {
    std::array<int16_t, 32> odd{};
    for (size_t j = 0; j < odd.size(); ++j) odd[j] = static_cast<int16_t>(2 * j + 1);
    return odd;
  }();
  const __m512i halves = _mm512_permutex2var_epi16(
      _mm512_castps_si512(first), _mm512_load_si512(kOdd.data()), _mm512_castps_si512(second));
  return _mm512_min_epi16(_mm512_and_si512(halves, _mm512_set1_epi16(0x7fff)),
                          _mm512_set1_epi16(kMostKey));
}

template <bool kError>
FORESHARD_TARGET_AVX512 int16_t KeysWide(const float* values, float* error, uint32_t n, int16_t* keys,
                                         NextBlock* next) {
  const uint32_t whole = n / kWide * kWide;
  __m512i largest = _mm512_setzero_si512();
  for (uint32_t i = 0; i < whole; i += kWide) {
    __m512 c[4];
    for (uint32_t j = 0; j < 4; ++j) {
      c[j] = _mm512_loadu_ps(values + i + 16 * j);
      if constexpr (kError) {
        c[j] = _mm512_add_ps(c[j], _mm512_loadu_ps(error + i + 16 * j));
        _mm512_storeu_ps(error + i + 16 * j, c[j]);
      }
    }
    const __m512i low = UpperHalves(c[0], c[1]), high = UpperHalves(c[2], c[3]);
    _mm512_store_si512(keys + i, low);
    _mm512_store_si512(keys + i + 32, high);
    largest = _mm512_max_epi16(largest, _mm512_max_epi16(low, high));
    next->Ask(kAskInPass);
  }
  alignas(64) int16_t lanes[32];
  _mm512_store_si512(lanes, largest);
  int16_t most = *std::max_element(lanes, lanes + 32);
  if (whole == n) return most;
  for (uint32_t i = whole; i < n; ++i) {
    if constexpr (kError) error[i] = values[i] + error[i];
    keys[i] = static_cast<int16_t>(Magnitude((kError ? error : values)[i]) >> 16);
    most = std::max(most, keys[i]);
  }
  std::fill(keys + n, keys + whole + kWide, kNoKey);
  return most;
}

FORESHARD_TARGET_AVX512 uint32_t CountWide(const int16_t* keys, uint32_t n, int16_t least,
                                           NextBlock* next) {
  const __m512i bound = _mm512_set1_epi16(least), one = _mm512_set1_epi16(1);
  __m512i low = _mm512_setzero_si512(), high = low;
  for (uint32_t i = 0; i < n; i += kWide) {
    low = _mm512_mask_add_epi16(low, _mm512_cmpge_epi16_mask(_mm512_load_si512(keys + i), bound), low, one);
    high = _mm512_mask_add_epi16(high, _mm512_cmpge_epi16_mask(_mm512_load_si512(keys + i + 32), bound), high,
                                 one);
    next->Ask(kAskInPass);
  }
  return static_cast<uint32_t>(_mm512_reduce_add_epi32(_mm512_madd_epi16(_mm512_add_epi16(low, high), one)));
}

#endif  // __x86_64__

// c = values + error to error, where there is one. The upper half of each |c| to keys; the
// largest of them.
int16_t Keys(const float* values, float* error, uint32_t n, int16_t* keys, NextBlock* next) {
#if defined(__x86_64__)
  if (kernels::ActiveIsa() == Isa::kAvx512) {
    return error == nullptr ? KeysWide<false>(values, error, n, keys, next)
                            : KeysWide<true>(values, error, n, keys, next);
  }
#endif
  if (error != nullptr) AddError(values, error, n);
  next->Ask(kAskBetween);
  return KeysOf(error == nullptr ? values : error, n, keys);
}

// How many keys, or magnitudes, are at least so large.
uint32_t Count(const int16_t* keys, uint32_t n, int16_t least, NextBlock* next) {
#if defined(__x86_64__)
  if (kernels::ActiveIsa() == Isa::kAvx512) return CountWide(keys, n, least, next);
#endif
  next->Ask(kAskBetween);
  return CountKeys(keys, n, least);
}

FORESHARD_ISA_INLINE uint32_t CountMagnitudesBody(const float* c, uint32_t n, int32_t least) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < n; ++i) count += Magnitude(c[i]) >= least ? 1 : 0;
  return count;
}
FORESHARD_ISA_VARIANTS(uint32_t, CountMagnitudes, (const float* c, uint32_t n, int32_t least),
                       (c, n, least))

// Bounds with count(low) = from_low >= k > above = count(high).
struct Bracket {
  int32_t low = 0, high = 0;
  uint32_t from_low = 0, above = 0;
};

// So few elements are told apart faster by themselves than by passes over the block (measured).
constexpr uint32_t kFew = 48;

// Narrows the bracket until count(low) is k, or it holds no more than `few`, or low alone is
// left. Bounds are set where the counts, rising evenly, would be a little above and a little
// below k; every third time in the middle, should they rise otherwise.
template <typename CountFrom>
void Narrow(const CountFrom& count, uint32_t k, uint32_t few, Bracket* bracket) {
  for (uint32_t pass = 1; bracket->high - bracket->low > 1 && bracket->from_low != k &&
                          bracket->from_low - bracket->above > few;
       ++pass) {
    const int32_t width = bracket->high - bracket->low;
    int32_t step = width / 2;
    if (pass % 3 != 0) {
      const uint32_t wanted = bracket->from_low - k > few / 2 ? k + few / 4 : k - std::min(k, few / 4);
      const uint64_t beyond = bracket->from_low - std::clamp(wanted, bracket->above, bracket->from_low);
      const uint64_t inside = bracket->from_low - bracket->above;
      step = std::clamp(static_cast<int32_t>(static_cast<uint64_t>(width) * beyond / inside), 1, width - 1);
    }
    const int32_t middle = bracket->low + step;
    const uint32_t counted = count(middle);
    (counted >= k ? bracket->low : bracket->high) = middle;
    (counted >= k ? bracket->from_low : bracket->above) = counted;
  }
}

// Of the keys. Most often the k-th largest is within a few powers of two from the largest:
// down from there in widening steps, of which the first is one power of two.
Bracket FindKey(const int16_t* keys, uint32_t n, uint32_t k, int16_t most, NextBlock* next) {
  const auto count = [&](int32_t least) {
    return Count(keys, n, static_cast<int16_t>(least), next);
  };
  Bracket bracket = {.low = 0, .high = most + 1, .from_low = n, .above = 0};
  for (int32_t width = 1 << 7; bracket.high > width && k < n; width *= 2) {
    const int32_t bound = bracket.high - width;
    const uint32_t counted = count(bound);
    if (counted >= k) {
      bracket.low = bound;
      bracket.from_low = counted;
      break;
    }
    bracket.high = bound;
    bracket.above = counted;
  }
  Narrow(count, k, kFew, &bracket);
  return bracket;
}

// A bit a key: bit i % 64 of word i / 64 says whether key i is at least so large.
using Bitmap = uint64_t[kMaxBlockElements / 64];

void CompareBaseline(const int16_t* keys, uint32_t begin, uint32_t n, int16_t least, uint64_t* map) {
  for (uint32_t i = begin; i < n; ++i) {
    if (i % 64 == 0) map[i / 64] = 0;
    map[i / 64] |= uint64_t{keys[i] >= least} << (i % 64);
  }
}

#if defined(__x86_64__)

FORESHARD_TARGET_AVX2 void CompareAvx2(const int16_t* keys, uint32_t n, int16_t least,
                                       uint64_t* map) {
  const __m256i below = _mm256_set1_epi16(static_cast<int16_t>(least - 1));
  const uint32_t whole = n / 64 * 64;
  for (uint32_t i = 0; i < whole; i += 64) {
    uint64_t halves[2];
    for (uint32_t half = 0; half < 2; ++half) {
      const auto* from = reinterpret_cast<const __m256i*>(keys + i + 32 * half);
      const __m256i packed =
          _mm256_packs_epi16(_mm256_cmpgt_epi16(_mm256_load_si256(from), below),
                             _mm256_cmpgt_epi16(_mm256_load_si256(from + 1), below));
      // Packing works in lanes of 128 bits, which the permutation puts in order.
      const __m256i ordered = _mm256_permute4x64_epi64(packed, 0xd8);
      halves[half] = static_cast<uint32_t>(_mm256_movemask_epi8(ordered));
    }
    map[i / 64] = halves[0] | halves[1] << 32;
  }
  CompareBaseline(keys, whole, n, least, map);
}

FORESHARD_TARGET_AVX512 void CompareAvx512(const int16_t* keys, uint32_t n, int16_t least,
                                           uint64_t* map) {
  const __m512i bound = _mm512_set1_epi16(least);
  const uint32_t whole = n / 64 * 64;
  for (uint32_t i = 0; i < whole; i += 64) {
    // Written as two halves, never widened: where a mask must be kept in memory before that, GCC 12
    // stores 32 bits of it and reads 64 (seen with -fsanitize=thread).
    const uint32_t halves[2] = {_mm512_cmpge_epi16_mask(_mm512_load_si512(keys + i), bound),
                                _mm512_cmpge_epi16_mask(_mm512_load_si512(keys + i + 32), bound)};
    std::memcpy(map + i / 64, halves, sizeof halves);
  }
  CompareBaseline(keys, whole, n, least, map);
}

#endif  // __x86_64__

void Compare(const int16_t* keys, uint32_t n, int32_t least, Bitmap& map) {
  const auto bound = static_cast<int16_t>(least);
#if defined(__x86_64__)
  switch (kernels::ActiveIsa()) {
    case Isa::kAvx512: return CompareAvx512(keys, n, bound, map);
    case Isa::kAvx2: return CompareAvx2(keys, n, bound, map);
    case Isa::kBaseline: break;
  }
#endif
  CompareBaseline(keys, 0, n, bound, map);
}

// Room for the places of a block, and for what is written ahead.
constexpr uint32_t kAhead = 4, kMostAhead = 16;
using Places = uint16_t[kMaxBlockElements + kMostAhead];

// The places of the map's bits, rising; their number.
FORESHARD_ISA_INLINE uint32_t ListPlacesBody(const uint64_t* map, uint32_t n, uint16_t* places) {
  uint32_t count = 0;
  for (uint32_t first = 0; first < n; first += 64) {
    uint64_t word = map[first / 64];
    // Written in fours without asking; those beyond the last bit are overwritten.
    for (auto left = std::popcount(word); left > 0; left -= int{kAhead}) {
      for (uint32_t j = 0; j < kAhead; ++j) {
        places[count + j] = static_cast<uint16_t>(first + static_cast<uint32_t>(std::countr_zero(word)));
        word &= word - 1;
      }
      count += std::min(static_cast<uint32_t>(left), kAhead);
    }
  }
  return count;
}
FORESHARD_ISA_VARIANTS(uint32_t, ListPlaces, (const uint64_t* map, uint32_t n, uint16_t* places),
                       (map, n, places))

// Of the elements in the bracket, whose bits are set, only so many keep them that k are left:
// the largest, of equal ones the first.
void KeepLargest(const float* c, const int16_t* keys, uint32_t n, uint32_t k, const Bracket& by_key,
                 Bitmap& map) {
  Bitmap inside;
  Compare(keys, n, by_key.high, inside);
  for (uint32_t w = 0; w * 64 < n; ++w) inside[w] ^= map[w];
  Places places;
  const uint32_t count = ListPlaces(inside, n, places);
  const uint32_t wanted = k - by_key.above;
  alignas(64) float candidates[kMaxBlockElements];
  for (uint32_t j = 0; j < count; ++j) candidates[j] = c[places[j]];
  Bracket bracket = {
      .low = by_key.low << 16, .high = by_key.high << 16, .from_low = count, .above = 0};
  Narrow([&](int32_t least) { return CountMagnitudes(candidates, count, least); }, wanted, 0,
         &bracket);
  // Those above low stay, and so many of those equal to it.
  uint32_t ties = bracket.from_low == wanted ? count : wanted - bracket.above;
  for (uint32_t j = 0; j < count; ++j) {
    const int32_t magnitude = Magnitude(candidates[j]);
    const bool tie = magnitude == bracket.low && ties > 0;
    ties -= tie ? 1 : 0;
    const bool stays = magnitude > bracket.low || tie;
    map[places[j] / 64] &= ~(uint64_t{!stays} << (places[j] % 64));
  }
}

// Writes the indices and then the values of the map's k elements; their error becomes c - c.
void SendListed(const float* values, float* error, const uint16_t* indices, uint32_t k, uint8_t* out) {
  const size_t bytes = k * sizeof(uint16_t);
  if (k != 0) std::memcpy(out, indices, bytes);
  SendSelected(values, error, indices, k, out + bytes);
}

#if defined(__x86_64__)

// All of the block in one pass, however many are sent: sixteen elements at a time, those of
// the map moved together.
template <bool kError>
FORESHARD_TARGET_AVX512 void SendDense(const float* values, float* error, const uint64_t* map,
                                       uint32_t n, uint32_t k, uint8_t* out, NextBlock* next) {
  const float* c = kError ? error : values;
  Places places;
  uint8_t* word = out + k * sizeof(uint16_t);
  const __m512i sixteen = _mm512_set1_epi32(16);
  __m512i index = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  uint32_t at = 0;
  const uint32_t whole = n / 16 * 16;
  for (uint32_t i = 0; i < whole; i += 16) {
    const auto chosen = static_cast<__mmask16>(map[i / 64] >> (i % 64));
    const auto count = static_cast<uint32_t>(std::popcount(static_cast<uint32_t>(chosen)));
    const __m512 all = _mm512_loadu_ps(c + i);
    const __m512 moved = _mm512_maskz_compress_ps(chosen, all);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(places + at),
                        _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(chosen, index)));
    if (at + 16 <= k) {
      _mm512_storeu_ps(word, moved);
    } else {
      // Not beyond the last one.
      _mm512_mask_storeu_ps(word, static_cast<__mmask16>((1u << count) - 1), moved);
    }
    if constexpr (kError) _mm512_storeu_ps(error + i, _mm512_mask_sub_ps(all, chosen, all, all));
    index = _mm512_add_epi32(index, sixteen);
    at += count;
    word += count * sizeof(float);
    if (i % kWide == 0) next->Ask(kAskInPass);
  }
  for (uint32_t i = whole; i < n; ++i) {
    if ((map[i / 64] >> (i % 64) & 1) == 0) continue;
    places[at++] = static_cast<uint16_t>(i);
    const float value = c[i];
    std::memcpy(word, &value, sizeof value);
    word += sizeof value;
    if constexpr (kError) error[i] = value - value;
  }
  std::memcpy(out, places, k * sizeof(uint16_t));
}

#endif  // __x86_64__

// Beyond one element in so many, a pass over all of the block is faster than one over those
// that are sent (measured in cache: at 1/32 both take about as long).
constexpr uint32_t kSparse = 16;

void Send(const float* values, float* error, const uint64_t* map, uint32_t n, uint32_t k, uint8_t* out,
          NextBlock* next) {
#if defined(__x86_64__)
  if (kernels::ActiveIsa() == Isa::kAvx512 && k * kSparse > n) {
    return error == nullptr ? SendDense<false>(values, error, map, n, k, out, next)
                            : SendDense<true>(values, error, map, n, k, out, next);
  }
#endif
  Places places;
  ListPlaces(map, n, places);
  SendListed(values, error, places, k, out);
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
    if (elements == 0) return;
    const uint32_t count = Selected(elements);
    alignas(64) int16_t keys[kMaxBlockElements];
    keys[0] = 0;  // GCC 12 does not see that Keys writes all that is read
    NextBlock next(values, error, elements);
    const int16_t most = Keys(values, error, elements, keys, &next);
    const Bracket bracket = FindKey(keys, elements, count, most, &next);
    Bitmap map;
    Compare(keys, elements, bracket.low, map);
    next.Ask(kAskBetween);
    if (bracket.from_low > count) {
      KeepLargest(error == nullptr ? values : error, keys, elements, count, bracket, map);
    }
    next.Ask(kAskBetween);
    Send(values, error, map, elements, count, out, &next);
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
    SendListed(values, error, order, count, out);
  }

 private:
  uint32_t Selected(uint32_t elements) const { return SelectedElements(fraction_, elements); }

  static uint32_t IndexAt(const uint8_t* in, uint32_t j) {
    uint16_t index;
    std::memcpy(&index, in + j * sizeof index, sizeof index);
    return index;
  }

  const float fraction_;
};

}  // namespace

std::unique_ptr<const Codec> MakeTopK(const CodecSettings& settings) {
  return std::make_unique<TopK>(settings.fraction);
}

}  // namespace foreshard
