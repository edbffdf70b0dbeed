// one_bit: sign and root mean square. Each block becomes scale = ||c||_2 / sqrt(n)
// and a bit an element, 1 for c >= 0 compared as numbers (-0 counts as +);
// decoded: +scale or -scale. The operator of 1-bit Adam (arXiv 2102.02888) and
// APMSqueeze (2008.11343). The scale keeps the norm of the block, but the
// operator is no contraction on heavy tails; see one_bit_mean.
#include "kernels/codecs/registry.h"
#include "kernels/codecs/sign_block.h"

namespace foreshard {
namespace {

using sign_block::Scale;

class OneBit final : public Codec {
 public:
  CodecId id() const override { return CodecId::kOneBit; }
  std::string_view name() const override { return "one_bit"; }
  bool for_replies() const override { return false; }
  uint32_t BlockBytes(uint32_t elements) const override { return sign_block::Bytes(elements); }

  void EncodeBlock(const float* values, float* error, uint32_t elements,
                   uint8_t* out) const override {
    sign_block::Encode(Scale::kRootMeanSquare, values, error, elements, out);
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
    sign_block::EncodeReference(Scale::kRootMeanSquare, values, error, elements, out);
  }
};

}  // namespace

const Codec& OneBitCodec() {
  static const OneBit codec;
  return codec;
}

}  // namespace foreshard
