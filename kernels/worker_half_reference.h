// dana_slim's half one element at a time, for parity tests on every device
// (internal to kernels). The formulas are in worker_half.cc.
#pragma once

#include <cstdint>

namespace foreshard {

// r = gamma * (eta - previous_eta) / eta; 0 at eta = 0, where a push moves nothing.
float DanaSlimRepair(float gamma, float eta, float previous_eta);

// Turns n gradients into what is pushed, in place, and updates v. lambda is 0 on
// blocks that are not decayed.
void DanaSlimHalfReference(float gamma, float lambda, float repair, uint64_t n,
                           const float* theta, float* v, float* gradient);

}  // namespace foreshard
