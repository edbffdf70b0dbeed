#include "kernels/cpu/loss.h"

#include <cmath>

namespace foreshard::kernels::cpu {

LossSum SoftmaxCrossEntropy(const float* logits, const int32_t* labels, uint64_t examples,
                            uint32_t classes, float scale, float* gradient) {
  LossSum result;
  for (uint64_t i = 0; i < examples; ++i) {
    const float* row = logits + i * classes;
    uint32_t best = 0;
    for (uint32_t c = 1; c < classes; ++c) {
      if (row[c] > row[best]) best = c;
    }
    const float largest = row[best];
    double sum = 0;
    for (uint32_t c = 0; c < classes; ++c) sum += std::exp(double{row[c]} - largest);
    const uint32_t label = static_cast<uint32_t>(labels[i]);
    result.loss += std::log(sum) - (double{row[label]} - largest);
    result.correct += best == label;
    if (gradient == nullptr) continue;
    float* out = gradient + i * classes;
    for (uint32_t c = 0; c < classes; ++c) {
      const double probability = std::exp(double{row[c]} - largest) / sum;
      out[c] = static_cast<float>(scale * (probability - (c == label ? 1.0 : 0.0)));
    }
  }
  return result;
}

}  // namespace foreshard::kernels::cpu
