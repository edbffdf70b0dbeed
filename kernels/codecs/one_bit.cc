// one_bit: sign and root mean square. Each block becomes scale = ||c||_2 / sqrt(n)
// and a bit an element, 1 for c >= 0 compared as numbers (-0 counts as +);
// decoded: +scale or -scale. The operator of 1-bit Adam (arXiv 2102.02888) and
// APMSqueeze (2008.11343). The scale keeps the norm of the block, but the
// operator is no contraction on heavy tails; see one_bit_mean.
#include "kernels/codecs/registry.h"
#include "kernels/codecs/sign_block.h"

namespace foreshard {

const Codec& OneBitCodec() {
  static const sign_block::SignCodec codec(CodecId::kOneBit, "one_bit", sign_block::Scale::kRootMeanSquare);
  return codec;
}

}  // namespace foreshard
