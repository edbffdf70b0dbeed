// One element of kernels/frozen_adam.h's TakeResult (internal to .cu files).
#pragma once

#include "kernels/cuda/device_code.h"

namespace FORESHARD_CUDA_NAMESPACE {

struct AdamStep {
  float eta, beta1, weight_decay;
  bool of_gradients;
};

__device__ __forceinline__ void StepOfAdam(const AdamStep& step, float result, float denominator,
                                           float* momentum, float* theta) {
  float m = result;
  if (step.of_gradients) m = step.beta1 * *momentum + (1 - step.beta1) * m;
  float move = m / denominator;
  if (step.weight_decay != 0) move = move + step.weight_decay * *theta;
  *momentum = m;
  *theta = *theta - step.eta * move;
}

}  // namespace FORESHARD_CUDA_NAMESPACE
