// none: fp32 as it is, little-endian. The error after it is zero: whatever error
// there was goes out with the push.
#include <cstring>

#include "kernels/codecs/faults.h"
#include "kernels/codecs/registry.h"
#include "kernels/cpu/isa.h"

namespace foreshard {
namespace {

FORESHARD_ISA_INLINE void AddErrorBody(const float* values, float* error, uint64_t n,
                                       uint8_t* out) {
  for (uint64_t i = 0; i < n; ++i) {
    const float c = values[i] + error[i];
    error[i] = c - c;
    std::memcpy(out + i * sizeof c, &c, sizeof c);
  }
}
FORESHARD_ISA_VARIANTS(void, AddError,
                       (const float* __restrict values, float* __restrict error, uint64_t n,
                        uint8_t* __restrict out),
                       (values, error, n, out))

class None final : public Codec {
 public:
  CodecId id() const override { return CodecId::kNone; }
  std::string_view name() const override { return "none"; }
  bool replies_carry_values() const override { return true; }
  uint32_t BlockBytes(uint32_t elements) const override { return elements * sizeof(float); }

  void EncodeBlock(const float* values, float* error, uint32_t elements, const CodecKey&,
                   uint8_t* out) const override {
    if (error != nullptr) return AddError(values, error, elements, out);
    if (elements != 0) std::memcpy(out, values, BlockBytes(elements));
  }

  const float* DecodeBlock(const uint8_t* in, uint32_t elements, const CodecKey&,
                           float* scratch) const override {
    if (reinterpret_cast<uintptr_t>(in) % alignof(float) == 0) {
      return reinterpret_cast<const float*>(in);
    }
    std::memcpy(scratch, in, BlockBytes(elements));
    return scratch;
  }

  std::string_view Fault(const uint8_t* in, uint32_t elements) const override {
    return WordsFault(in, elements);
  }

  void EncodeBlockReference(const float* values, float* error, uint32_t elements, const CodecKey&,
                            uint8_t* out) const override {
    for (uint32_t i = 0; i < elements; ++i) {
      const float c = error == nullptr ? values[i] : values[i] + error[i];
      std::memcpy(out + i * sizeof c, &c, sizeof c);
      if (error != nullptr) error[i] = c - c;
    }
  }
};

}  // namespace

const Codec& NoneCodec() {
  static const None codec;
  return codec;
}

}  // namespace foreshard
