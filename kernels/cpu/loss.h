// Softmax cross-entropy, the loss at the end of every network.
#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace foreshard::kernels::cpu {

// Loss (natural logarithm) and hits of `examples` rows of logits [examples,
// classes]; the first of equal largest logits is the guess. Where `gradient`
// [examples, classes] is not null it receives scale * (softmax - one-hot), which
// may overwrite the logits. Labels are in range.
LossSum SoftmaxCrossEntropy(const float* logits, const int32_t* labels, uint64_t examples,
                            uint32_t classes, float scale, float* gradient);

// The same over a vocabulary, in fp32 with sums in fp64: rows whose target is kNoTarget count
// for nothing and get a gradient of 0. Uses OpenMP's threads; the same bits with any number.
LossSum MaskedCrossEntropy(const float* logits, const int32_t* targets, uint64_t rows,
                           uint32_t classes, float scale, float* gradient);

}  // namespace foreshard::kernels::cpu
