// random_k: k of the block's n elements, chosen by the key that sender and receiver
// share, as fp32 words: no indices travel. Stratified: the block is cut into k strata of
// equal length (to one element), one element is drawn in each, and all are turned by a
// drawn offset, so that exactly k are sent and each element is with probability k / n.
// With error feedback the values are sent unscaled. (Random-k: arXiv 1809.07599.)
#include <cstring>

#include "kernels/codecs/faults.h"
#include "kernels/codecs/registry.h"
#include "kernels/codecs/selection.h"
#include "kernels/cpu/isa.h"

namespace foreshard {
namespace {

// The high half of draw * bound: a whole number below bound.
[[gnu::always_inline]] inline uint32_t Below(uint32_t draw, uint32_t bound) {
  return static_cast<uint32_t>(uint64_t{draw} * bound >> 32);
}

// Stratum j begins at floor(j n / k). fp32 is enough for the division: j n <= 2^24 is exact,
// and a quotient below a whole number m <= 4096 is so by 1 / k >= 2^-12, at least a unit in
// its last place, so that it is never rounded up to m.
FORESHARD_ISA_INLINE void ChooseBody(uint64_t key, uint32_t n, uint32_t k,
                                     uint16_t* __restrict indices) {
  const uint32_t turn = Below(CodecDraw(key, 0), n);
  const auto divisor = static_cast<float>(static_cast<int32_t>(k));
  for (uint32_t j = 0; j < k; ++j) {
    const auto begin = static_cast<int32_t>(static_cast<float>(static_cast<int32_t>(j * n)) / divisor);
    const auto end =
        static_cast<int32_t>(static_cast<float>(static_cast<int32_t>((j + 1) * n)) / divisor);
    const uint32_t draw = CodecDraw(key, j + 1);
    const uint32_t at =
        static_cast<uint32_t>(begin) + Below(draw, static_cast<uint32_t>(end - begin)) + turn;
    indices[j] = static_cast<uint16_t>(at >= n ? at - n : at);
  }
}
FORESHARD_ISA_VARIANTS(void, Choose, (uint64_t key, uint32_t n, uint32_t k, uint16_t* indices),
                       (key, n, k, indices))

FORESHARD_ISA_INLINE void AddErrorBody(const float* values, float* error, uint64_t n) {
  AddValues(values, error, n);
}
FORESHARD_ISA_VARIANTS(void, AddError, (const float* values, float* error, uint64_t n),
                       (values, error, n))

class RandomK final : public Codec {
 public:
  explicit RandomK(float fraction) : fraction_(fraction) {}

  CodecId id() const override { return CodecId::kRandomK; }
  std::string_view name() const override { return "random_k"; }
  bool replies_carry_values() const override { return false; }
  uint32_t BlockBytes(uint32_t elements) const override {
    return Selected(elements) * static_cast<uint32_t>(sizeof(float));
  }

  void EncodeBlock(const float* values, float* error, uint32_t elements, const CodecKey& key,
                   uint8_t* out) const override {
    if (error != nullptr) AddError(values, error, elements);
    uint16_t indices[kMaxBlockElements];
    const uint32_t count = Selected(elements);
    Choose(key.shared, elements, count, indices);
    SendSelected(values, error, indices, count, out);
  }

  const float* DecodeBlock(const uint8_t* in, uint32_t elements, const CodecKey& key,
                           float* scratch) const override {
    uint16_t indices[kMaxBlockElements];
    const uint32_t count = Selected(elements);
    Choose(key.shared, elements, count, indices);
    std::memset(scratch, 0, elements * sizeof(float));
    for (uint32_t j = 0; j < count; ++j) {
      std::memcpy(scratch + indices[j], in + j * sizeof(float), sizeof(float));
    }
    return scratch;
  }

  std::string_view Fault(const uint8_t* in, uint32_t elements) const override {
    return WordsFault(in, Selected(elements));
  }

  // Whole numbers only: stratum j begins where j n / k is cut off, and the draws are as
  // they are written down in README.md.
  void EncodeBlockReference(const float* values, float* error, uint32_t elements,
                            const CodecKey& key, uint8_t* out) const override {
    for (uint32_t i = 0; i < elements && error != nullptr; ++i) error[i] = values[i] + error[i];
    const uint32_t count = Selected(elements);
    const uint32_t turn = Below(CodecDraw(key.shared, 0), elements);
    for (uint32_t j = 0; j < count; ++j) {
      const uint32_t begin = j * elements / count;
      const uint32_t length = (j + 1) * elements / count - begin;
      const auto index = static_cast<uint16_t>(
          (begin + Below(CodecDraw(key.shared, j + 1), length) + turn) % elements);
      SendSelected(values, error, &index, 1, out + j * sizeof(float));
    }
  }

 private:
  uint32_t Selected(uint32_t elements) const { return SelectedElements(fraction_, elements); }

  const float fraction_;
};

}  // namespace

std::unique_ptr<const Codec> MakeRandomK(const CodecSettings& settings) {
  return std::make_unique<RandomK>(settings.fraction);
}

}  // namespace foreshard
