#include "kernels/codecs/registry.h"

#include <cassert>
#include <cstring>

namespace foreshard {
namespace {

using CodecGetter = const Codec& (*)();
using CodecMaker = std::unique_ptr<const Codec> (*)(const CodecSettings&);

constexpr CodecGetter kCodecs[] = {
    NoneCodec,
    Fp16Codec,
    Bf16Codec,
    OneBitCodec,
    OneBitMeanCodec,
};

// Those with parameters.
constexpr CodecMaker kMakers[] = {
    MakeTopK,
    MakeRandomK,
    MakeQuantized,
};

// For what does not depend on settings.
const CodecSet& DefaultSet() {
  static const CodecSet set;
  return set;
}

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

CodecSet::CodecSet(const CodecSettings& settings) {
  assert(settings.fraction > 0 && settings.fraction <= 1);
  assert(settings.bits >= kMinCodecBits && settings.bits <= kMaxCodecBits);
  for (const CodecMaker make : kMakers) made_.push_back(make(settings));
}

const Codec* CodecSet::Find(std::string_view name) const {
  for (const auto& codec : made_) {
    if (codec->name() == name) return codec.get();
  }
  return FindCodec(name);
}

const Codec* CodecSet::Find(CodecId id) const {
  for (const auto& codec : made_) {
    if (codec->id() == id) return codec.get();
  }
  return FindCodec(id);
}

bool IsCodec(CodecId id) { return DefaultSet().Find(id) != nullptr; }

std::vector<std::string_view> CodecNames() {
  std::vector<std::string_view> names;
  for (const CodecGetter codec : kCodecs) names.push_back(codec().name());
  for (const auto& codec : DefaultSet().made_) names.push_back(codec->name());
  return names;
}

const Codec& BlockCodec(const Codec& codec, const Block& block) {
  if (block.dead) return codec.id() == CodecId::kNone ? codec : NothingCodec();
  const bool full = block.full || codec.BlockBytes(block.elements) >= block.elements * sizeof(float);
  return full ? NoneCodec() : codec;
}

uint64_t EncodedBytes(const Codec& codec, absl::Span<const Block> blocks) {
  uint64_t bytes = 0;
  for (const Block& block : blocks) bytes += BlockCodec(codec, block).BlockBytes(block.elements);
  return bytes;
}

void EncodeSegment(const Codec& codec, absl::Span<const Block> blocks, const float* values,
                   float* error, const CodecKey& key, uint8_t* out) {
  for (const Block& block : blocks) {
    const Codec& by = BlockCodec(codec, block);
    by.EncodeBlock(values + block.offset, error == nullptr ? nullptr : error + block.offset,
                   block.elements, BlockKey(key, block.offset), out);
    out += by.BlockBytes(block.elements);
  }
}

void DecodeSegment(const Codec& codec, absl::Span<const Block> blocks, const uint8_t* in,
                   const CodecKey& key, float* values) {
  alignas(64) float scratch[kMaxBlockElements];
  for (const Block& block : blocks) {
    const Codec& by = BlockCodec(codec, block);
    const float* decoded = by.DecodeBlock(in, block.elements, BlockKey(key, block.offset), scratch);
    std::memcpy(values + block.offset, decoded, block.elements * sizeof(float));
    in += by.BlockBytes(block.elements);
  }
}

}  // namespace foreshard
