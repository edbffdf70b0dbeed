// One step of plain SGD on a run: what asgd does at eta, staleness_aware at a rate of
// its own, dana_slim and easgd with what workers made of their gradients (internal to
// server/update_rules).
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace foreshard {

FORESHARD_ISA_INLINE void SgdStepBody(float rate, float lambda, const float* __restrict gradient,
                                      uint64_t n, float* __restrict theta,
                                      float* __restrict reply) {
  for (uint64_t i = 0; i < n; ++i) {
    float g = gradient[i];
    if (lambda != 0) g += lambda * theta[i];
    const float next = theta[i] - rate * g;
    theta[i] = next;
    if (reply != nullptr) reply[i] = next;
  }
}
FORESHARD_ISA_VARIANTS(void, SgdStep,
                       (float rate, float lambda, const float* gradient, uint64_t n, float* theta,
                        float* reply),
                       (rate, lambda, gradient, n, theta, reply))

}  // namespace foreshard
