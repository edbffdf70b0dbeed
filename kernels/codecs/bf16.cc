// bf16: the upper 16 bits of an fp32, little-endian, round to nearest even,
// saturating at the largest finite value, 0x1.fep127 (half_words.h). Integer
// arithmetic on every path: the bf16 instructions flush denormals.
#include <cstring>

#include "kernels/codecs/half_words.h"
#include "kernels/codecs/registry.h"
#include "kernels/cpu/isa.h"

namespace foreshard {
namespace {

FORESHARD_ISA_INLINE void EncodePlainBody(const float* __restrict values, uint64_t n,
                                          WordAnywhere* __restrict words) {
  for (uint64_t i = 0; i < n; ++i) words[i] = Bf16FromFloat(values[i]);
}
FORESHARD_ISA_VARIANTS(void, EncodePlain, (const float* values, uint64_t n, WordAnywhere* words),
                       (values, n, words))

FORESHARD_ISA_INLINE void EncodeWithErrorBody(const float* __restrict values,
                                              float* __restrict error, uint64_t n,
                                              WordAnywhere* __restrict words) {
  for (uint64_t i = 0; i < n; ++i) {
    const float c = values[i] + error[i];
    const uint16_t word = Bf16FromFloat(c);
    words[i] = word;
    error[i] = c - FloatFromBf16(word);
  }
}
FORESHARD_ISA_VARIANTS(void, EncodeWithError,
                       (const float* values, float* error, uint64_t n, WordAnywhere* words),
                       (values, error, n, words))

FORESHARD_ISA_INLINE void DecodeBody(const WordAnywhere* __restrict words, uint64_t n,
                                     float* __restrict out) {
  for (uint64_t i = 0; i < n; ++i) out[i] = FloatFromBf16(words[i]);
}
FORESHARD_ISA_VARIANTS(void, Decode, (const WordAnywhere* words, uint64_t n, float* out),
                       (words, n, out))

FORESHARD_ISA_INLINE bool FiniteBody(const uint8_t* in, uint64_t n) {
  return WordsFinite(in, n, 0x7f80);
}
FORESHARD_ISA_VARIANTS(bool, Finite, (const uint8_t* in, uint64_t n), (in, n))

class Bf16 final : public Codec {
 public:
  CodecId id() const override { return CodecId::kBf16; }
  std::string_view name() const override { return "bf16"; }
  bool replies_carry_values() const override { return true; }
  uint32_t BlockBytes(uint32_t elements) const override { return elements * 2; }

  void EncodeBlock(const float* values, float* error, uint32_t elements, const CodecKey&,
                   uint8_t* out) const override {
    WordAnywhere* words = reinterpret_cast<WordAnywhere*>(out);
    if (error == nullptr) return EncodePlain(values, elements, words);
    EncodeWithError(values, error, elements, words);
  }

  const float* DecodeBlock(const uint8_t* in, uint32_t elements, const CodecKey&,
                           float* scratch) const override {
    Decode(reinterpret_cast<const WordAnywhere*>(in), elements, scratch);
    return scratch;
  }

  std::string_view Fault(const uint8_t* in, uint32_t elements) const override {
    return Finite(in, elements) ? std::string_view() : kNotFinite;
  }

  void EncodeBlockReference(const float* values, float* error, uint32_t elements, const CodecKey&,
                            uint8_t* out) const override {
    for (uint32_t i = 0; i < elements; ++i) {
      const float c = error == nullptr ? values[i] : values[i] + error[i];
      const uint16_t word = Bf16FromFloat(c);
      std::memcpy(out + 2 * i, &word, sizeof word);
      if (error != nullptr) error[i] = c - FloatFromBf16(word);
    }
  }
};

}  // namespace

const Codec& Bf16Codec() {
  static const Bf16 codec;
  return codec;
}

}  // namespace foreshard
