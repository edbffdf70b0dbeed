// The functions of cuDNN and cuBLASLt that are used here, found when the libraries are loaded
// (internal to kernels/cuda/libraries; includes their headers).
#pragma once

#include <cublasLt.h>
#include <cudnn.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace foreshard::kernels::cuda {

#define FORESHARD_CUDNN_FUNCTIONS(X)           \
  X(cudnnGetVersion)                           \
  X(cudnnGetErrorString)                       \
  X(cudnnGetLastErrorString)                   \
  X(cudnnCreate)                               \
  X(cudnnDestroy)                              \
  X(cudnnSetStream)                            \
  X(cudnnCreateTensorDescriptor)               \
  X(cudnnDestroyTensorDescriptor)              \
  X(cudnnSetTensor4dDescriptor)                \
  X(cudnnCreateFilterDescriptor)               \
  X(cudnnDestroyFilterDescriptor)              \
  X(cudnnSetFilter4dDescriptor)                \
  X(cudnnCreateConvolutionDescriptor)          \
  X(cudnnDestroyConvolutionDescriptor)         \
  X(cudnnSetConvolution2dDescriptor)           \
  X(cudnnSetConvolutionMathType)               \
  X(cudnnGetConvolutionForwardAlgorithm_v7)    \
  X(cudnnGetConvolutionBackwardDataAlgorithm_v7)   \
  X(cudnnGetConvolutionBackwardFilterAlgorithm_v7) \
  X(cudnnGetConvolutionForwardWorkspaceSize)       \
  X(cudnnGetConvolutionBackwardDataWorkspaceSize)  \
  X(cudnnGetConvolutionBackwardFilterWorkspaceSize) \
  X(cudnnConvolutionForward)                   \
  X(cudnnConvolutionBackwardData)              \
  X(cudnnConvolutionBackwardFilter)            \
  X(cudnnCreatePoolingDescriptor)              \
  X(cudnnDestroyPoolingDescriptor)             \
  X(cudnnSetPooling2dDescriptor)               \
  X(cudnnPoolingForward)                       \
  X(cudnnPoolingBackward)

#define FORESHARD_CUBLASLT_FUNCTIONS(X)  \
  X(cublasLtGetVersion)                  \
  X(cublasLtGetStatusString)             \
  X(cublasLtCreate)                      \
  X(cublasLtDestroy)                     \
  X(cublasLtMatmul)                      \
  X(cublasLtMatmulDescCreate)            \
  X(cublasLtMatmulDescDestroy)           \
  X(cublasLtMatmulDescSetAttribute)      \
  X(cublasLtMatrixLayoutCreate)          \
  X(cublasLtMatrixLayoutDestroy)         \
  X(cublasLtMatmulPreferenceCreate)      \
  X(cublasLtMatmulPreferenceDestroy)     \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatmulAlgoGetHeuristic)

struct CudnnFunctions {
#define FORESHARD_MEMBER(name) decltype(&::name) name = nullptr;
  FORESHARD_CUDNN_FUNCTIONS(FORESHARD_MEMBER)
};
struct CublasLtFunctions {
  FORESHARD_CUBLASLT_FUNCTIONS(FORESHARD_MEMBER)
#undef FORESHARD_MEMBER
};

// UNAVAILABLE: not there, or another major version, with its name.
absl::StatusOr<CudnnFunctions> LoadCudnn();
absl::StatusOr<CublasLtFunctions> LoadCublasLt();

// A call of theirs that failed: INTERNAL with `text`, or the device's own failure where the driver
// says that it is lost, which the libraries do not.
absl::Status LibraryFailure(const std::string& text);

}  // namespace foreshard::kernels::cuda
