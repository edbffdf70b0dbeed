#include "kernels/cuda/libraries/products.h"

#include "absl/strings/str_cat.h"
#include "kernels/device_failure.h"

namespace foreshard::kernels::cuda {
namespace {

constexpr float kOne = 1, kZero = 0;

}  // namespace

Products::~Products() {
  for (const auto& [key, known] : known_) Destroy(known);
}

void Products::Destroy(const Known& known) const {
  if (known.product != nullptr) blas_.cublasLtMatmulDescDestroy(known.product);
  for (const cublasLtMatrixLayout_t layout : {known.a, known.b, known.d}) {
    if (layout != nullptr) blas_.cublasLtMatrixLayoutDestroy(layout);
  }
}

absl::Status Products::Done(cublasStatus_t status, const Call& call) const {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string text = absl::StrCat(
      "a product of [", call.m, ", ", call.k, "] and [", call.k, ", ", call.n,
      "]: ", blas_.cublasLtGetStatusString(status), " (cuBLAS status ", static_cast<int>(status),
      ")");
  switch (status) {
    case CUBLAS_STATUS_ALLOC_FAILED: return DeviceFailure(absl::ResourceExhaustedError(text));
    case CUBLAS_STATUS_NOT_INITIALIZED: return DeviceFailure(absl::UnavailableError(text));
    default: return LibraryFailure(text);
  }
}

absl::Status Products::Describe(const Call& call, const void* bias, uint64_t workspace_bytes,
                                Known* known) {
  const cublasComputeType_t compute =
      precision_ == Precision::kTf32 && call.input == CUDA_R_32F ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                : CUBLAS_COMPUTE_32F;
  cublasStatus_t status = blas_.cublasLtMatmulDescCreate(&known->product, compute, CUDA_R_32F);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = blas_.cublasLtMatmulDescSetAttribute(known->product, attribute, &value,
                                                    sizeof value);
    }
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, call.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, call.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  if (call.bias) epilogue = call.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
  if (!call.bias && call.relu) epilogue = CUBLASLT_EPILOGUE_RELU;
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  if (call.bias) {
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, call.output);
    // The choice looks at its alignment.
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  const auto layout = [&](cublasLtMatrixLayout_t* made, cudaDataType_t type, uint64_t rows,
                          uint64_t columns) {
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = blas_.cublasLtMatrixLayoutCreate(made, type, rows, columns,
                                                static_cast<int64_t>(rows));
    }
  };
  layout(&known->a, call.input, call.transpose_a ? call.k : call.m,
         call.transpose_a ? call.m : call.k);
  layout(&known->b, call.input, call.transpose_b ? call.n : call.k,
         call.transpose_b ? call.k : call.n);
  layout(&known->d, call.output, call.m, call.n);
  cublasLtMatmulPreference_t preference = nullptr;
  if (status == CUBLAS_STATUS_SUCCESS) status = blas_.cublasLtMatmulPreferenceCreate(&preference);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = blas_.cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value,
                                                          sizeof value);
    }
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
  // What the flat vector and the arena keep to.
  const uint32_t alignment = 16;
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
  // Sums of parts in the order of atomic additions would be other bits each time.
  const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK & ~CUBLASLT_REDUCTION_SCHEME_INPLACE;
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
  cublasLtMatmulHeuristicResult_t best = {};
  int found = 0;
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = blas_.cublasLtMatmulAlgoGetHeuristic(handle_, known->product, known->a, known->b,
                                                  known->d, known->d, preference, 1, &best, &found);
  }
  if (preference != nullptr) blas_.cublasLtMatmulPreferenceDestroy(preference);
  if (status == CUBLAS_STATUS_SUCCESS && found == 0) status = CUBLAS_STATUS_NOT_SUPPORTED;
  known->algorithm = best.algo;
  return Done(status, call);
}

absl::StatusOr<Products::Known*> Products::Find(const Call& call, const void* bias,
                                                uint64_t workspace_bytes) {
  const auto found = known_.find({call, workspace_bytes});
  if (found != known_.end()) return &found->second;
  Known known;
  if (const absl::Status described = Describe(call, bias, workspace_bytes, &known); !described.ok()) {
    Destroy(known);
    return described;
  }
  return &known_.emplace(std::make_pair(call, workspace_bytes), known).first->second;
}

absl::Status Products::Run(const Call& call, const void* a, const void* b, const void* bias,
                           void* d, const Workspace& workspace, NativeStream stream) {
  const auto known = Find(call, bias, workspace.bytes);
  if (!known.ok()) return known.status();
  Known& k = **known;
  if (call.bias) {
    const cublasStatus_t set = blas_.cublasLtMatmulDescSetAttribute(
        k.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    if (set != CUBLAS_STATUS_SUCCESS) return Done(set, call);
  }
  return Done(blas_.cublasLtMatmul(handle_, k.product, &kOne, a, k.a, b, k.b,
                                   call.accumulate ? &kOne : &kZero, d, k.d, d, k.d, &k.algorithm,
                                   workspace.data, workspace.bytes, stream),
              call);
}

}  // namespace foreshard::kernels::cuda
