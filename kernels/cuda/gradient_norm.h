// The gradient's global norm and whether it is finite, worked out and used on the device: no
// kernel that follows waits for the host.
//
//   GradientNormOnDevice({gradient, n, statistics, m, clip_norm}, partial, result, stream);
//   EncodeSigns(scale, {..., .stop = &result->not_finite}, stream);   // nothing, if not finite
//   CopyToHost(&step, result, sizeof step, stream);                   // when it is convenient
//
// The bits are those of worker/gradient.h's ClipGlobalNorm: squares in fp64, eight lanes in
// pieces of 16384 elements, pieces added up in their order. First eight threads a piece, four
// pieces a warp, each a lane's 2048 additions one after another (they take 10 to 20 us whatever
// the size, and reach memory's speed from a few million elements on); then one thread for the
// pieces; then, if the norm is above the limit, all elements are multiplied.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/memory.h"

namespace FORESHARD_CUDA_NAMESPACE {

struct GradientNorm {
  double norm = 0;          // before clipping
  float factor = 1;         // the gradient has been multiplied by
  uint32_t not_finite = 0;  // 1: a value of gradient or statistics, or the norm, is not finite
};

struct GradientNormArguments {
  float* gradient = nullptr;
  uint64_t elements = 0;
  const float* statistics = nullptr;  // looked at, not counted; may be null
  uint64_t statistic_elements = 0;
  double clip_norm = 0;  // 0: not clipped
};

// Doubles that `partial` must have.
uint64_t GradientNormPartials(uint64_t elements);

// All in device memory; `partial` is used until the stream has run it.
absl::Status GradientNormOnDevice(const GradientNormArguments& arguments, double* partial,
                                  GradientNorm* result, NativeStream stream);

// Sets *not_finite to 1 where a value is not finite, and leaves it alone where none is.
absl::Status CheckFinite(const float* values, uint64_t n, uint32_t* not_finite,
                         NativeStream stream);

}  // namespace FORESHARD_CUDA_NAMESPACE
