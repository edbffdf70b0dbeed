// What each codec's file offers to registry.cc (internal to kernels/codecs).
#pragma once

#include <memory>

#include "kernels/codecs/codec.h"

namespace foreshard {

const Codec& NoneCodec();
// Not to be found by name or number: BlockCodec has it for dead tensors.
const Codec& NothingCodec();
const Codec& Fp16Codec();
const Codec& Bf16Codec();
const Codec& OneBitCodec();
const Codec& OneBitMeanCodec();

std::unique_ptr<const Codec> MakeTopK(const CodecSettings& settings);
std::unique_ptr<const Codec> MakeRandomK(const CodecSettings& settings);
std::unique_ptr<const Codec> MakeQuantized(const CodecSettings& settings);

}  // namespace foreshard
