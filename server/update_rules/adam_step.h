// Adam's step with a gradient in full precision (Kingma and Ba, arXiv 1412.6980; decoupled
// weight decay: AdamW, arXiv 1711.05101), shared by adam and by apmsqueeze's first phase
// (internal to server/update_rules).
//
//   m = beta1 * m + (1 - beta1) * g
//   v = beta2 * v + (1 - beta2) * g * g
//   theta -= eta * (c1 * m / (sqrt(c2 * v) + epsilon) + lambda * theta)
//
// c1 = 1 / (1 - beta1^t), c2 = 1 / (1 - beta2^t) in update t where the bias is corrected,
// else 1.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cpu/isa.h"
#include "server/update_rules/registry.h"

namespace foreshard {

struct AdamStep {
  float eta = 0, beta1 = 0, beta2 = 0, epsilon = 0, lambda = 0;
  float first_correction = 1, second_correction = 1;  // c1, c2
};

// beta1^t and beta2^t, kept as running products so that they are state like any other.
class AdamBias {
 public:
  explicit AdamBias(const RuleSettings& settings)
      : corrected_(settings.bias_correction), beta1_(settings.beta1), beta2_(settings.beta2) {}

  // Before the runs of an update.
  void Advance() {
    powers_[0] *= beta1_;
    powers_[1] *= beta2_;
  }
  float first_correction() const { return Of(powers_[0]); }
  float second_correction() const { return Of(powers_[1]); }
  std::vector<double>& powers() { return powers_; }

 private:
  float Of(double power) const {
    return corrected_ && power < 1 ? static_cast<float>(1 / (1 - power)) : 1.0f;
  }

  bool corrected_;
  double beta1_, beta2_;
  std::vector<double> powers_ = {1, 1};
};

FORESHARD_ISA_INLINE void AdamLoopBody(const AdamStep& step, const float* __restrict gradient,
                                       uint64_t n, float* __restrict m, float* __restrict v,
                                       float* __restrict theta, float* __restrict reply) {
  const AdamStep s = step;
  for (uint64_t i = 0; i < n; ++i) {
    const float g = gradient[i];
    const float first = s.beta1 * m[i] + (1 - s.beta1) * g;
    const float second = s.beta2 * v[i] + (1 - s.beta2) * (g * g);
    float move = s.first_correction * first / (std::sqrt(s.second_correction * second) + s.epsilon);
    if (s.lambda != 0) move += s.lambda * theta[i];
    const float next = theta[i] - s.eta * move;
    m[i] = first;
    v[i] = second;
    theta[i] = next;
    if (reply != nullptr) reply[i] = next;
  }
}
FORESHARD_ISA_VARIANTS(void, AdamLoop,
                       (const AdamStep& step, const float* gradient, uint64_t n, float* m,
                        float* v, float* theta, float* reply),
                       (step, gradient, n, m, v, theta, reply))

// The same, one element at a time, without the reply.
inline void AdamLoopReference(const AdamStep& s, const float* gradient, uint64_t n, float* m,
                              float* v, float* theta) {
  for (uint64_t i = 0; i < n; ++i) {
    m[i] = s.beta1 * m[i] + (1 - s.beta1) * gradient[i];
    v[i] = s.beta2 * v[i] + (1 - s.beta2) * (gradient[i] * gradient[i]);
    float move = s.first_correction * m[i] / (std::sqrt(s.second_correction * v[i]) + s.epsilon);
    if (s.lambda != 0) move += s.lambda * theta[i];
    theta[i] -= s.eta * move;
  }
}

// A rule's whole update of a run: m, v and theta point at the segment's start.
inline void TakeAdamStep(const RuleSettings& settings, const AdamBias& bias, Loops loops,
                         const UpdateContext& context, const Run& run, const float* gradient,
                         float* m, float* v, float* theta, float* reply) {
  const AdamStep step = {.eta = context.eta,
                         .beta1 = settings.beta1,
                         .beta2 = settings.beta2,
                         .epsilon = settings.epsilon,
                         .lambda = run.decayed ? settings.weight_decay : 0,
                         .first_correction = bias.first_correction(),
                         .second_correction = bias.second_correction()};
  m += run.offset;
  v += run.offset;
  theta += run.offset;
  if (loops == Loops::kFused) return AdamLoop(step, gradient, run.elements, m, v, theta, reply);
  AdamLoopReference(step, gradient, run.elements, m, v, theta);
  if (reply != nullptr) std::copy_n(theta, run.elements, reply);
}

}  // namespace foreshard
