#include "kernels/cpu/loss.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/softmax.h"
#include "kernels/cpu/vector_math.h"

namespace foreshard::kernels::cpu {

LossSum SoftmaxCrossEntropy(const float* logits, const int32_t* labels, uint64_t examples,
                            uint32_t classes, float scale, float* gradient) {
  LossSum result{.count = examples};
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

LossSum MaskedCrossEntropy(const float* logits, const int32_t* targets, uint64_t rows,
                           uint32_t classes, float scale, float* gradient) {
  struct Row {
    double loss = 0;
    bool correct = false;
  };
  std::vector<Row> found(rows);
#pragma omp parallel
  {
    std::vector<float> own(gradient == nullptr ? classes : 0);
#pragma omp for
    for (uint64_t i = 0; i < rows; ++i) {
      float* out = gradient == nullptr ? own.data() : gradient + i * classes;
      if (targets[i] == kNoTarget) {
        if (gradient != nullptr) std::fill_n(out, classes, 0.0f);
        continue;
      }
      const float* row = logits + i * classes;
      const auto target = static_cast<uint32_t>(targets[i]);
      const float largest = Largest(row, classes), logit = row[target];
      found[i].correct = logit == largest && std::find(row, row + target, largest) == row + target;
      const double sum = ExpAndSum(row, classes, largest, out);
      found[i].loss = std::log(sum) - (double{logit} - largest);
      if (gradient == nullptr) continue;
      Scale(out, static_cast<float>(scale / sum), classes);
      out[target] -= scale;
    }
  }
  LossSum result;
  for (uint64_t i = 0; i < rows; ++i) {
    if (targets[i] == kNoTarget) continue;
    ++result.count;
    result.loss += found[i].loss;
    result.correct += found[i].correct;
  }
  return result;
}

}  // namespace foreshard::kernels::cpu
