// What a network on the GPU takes from NVIDIA's libraries: convolutions and pooling (cuDNN), matrix products (cuBLASLt). An interface, so that everything around it (memory,
// branches, graphs) also runs without a GPU, in the emulation with plain loops below it
// (tests/kernels/cuda/plain_library.h).
//
//   library->ConvolutionWorkspace(ConvolutionPass::kForward, shape);   // chooses, once a shape
//   library->ConvolutionForward(shape, x, w, y, workspace, stream);
//
// All pointers are to device memory, aligned to 16 bytes; activations are
// [examples, height, width, channels] of the storage that the library was made for, filters
// [filters, kernel, kernel, channels] of it too; what is named float is fp32. Calls are given to
// the stream, allocate nothing and may be captured, once each shape has run before.
// Thread-compatible. Errors: INTERNAL names call and shape; UNAVAILABLE a lost device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/memory.h"

namespace FORESHARD_CUDA_NAMESPACE {

// How activations, and the weights as layers read them, are stored.
enum class Storage : uint8_t { kFp32, kBf16 };
inline uint64_t BytesOf(Storage storage) { return storage == Storage::kFp32 ? 4 : 2; }

enum class ConvolutionPass : uint8_t { kForward, kBackwardData, kBackwardFilter };

struct ConvolutionShape {
  uint32_t examples = 0;
  uint32_t height = 0, width = 0, channels = 0;              // of the input
  uint32_t out_height = 0, out_width = 0, filters = 0;
  uint32_t kernel = 0, stride = 0, padding = 0;

  // What tells it from others.
  auto Key() const {
    return std::tie(examples, height, width, channels, out_height, out_width, filters, kernel,
                    stride, padding);
  }
  bool operator<(const ConvolutionShape& other) const { return Key() < other.Key(); }
  // "128 x 32 x 32 x 16, 3 x 3, stride 1, to 32 x 32 x 16".
  std::string Text() const;
};

struct PoolShape {
  bool average = false;                // else the largest
  uint32_t examples = 0;
  uint32_t height = 0, width = 0, channels = 0;
  uint32_t out_height = 0, out_width = 0;
  uint32_t window_height = 0, window_width = 0, stride = 1, padding = 0;
};

// y [rows, units] = x [rows, inputs] * w^T, w [units, inputs], all row-major.
struct DenseShape {
  uint32_t rows = 0, inputs = 0, units = 0;
};

// Workspace of a call; as long as ConvolutionWorkspace or DenseWorkspace said.
struct Workspace {
  void* data = nullptr;
  uint64_t bytes = 0;
};

class LayerLibrary {
 public:
  virtual ~LayerLibrary() = default;

  // For people: "cuDNN 9.19, cuBLASLt 13.0".
  virtual const std::string& description() const = 0;
  virtual Storage storage() const = 0;
  // Whether factors of fp32 products are rounded to TF32.
  virtual bool rounds_products() const = 0;

  // Bytes of workspace that the pass will want; the algorithm is chosen here and kept.
  virtual absl::StatusOr<uint64_t> ConvolutionWorkspace(ConvolutionPass pass,
                                                        const ConvolutionShape& shape) = 0;
  virtual absl::Status ConvolutionForward(const ConvolutionShape& shape, const void* x,
                                          const void* w, void* y, const Workspace& workspace,
                                          NativeStream stream) = 0;
  virtual absl::Status ConvolutionBackwardData(const ConvolutionShape& shape, const void* w,
                                               const void* dy, void* dx,
                                               const Workspace& workspace,
                                               NativeStream stream) = 0;
  // dw has the storage's type; `accumulate` adds to it.
  virtual absl::Status ConvolutionBackwardFilter(const ConvolutionShape& shape, const void* x,
                                                 const void* dy, bool accumulate, void* dw,
                                                 const Workspace& workspace,
                                                 NativeStream stream) = 0;

  virtual absl::Status PoolForward(const PoolShape& shape, const void* x, void* y,
                                   NativeStream stream) = 0;
  virtual absl::Status PoolBackward(const PoolShape& shape, const void* x, const void* y,
                                    const void* dy, void* dx, NativeStream stream) = 0;

  virtual uint64_t DenseWorkspace() const = 0;
  // `bias` [units] of y's type, or null; `relu`: max(0, .) in the same pass; `y_is_fp32`: y is
  // fp32 whatever the storage.
  virtual absl::Status DenseForward(const DenseShape& shape, const void* x, const void* w,
                                    const void* bias, bool relu, void* y, bool y_is_fp32,
                                    const Workspace& workspace, NativeStream stream) = 0;
  virtual absl::Status DenseBackwardData(const DenseShape& shape, const void* w, const void* dy,
                                         void* dx, const Workspace& workspace,
                                         NativeStream stream) = 0;
  virtual absl::Status DenseBackwardWeight(const DenseShape& shape, const void* x, const void* dy,
                                           bool accumulate, float* dw, const Workspace& workspace,
                                           NativeStream stream) = 0;

  // c [m, n] = a [m, k] * b [k, n], row-major fp32.
  virtual absl::Status Multiply(uint64_t m, uint64_t n, uint64_t k, const float* a, const float* b,
                                float* c, NativeStream stream) = 0;
};

}  // namespace FORESHARD_CUDA_NAMESPACE
