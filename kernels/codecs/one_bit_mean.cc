// one_bit_mean: sign and mean magnitude. As one_bit, with scale = mean |c|: the
// scale that leaves the smallest error, and a contraction for every input
// (scaled sign of EF-SGD, arXiv 1901.09847).
#include "kernels/codecs/registry.h"
#include "kernels/codecs/sign_block.h"

namespace foreshard {
namespace {

using sign_block::Scale;

class OneBitMean final : public Codec {
 public:
  CodecId id() const override { return CodecId::kOneBitMean; }
  std::string_view name() const override { return "one_bit_mean"; }
  bool for_replies() const override { return false; }
  uint32_t BlockBytes(uint32_t elements) const override { return sign_block::Bytes(elements); }

  void EncodeBlock(const float* values, float* error, uint32_t elements,
                   uint8_t* out) const override {
    sign_block::Encode(Scale::kMeanMagnitude, values, error, elements, out);
  }

  const float* DecodeBlock(const uint8_t* in, uint32_t elements, float* scratch) const override {
    sign_block::Decode(in, elements, scratch);
    return scratch;
  }

  bool BlockIsFinite(const uint8_t* in, uint32_t elements) const override {
    return sign_block::IsFinite(in);
  }

  void EncodeBlockReference(const float* values, float* error, uint32_t elements,
                            uint8_t* out) const override {
    sign_block::EncodeReference(Scale::kMeanMagnitude, values, error, elements, out);
  }
};

}  // namespace

const Codec& OneBitMeanCodec() {
  static const OneBitMean codec;
  return codec;
}

}  // namespace foreshard
