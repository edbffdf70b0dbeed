// Convolutions through cuDNN: NHWC, filters KRSC, which is the flat vector's own layout, so
// nothing is rearranged. For each shape and pass the algorithm that cuDNN takes for fastest is
// chosen once and kept, among those that give the same bits each time: the first whose workspace is at
// most kMostWorkspace, or else the one with the least (internal to kernels/cuda/libraries).
#pragma once

#include <map>
#include <memory>

#include "kernels/cuda/layer_library.h"
#include "kernels/cuda/libraries/cudnn_functions.h"
#include "kernels/device.h"

namespace foreshard::kernels::cuda {

// cudnnStatus_t as a status: UNAVAILABLE where the driver has failed, else INTERNAL.
absl::Status CudnnStatus(const CudnnFunctions& cudnn, cudnnStatus_t status,
                         absl::string_view what);

class Convolutions {
 public:
  static constexpr uint64_t kMostWorkspace = uint64_t{256} << 20;

  Convolutions(const CudnnFunctions& cudnn, cudnnHandle_t handle, Precision precision)
      : cudnn_(cudnn), handle_(handle), precision_(precision) {}
  ~Convolutions();

  absl::StatusOr<uint64_t> WorkspaceBytes(ConvolutionPass pass, const ConvolutionShape& shape);
  absl::Status Forward(const ConvolutionShape& shape, const void* x, const void* w, void* y,
                       const Workspace& workspace);
  absl::Status BackwardData(const ConvolutionShape& shape, const void* w, const void* dy, void* dx,
                            const Workspace& workspace);
  absl::Status BackwardFilter(const ConvolutionShape& shape, const void* x, const void* dy,
                              bool accumulate, void* dw, const Workspace& workspace);

 private:
  struct Choice {
    bool made = false;
    int algorithm = 0;
    cudnnMathType_t math = CUDNN_DEFAULT_MATH;
    uint64_t workspace_bytes = 0;
  };
  struct Known {
    cudnnTensorDescriptor_t x = nullptr, y = nullptr;
    cudnnFilterDescriptor_t w = nullptr;
    cudnnConvolutionDescriptor_t convolution = nullptr;
    Choice choices[3];
  };

  void Destroy(const Known& known) const;
  absl::StatusOr<Known*> Find(const ConvolutionShape& shape);
  absl::StatusOr<Choice> Choose(ConvolutionPass pass, const ConvolutionShape& shape,
                                const Known& known) const;
  // Ready for the pass: chosen, its math set.
  absl::StatusOr<Known*> Prepare(ConvolutionPass pass, const ConvolutionShape& shape);
  absl::Status Done(cudnnStatus_t status, const char* what, const ConvolutionShape& shape) const;

  const CudnnFunctions& cudnn_;
  const cudnnHandle_t handle_;
  const Precision precision_;
  std::map<ConvolutionShape, Known> known_;
};

}  // namespace foreshard::kernels::cuda
