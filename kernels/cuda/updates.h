// The worker's halves of update rules on the GPU, and what else is done to whole vectors there:
// the formulas of kernels/worker_half.cc, frozen_adam.h and local_sgd.h, bit for bit.
//
//   DanaSlimHalf({.table = table, .momentum = 0.9f, ...}, theta, v, gradient, stop, stream);
//
// Element by element: one thread block of 256 threads for at most 4096 elements, four quads a
// thread, so that memory is the limit; no shared memory, registers for 8 blocks a multiprocessor.
// All pointers are to device memory, aligned for their type; arrays do not overlap. Blocks'
// offsets count from the arrays' starts. `stop`: as EncodeArguments::stop; may be null.
// The exchange with the error (frozen Adam's result decoded and applied in one pass) is
// DecodeInto::kFrozenAdam.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/block_table.h"
#include "kernels/cuda/memory.h"
#include "kernels/frozen_adam.h"

namespace FORESHARD_CUDA_NAMESPACE {

struct DanaSlimStep {
  float momentum = 0;      // gamma
  float weight_decay = 0;  // lambda, of decayed blocks
  float repair = 0;        // DanaSlimRepair(gamma, eta, previous_eta)
};
// Turns the gradient into what is pushed, and updates v.
absl::Status DanaSlimHalf(const BlockTable& table, const DanaSlimStep& step, const float* theta,
                          float* v, float* gradient, const uint32_t* stop, NativeStream stream);

// Frozen Adam: gradient becomes beta1 * momentum + (1 - beta1) * gradient.
absl::Status MixMomentum(float beta1, uint64_t n, const float* momentum, float* gradient,
                         const uint32_t* stop, NativeStream stream);
// TakeResult of a result that is fp32.
absl::Status TakeResult(const BlockTable& table, const FrozenAdamStep& step, const float* result,
                        float* momentum, const float* denominator, float* theta,
                        NativeStream stream);
// sum += factor * values.
absl::Status AddScaled(uint64_t n, float factor, const float* values, float* sum,
                       NativeStream stream);
// values *= factor.
absl::Status Scale(uint64_t n, float factor, float* values, NativeStream stream);

// Local SGD: ahead = x - (eta * delta) * v.
absl::Status LookAhead(float delta, float eta, uint64_t n, const float* x, const float* v,
                       float* ahead, NativeStream stream);
struct LocalStep {
  float momentum = 0;      // delta; v is not touched where it is 0, and may be null
  float weight_decay = 0;  // lambda, of decayed blocks
  float eta = 0;
};
absl::Status LocalSgdStep(const BlockTable& table, const LocalStep& step, const float* gradient,
                          float* v, float* x, const uint32_t* stop, NativeStream stream);
// difference = alpha * (x - center), x -= difference. Sets *not_finite to 1 where a value of it
// is not finite; who reads it has set it to 0 before.
absl::Status ElasticDifference(float alpha, uint64_t n, const float* center, float* x,
                               float* difference, uint32_t* not_finite, NativeStream stream);

}  // namespace FORESHARD_CUDA_NAMESPACE
