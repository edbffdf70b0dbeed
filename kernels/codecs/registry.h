// What each codec's file offers to registry.cc (internal to kernels/codecs).
#pragma once

#include "kernels/codecs/codec.h"

namespace foreshard {

const Codec& NoneCodec();
const Codec& Fp16Codec();
const Codec& Bf16Codec();
const Codec& OneBitCodec();
const Codec& OneBitMeanCodec();

}  // namespace foreshard
