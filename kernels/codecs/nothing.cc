// Blocks of dead tensors (ShardPlanOptions::dead): no bytes, no scale, no error, decoded to
// zeros. What such a block was given after all is dropped.
#include <algorithm>

#include "kernels/codecs/registry.h"

namespace foreshard {
namespace {

class Nothing final : public Codec {
 public:
  CodecId id() const override { return CodecId::kNothing; }
  std::string_view name() const override { return "nothing"; }
  bool replies_carry_values() const override { return false; }
  uint32_t BlockBytes(uint32_t) const override { return 0; }

  void EncodeBlock(const float*, float* error, uint32_t elements, const CodecKey&,
                   uint8_t*) const override {
    if (error != nullptr) std::fill_n(error, elements, 0.0f);
  }

  const float* DecodeBlock(const uint8_t*, uint32_t elements, const CodecKey&,
                           float* scratch) const override {
    std::fill_n(scratch, elements, 0.0f);
    return scratch;
  }

  std::string_view Fault(const uint8_t*, uint32_t) const override { return {}; }

  void EncodeBlockReference(const float* values, float* error, uint32_t elements, const CodecKey& key,
                            uint8_t* out) const override {
    EncodeBlock(values, error, elements, key, out);
  }
};

}  // namespace

const Codec& NothingCodec() {
  static const Nothing codec;
  return codec;
}

}  // namespace foreshard
