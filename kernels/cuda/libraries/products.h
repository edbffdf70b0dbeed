// Matrix products through cuBLASLt, with bias and max(0, .) in the product's own epilogue. The
// algorithm is cuBLASLt's first choice for the shape, asked for once and kept (internal to
// kernels/cuda/libraries).
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "kernels/cuda/layer_library.h"
#include "kernels/cuda/libraries/cudnn_functions.h"
#include "kernels/device.h"

namespace foreshard::kernels::cuda {

class Products {
 public:
  // NVIDIA's advice for Hopper and later; 4 MiB is enough for cards before it.
  static constexpr uint64_t kWorkspaceBytes = uint64_t{32} << 20;

  Products(const CublasLtFunctions& blas, cublasLtHandle_t handle, Precision precision)
      : blas_(blas), handle_(handle), precision_(precision) {}
  ~Products();

  // Column-major D [m, n] = op(A) op(B) (+ D), where op(A) is [m, k] and op(B) [k, n]; leading
  // dimensions are the matrices' own rows. `bias` [m] is of D's type.
  struct Call {
    uint64_t m = 0, n = 0, k = 0;
    bool transpose_a = false, transpose_b = false;
    cudaDataType_t input = CUDA_R_32F, output = CUDA_R_32F;
    bool accumulate = false;
    bool bias = false, relu = false;

    auto Key() const {
      return std::tie(m, n, k, transpose_a, transpose_b, input, output, accumulate, bias, relu);
    }
    bool operator<(const Call& other) const { return Key() < other.Key(); }
  };
  absl::Status Run(const Call& call, const void* a, const void* b, const void* bias, void* d,
                   const Workspace& workspace, NativeStream stream);

 private:
  struct Known {
    cublasLtMatmulDesc_t product = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
    cublasLtMatmulAlgo_t algorithm = {};
  };

  absl::StatusOr<Known*> Find(const Call& call, const void* bias, uint64_t workspace_bytes);
  absl::Status Describe(const Call& call, const void* bias, uint64_t workspace_bytes, Known* known);
  absl::Status Done(cublasStatus_t status, const Call& call) const;
  void Destroy(const Known& known) const;

  const CublasLtFunctions& blas_;
  const cublasLtHandle_t handle_;
  const Precision precision_;
  // By workspace too: what was chosen for a large one cannot do with less.
  std::map<std::pair<Call, uint64_t>, Known> known_;
};

}  // namespace foreshard::kernels::cuda
