#include "kernels/frozen_adam.h"

#include <algorithm>
#include <cmath>

#include "kernels/codecs/lanes.h"
#include "kernels/cpu/isa.h"
#include "kernels/frozen_adam_reference.h"

namespace foreshard {
namespace {

FORESHARD_ISA_INLINE void MixBody(float beta1, uint64_t n, const float* __restrict momentum,
                                  float* __restrict gradient) {
  for (uint64_t i = 0; i < n; ++i) {
    gradient[i] = beta1 * momentum[i] + (1 - beta1) * gradient[i];
  }
}
FORESHARD_ISA_VARIANTS(void, Mix,
                       (float beta1, uint64_t n, const float* momentum, float* gradient),
                       (beta1, n, momentum, gradient))

FORESHARD_ISA_INLINE void TakeBody(float eta, float beta1, float lambda, bool of_gradients,
                                   uint64_t n, const float* __restrict result,
                                   float* __restrict momentum,
                                   const float* __restrict denominator, float* __restrict theta) {
  for (uint64_t i = 0; i < n; ++i) {
    float m = result[i];
    if (of_gradients) m = beta1 * momentum[i] + (1 - beta1) * m;
    float step = m / denominator[i];
    if (lambda != 0) step += lambda * theta[i];
    momentum[i] = m;
    theta[i] = theta[i] - eta * step;
  }
}
FORESHARD_ISA_VARIANTS(void, Take,
                       (float eta, float beta1, float lambda, bool of_gradients, uint64_t n,
                        const float* result, float* momentum, const float* denominator,
                        float* theta),
                       (eta, beta1, lambda, of_gradients, n, result, momentum, denominator, theta))

FORESHARD_ISA_INLINE void AddScaledLoopBody(uint64_t n, float factor, const float* __restrict values,
                                        float* __restrict sum) {
  for (uint64_t i = 0; i < n; ++i) sum[i] += factor * values[i];
}
FORESHARD_ISA_VARIANTS(void, AddScaledLoop,
                       (uint64_t n, float factor, const float* values, float* sum),
                       (n, factor, values, sum))

FORESHARD_ISA_INLINE void FloorBody(uint64_t n, float correction, float least, float epsilon,
                                    float* __restrict v) {
  for (uint64_t i = 0; i < n; ++i) {
    const float root = std::sqrt(v[i] * correction);
    v[i] = (root < least ? least : root) + epsilon;
  }
}
FORESHARD_ISA_VARIANTS(void, Floor,
                       (uint64_t n, float correction, float least, float epsilon, float* v),
                       (n, correction, least, epsilon, v))

}  // namespace

void MixMomentum(float beta1, uint64_t n, const float* momentum, float* gradient) {
  Mix(beta1, n, momentum, gradient);
}

void TakeResult(const FrozenAdamStep& step, uint64_t n, const float* result, float* momentum,
                const float* denominator, float* theta) {
  Take(step.eta, step.beta1, step.weight_decay, step.of_gradients, n, result, momentum,
       denominator, theta);
}

void AddScaled(uint64_t n, float factor, const float* values, float* sum) {
  AddScaledLoop(n, factor, values, sum);
}

double SumOfVariance(const float* v, uint64_t n) {
  double lanes[8] = {};
  for (uint64_t i = 0; i < n; ++i) lanes[i % 8] += double{v[i]};
  return JoinLanes(lanes);
}

void FreezeVariance(uint64_t n, float correction, float floor, float epsilon, double fallback_rms,
                    float* v) {
  if (n == 0) return;
  // The root mean square of sqrt(v) is the root of v's mean.
  const double rms = std::sqrt(SumOfVariance(v, n) * correction / static_cast<double>(n));
  if (rms == 0) {
    std::fill_n(v, n, static_cast<float>(fallback_rms) + epsilon);
    return;
  }
  Floor(n, correction, static_cast<float>(floor * rms), epsilon, v);
}

void MixMomentumReference(float beta1, uint64_t n, const float* momentum, float* gradient) {
  for (uint64_t i = 0; i < n; ++i) {
    const float kept = beta1 * momentum[i];
    const float fresh = (1 - beta1) * gradient[i];
    gradient[i] = kept + fresh;
  }
}

void TakeResultReference(const FrozenAdamStep& step, uint64_t n, const float* result,
                         float* momentum, const float* denominator, float* theta) {
  for (uint64_t i = 0; i < n; ++i) {
    if (step.of_gradients) {
      const float kept = step.beta1 * momentum[i];
      momentum[i] = kept + (1 - step.beta1) * result[i];
    } else {
      momentum[i] = result[i];
    }
    float move = momentum[i] / denominator[i];
    if (step.weight_decay != 0) move += step.weight_decay * theta[i];
    theta[i] -= step.eta * move;
  }
}

}  // namespace foreshard
