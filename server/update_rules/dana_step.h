// One step of dana_zero on a run, which dana_dc takes with another gradient (internal
// to server/update_rules; dana_zero.cc has the formula).
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace foreshard {

FORESHARD_ISA_INLINE void DanaStepBody(float eta, float gamma, float lambda,
                                       const float* __restrict gradient, uint64_t n,
                                       float* __restrict v, float* __restrict sum,
                                       float* __restrict theta, float* __restrict reply) {
  const float ahead = eta * gamma;
  for (uint64_t i = 0; i < n; ++i) {
    float g = gradient[i];
    if (lambda != 0) g += lambda * theta[i];
    const float momentum = gamma * v[i] + g;
    const float all = sum[i] + (momentum - v[i]);
    const float next = theta[i] - eta * momentum;
    v[i] = momentum;
    sum[i] = all;
    theta[i] = next;
    if (reply != nullptr) reply[i] = next - ahead * all;
  }
}
FORESHARD_ISA_VARIANTS(void, DanaStep,
                       (float eta, float gamma, float lambda, const float* gradient, uint64_t n,
                        float* v, float* sum, float* theta, float* reply),
                       (eta, gamma, lambda, gradient, n, v, sum, theta, reply))

}  // namespace foreshard
