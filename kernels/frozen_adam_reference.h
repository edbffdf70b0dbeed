// frozen_adam.h one element at a time, for parity tests on every device (internal to
// kernels).
#pragma once

#include <cstdint>

#include "kernels/frozen_adam.h"

namespace foreshard {

void MixMomentumReference(float beta1, uint64_t n, const float* momentum, float* gradient);

void TakeResultReference(const FrozenAdamStep& step, uint64_t n, const float* result,
                         float* momentum, const float* denominator, float* theta);

}  // namespace foreshard
