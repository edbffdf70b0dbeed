// LocalSgd one element at a time, for parity tests on every device (internal to
// kernels). The formulas are in local_sgd.h.
#pragma once

#include <cstdint>

namespace foreshard {

void LookAheadReference(float delta, float eta, uint64_t n, const float* x, const float* v,
                        float* ahead);

// lambda is 0 on blocks that are not decayed; v is null for plain SGD.
void LocalStepReference(float delta, float lambda, float eta, uint64_t n, const float* gradient,
                        float* v, float* x);

void ElasticDifferenceReference(float alpha, uint64_t n, const float* center, float* x,
                                float* difference);

}  // namespace foreshard
