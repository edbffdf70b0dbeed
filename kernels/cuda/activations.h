// What layers need besides NVIDIA's libraries, element by element: sums where branches meet,
// max(0, .) and its gradient, subsampling, biases, changes of type, batch statistics; and the
// loss (softmax and cross-entropy in fp64).
//
//   Sum(Storage::kFp32, n, a, b, out, /*relu=*/true, stream);
//   SoftmaxCrossEntropy({...}, stream);
//
// All pointers are to device memory of the storage's type where they are void, and may be the
// same array only where it says so. Nothing here depends on the order of threads.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/layer_library.h"
#include "kernels/cuda/memory.h"

namespace FORESHARD_CUDA_NAMESPACE {

// out = a + b; `relu`: max(0, .) of it, which keeps what is no number. `out` may be a or b.
absl::Status Sum(Storage storage, uint64_t n, const void* a, const void* b, void* out, bool relu,
                 NativeStream stream);
// y = max(0, x); may be one array.
absl::Status ApplyRelu(Storage storage, uint64_t n, const void* x, void* y, NativeStream stream);
// dx = dy where y is above 0, else 0; dx may be dy.
absl::Status ReluGradient(Storage storage, uint64_t n, const void* y, const void* dy, void* dx,
                          NativeStream stream);

struct SubsampleShape {
  uint32_t examples = 0;
  uint32_t height = 0, width = 0, channels = 0;              // of the input
  uint32_t out_height = 0, out_width = 0, out_channels = 0;
  uint32_t stride = 1;
};
absl::Status SubsampleForward(Storage storage, const SubsampleShape& shape, const void* x, void* y,
                              NativeStream stream);
absl::Status SubsampleGradient(Storage storage, const SubsampleShape& shape, const void* dy,
                               void* dx, NativeStream stream);

// y [rows, channels] += bias [channels]; `relu` as above.
absl::Status AddBias(Storage storage, uint64_t rows, uint32_t channels, const float* bias,
                     bool relu, void* y, NativeStream stream);
// gradient [channels] = (accumulate: gradient +) the sum of dy's rows.
absl::Status BiasGradient(Storage storage, uint64_t rows, uint32_t channels, const void* dy,
                          bool accumulate, float* gradient, NativeStream stream);

// to = from, of another type or alignment.
absl::Status StoreAs(Storage storage, uint64_t n, const float* from, void* to,
                     NativeStream stream);
// to = (accumulate: to +) from.
absl::Status LoadFrom(Storage storage, uint64_t n, const void* from, bool accumulate, float* to,
                      NativeStream stream);

// What changes from step to step, and what a step comes to.
struct StepScalars {
  double loss = 0;       // sum over the examples; with text over the targets
  uint64_t correct = 0;
  double side_loss = 0;  // of SideLoss, over the examples
  uint64_t side_correct = 0;
  float weight = 1;        // of the batch: its gradient and statistics are multiplied by it
  float scale = 0;         // of the logits' gradient: weight / examples
  float target_scale = 0;  // with text: weight / divisor of the targets
  uint32_t drops = 0;      // whether dropout drops
};

// mean, variance of a batch norm: to = (accumulate: to +) weight * from; a variance is 0 where
// the channel has one value.
struct StatisticsArguments {
  uint32_t channels = 0;
  uint64_t values = 0;  // a channel
  const float* mean = nullptr;
  const float* variance = nullptr;
  const StepScalars* scalars = nullptr;
  bool accumulate = false;
  float* to_mean = nullptr;
  float* to_variance = nullptr;
};
absl::Status WriteStatistics(const StatisticsArguments& arguments, NativeStream stream);

struct LossArguments {
  uint32_t examples = 0, classes = 0;
  const float* logits = nullptr;       // [examples, classes]
  const int32_t* labels = nullptr;     // in range
  Storage storage = Storage::kFp32;    // of the gradient
  void* gradient = nullptr;            // scale * (softmax - one-hot); null: none
  double* row_loss = nullptr;          // [examples], scratch
  uint32_t* row_correct = nullptr;     // [examples], scratch
  StepScalars* scalars = nullptr;      // scale is read; loss and correct are written
  bool side = false;                   // written are side_loss and side_correct
};
// Natural logarithm; the first of equal largest logits is the guess (kernels/cpu/loss.h).
absl::Status SoftmaxCrossEntropy(const LossArguments& arguments, NativeStream stream);
// The end of both kinds of loss: sums of the rows', to loss and correct, or those of the side.
absl::Status TotalLoss(uint32_t rows, const double* row_loss, const uint32_t* row_correct, bool side,
                       StepScalars* scalars, NativeStream stream);

}  // namespace FORESHARD_CUDA_NAMESPACE
