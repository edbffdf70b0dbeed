// What layers of text need besides matrix products and attention (attention.h): embeddings, layer
// norm, GELU, tanh, dropout, copies of positions, sums over rows, and the loss over a vocabulary.
// Each is defined by the CPU's layer of the same name (kernels/device.h says what it computes).
//
//   EmbeddingForward({...}, token, position, segment, y, stream);
//   LayerNormForward(storage, {rows, channels, epsilon}, x, weight, bias, y, saved, stream);
//
// Pointers are to device memory; those that are void are of the storage's type and aligned to 16
// bytes. The same inputs give the same bits: sums are in an order that only the shapes decide, and
// nothing is added atomically. What each is limited by is memory: everything is read once or
// twice and written once.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/activations.h"
#include "kernels/cuda/layer_library.h"
#include "kernels/cuda/memory.h"

namespace FORESHARD_CUDA_NAMESPACE {

// ---- Embedding ----

// Of one step; arrays as TextLayout (text_batch.h) has them.
struct EmbeddingArguments {
  Storage storage = Storage::kFp32;
  uint32_t examples = 0, positions = 0, channels = 0;
  uint32_t tokens = 0, position_rows = 0, segments = 0;  // rows of the tables
  const int32_t* token = nullptr;     // [examples, positions]
  const int32_t* segment = nullptr;   // [examples, positions]
  const uint32_t* order = nullptr;    // [examples * positions], rows sorted by their token
  const uint32_t* starts = nullptr;   // [examples * positions + 1], of each token in `order`
};
// y [examples, positions, channels].
absl::Status EmbeddingForward(const EmbeddingArguments& arguments, const float* token_table,
                              const float* position_table, const float* segment_table, void* y,
                              NativeStream stream);
// Bytes of the gradient's scratch.
uint64_t EmbeddingScratch(uint32_t examples, uint32_t positions, uint32_t channels,
                          uint32_t segments);
// Gradients of the tables from dy. `accumulate` adds to what is there; `token_written`: so does
// the table of tokens' in any case (a tied output projection wrote first).
struct EmbeddingGradients {
  float* token = nullptr;
  float* position = nullptr;
  float* segment = nullptr;
  bool accumulate = false, token_written = false;
};
absl::Status EmbeddingGradient(const EmbeddingArguments& arguments, const void* dy,
                               const EmbeddingGradients& gradients, float* scratch,
                               NativeStream stream);

// ---- Layer norm ----

struct LayerNormShape {
  uint32_t rows = 0, channels = 0;
  float epsilon = 0;
};
// `saved` [2, rows]: mean and 1 / sqrt(variance + epsilon), for backward; null in inference.
absl::Status LayerNormForward(Storage storage, const LayerNormShape& shape, const void* x,
                              const float* weight, const float* bias, void* y, float* saved,
                              NativeStream stream);
uint64_t LayerNormScratch(uint32_t rows, uint32_t channels);
// dx (null: not wanted), which may be dy, and the gradients of weight and bias.
struct LayerNormGradients {
  void* dx = nullptr;
  float* weight = nullptr;
  float* bias = nullptr;
  bool accumulate = false;  // weight and bias
};
absl::Status LayerNormGradient(Storage storage, const LayerNormShape& shape, const void* x,
                               const void* dy, const float* weight, const float* saved,
                               const LayerNormGradients& gradients, float* scratch,
                               NativeStream stream);

// gradient [channels] = (accumulate: gradient +) the sum of dy's rows, where they are many:
// BiasGradient (activations.h) in two steps. `scratch`: RowSumsScratch bytes.
uint64_t RowSumsScratch(uint32_t rows, uint32_t channels);
absl::Status RowSums(Storage storage, uint32_t rows, uint32_t channels, const void* dy,
                     bool accumulate, float* gradient, float* scratch, NativeStream stream);

// ---- Element by element; y or dx may be the array that is read ----

enum class Curve : uint8_t { kGelu, kTanh };
absl::Status ApplyCurve(Curve curve, Storage storage, uint64_t n, const void* x, void* y,
                        NativeStream stream);
// dx = dy * curve'(x).
absl::Status CurveGradient(Curve curve, Storage storage, uint64_t n, const void* x, const void* dy,
                           void* dx, NativeStream stream);

// Which values are dropped: kernels/philox.h.
struct DropArguments {
  float rate = 0;
  uint32_t layer = 0;                    // its number in the network
  const uint64_t* keys = nullptr;        // [examples]
  const StepScalars* scalars = nullptr;  // `drops`: whether this step does
};
// to = from, dropped: forward, and the gradient too.
absl::Status ApplyDropout(Storage storage, uint32_t examples, uint64_t elements,
                          const DropArguments& drop, const void* from, void* to,
                          NativeStream stream);

// ---- Copies of positions ----

// Without `at` the first position of each example, else those that it names.
struct SelectShape {
  uint32_t examples = 0, positions = 0, channels = 0;
  uint32_t count = 1;           // of an example
  const int32_t* at = nullptr;  // [examples, count]
};
absl::Status SelectForward(Storage storage, const SelectShape& shape, const void* x, void* y,
                           NativeStream stream);
// Every element of dx is written; where a position was copied more than once it is a sum.
absl::Status SelectGradient(Storage storage, const SelectShape& shape, const void* dy, void* dx,
                            NativeStream stream);

// ---- Loss ----

// kNoTarget of kernels/device.h, which nvcc's C++ cannot read.
inline constexpr int32_t kAbsentTarget = -1;

struct MaskedLossArguments {
  uint32_t rows = 0, classes = 0;
  const float* logits = nullptr;      // [rows, classes]
  const int32_t* targets = nullptr;   // [rows], a class or kAbsentTarget
  Storage storage = Storage::kFp32;   // of the gradient
  void* gradient = nullptr;           // target_scale * (softmax - one-hot), 0 without a target;
                                      // null: none; may be `logits` where it is fp32
  double* row_loss = nullptr;         // [rows], scratch
  uint32_t* row_correct = nullptr;    // [rows], scratch
  StepScalars* scalars = nullptr;     // target_scale is read; loss and correct are written
};
// As MaskedCrossEntropy of the CPU (kernels/cpu/loss.h): exponentials in fp32, sums in fp64.
absl::Status MaskedCrossEntropy(const MaskedLossArguments& arguments, NativeStream stream);

}  // namespace FORESHARD_CUDA_NAMESPACE
