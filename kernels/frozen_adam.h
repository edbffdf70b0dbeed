// The arithmetic of APMSqueeze's compressed phase (arXiv 2008.11343), which every worker
// and the server do alike, on runs of a few thousand elements: Adam whose variance is
// frozen, driven by what all workers' compressed momenta (or gradients) came to.
//
//   MixMomentum(beta1, n, momentum, gradient);          // worker: gradient becomes m_i
//   ... encode, exchange, decode into `result` ...
//   TakeResult(step, n, result, momentum, denominator, theta);
//
// Per element, m the shared momentum, d the denominator, r the decoded result:
//
//   m_i = beta1 * m + (1 - beta1) * g                   what a worker compresses
//   m = r                          where momenta were compressed
//   m = beta1 * m + (1 - beta1) * r                     where gradients were
//   theta -= eta * (m / d + lambda * theta)
//
// d is sqrt(v) + epsilon of the variance at the freeze, floored there (FreezeVariance):
// an element whose v is tiny would otherwise be thrown far by one bit, since its block's
// scale is not its own.
//
// No operation is contracted: all instruction sets make the same bits. Each function
// may be called from any thread; arrays do not overlap.
#pragma once

#include <cstdint>

namespace foreshard {

struct FrozenAdamStep {
  float eta = 0;
  float beta1 = 0.9f;
  float weight_decay = 0;   // lambda; 0 on runs that are not decayed
  bool of_gradients = false;  // the result is of gradients, not of momenta
};

void MixMomentum(float beta1, uint64_t n, const float* momentum, float* gradient);

void TakeResult(const FrozenAdamStep& step, uint64_t n, const float* result, float* momentum,
                const float* denominator, float* theta);

// sum[i] += factor * values[i]: what an absent worker counts as.
void AddScaled(uint64_t n, float factor, const float* values, float* sum);

// Turns v into d in place: sqrt(v * correction), at least `floor` times the root mean square
// of that over the run, plus epsilon. Of a run that is zero throughout (no gradient
// reached it yet) it makes `fallback_rms` + epsilon, so that such a tensor still trains
// at the others' pace. `correction` is Adam's 1 / (1 - beta2^t), or 1.
void FreezeVariance(uint64_t n, float correction, float floor, float epsilon, double fallback_rms,
                    float* v);

// sum of v, in fp64 as the codecs sum: for the mean over more than a run.
double SumOfVariance(const float* v, uint64_t n);

}  // namespace foreshard
