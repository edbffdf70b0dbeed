// Batch norm over rows of channels, with the max(0, .) that may follow it. Ours and not cuDNN's: that reads
// channels that lie side by side fast in one mode only, whose order of additions and limits are its own
// (in the others it goes through them one by one); and so the max(0, .) costs no pass of its own, forward
// or backward.
//
//   NormForwardTraining(Storage::kFp32, shape, x, norm, /*relu=*/true, y, scratch, stream);
//   NormBackward(Storage::kFp32, shape, x, dy, norm, /*relu=*/true, false, dx, dw, db, scratch, stream);
//
// x, y, dy, dx are [rows, channels] of the storage's type, the rest fp32; `scratch` has NormScratch
// bytes and keeps nothing. Sums are made in one order whatever the GPU: the same bits each time. They are
// of differences to the first row, so a mean that is large beside the spread costs no digits.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/layer_library.h"
#include "kernels/cuda/memory.h"

namespace FORESHARD_CUDA_NAMESPACE {

struct NormShape {
  uint64_t rows = 0;  // examples x positions; at least one
  uint32_t channels = 0;
  float epsilon = 0;
};

// Of one channel each.
struct NormTraining {
  const float* weight = nullptr;
  const float* bias = nullptr;
  float* mean = nullptr;           // of the batch
  float* variance = nullptr;       // of the batch, unbiased; 0 of one row
  float* saved_inverse = nullptr;  // 1 / sqrt(biased variance + epsilon), for backward, as the mean
};

uint64_t NormScratch(const NormShape& shape);

// y = weight * (x - mean) / sqrt(biased variance + epsilon) + bias; `relu`: max(0, .) of it, which keeps
// what is no number. y may be x.
absl::Status NormForwardTraining(Storage storage, const NormShape& shape, const void* x, const NormTraining& norm,
                                 bool relu, void* y, float* scratch, NativeStream stream);
// The same with this mean and (unbiased) variance.
absl::Status NormForwardInference(Storage storage, const NormShape& shape, const void* x, const float* weight,
                                  const float* bias, const float* mean, const float* variance, bool relu, void* y,
                                  NativeStream stream);
// `norm` as forward left it; dy counts where y is above 0, with `relu`. dx may be dy, or null where it is not
// wanted; `accumulate` adds to the gradients of weight and bias.
absl::Status NormBackward(Storage storage, const NormShape& shape, const void* x, const void* dy,
                          const NormTraining& norm, bool relu, bool accumulate, void* dx, float* weight_gradient,
                          float* bias_gradient, float* scratch, NativeStream stream);

}  // namespace FORESHARD_CUDA_NAMESPACE
