#include "kernels/codecs/registry.h"

namespace foreshard {
namespace {

using CodecGetter = const Codec& (*)();

constexpr CodecGetter kCodecs[] = {
    NoneCodec,
    Fp16Codec,
    Bf16Codec,
    OneBitCodec,
    OneBitMeanCodec,
};

}  // namespace

const Codec* FindCodec(std::string_view name) {
  for (const CodecGetter codec : kCodecs) {
    if (codec().name() == name) return &codec();
  }
  return nullptr;
}

const Codec* FindCodec(CodecId id) {
  for (const CodecGetter codec : kCodecs) {
    if (codec().id() == id) return &codec();
  }
  return nullptr;
}

std::vector<std::string_view> CodecNames() {
  std::vector<std::string_view> names;
  for (const CodecGetter codec : kCodecs) names.push_back(codec().name());
  return names;
}

uint64_t EncodedBytes(const Codec& codec, absl::Span<const Block> blocks) {
  uint64_t bytes = 0;
  for (const Block& block : blocks) bytes += codec.BlockBytes(block.elements);
  return bytes;
}

void EncodeSegment(const Codec& codec, absl::Span<const Block> blocks, const float* values,
                   float* error, uint8_t* out) {
  for (const Block& block : blocks) {
    codec.EncodeBlock(values + block.offset, error == nullptr ? nullptr : error + block.offset,
                      block.elements, out);
    out += codec.BlockBytes(block.elements);
  }
}

}  // namespace foreshard
