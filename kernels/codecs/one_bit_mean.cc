// one_bit_mean: sign and mean magnitude. As one_bit, with scale = mean |c|: the
// scale that leaves the smallest error, and a contraction for every input
// (scaled sign of EF-SGD, arXiv 1901.09847).
#include "kernels/codecs/registry.h"
#include "kernels/codecs/sign_block.h"

namespace foreshard {

const Codec& OneBitMeanCodec() {
  static const sign_block::SignCodec codec(CodecId::kOneBitMean, "one_bit_mean", sign_block::Scale::kMeanMagnitude);
  return codec;
}

}  // namespace foreshard
