#include "kernels/cuda/libraries/nvidia_library.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/libraries/convolutions.h"
#include "kernels/cuda/libraries/cudnn_functions.h"
#include "kernels/cuda/libraries/products.h"

namespace foreshard::kernels::cuda {
namespace {

constexpr float kOne = 1, kZero = 0;

int Number(uint32_t value) { return static_cast<int>(value); }

// A descriptor for the duration of a call: describing costs the host under a microsecond, and
// captured steps do it once.
class Tensor {
 public:
  Tensor(const CudnnFunctions& cudnn, cudnnDataType_t type, uint32_t n, uint32_t h, uint32_t w,
         uint32_t c)
      : cudnn_(cudnn) {
    status_ = cudnn_.cudnnCreateTensorDescriptor(&tensor_);
    if (status_ == CUDNN_STATUS_SUCCESS) {
      status_ = cudnn_.cudnnSetTensor4dDescriptor(tensor_, CUDNN_TENSOR_NHWC, type, Number(n),
                                                  Number(c), Number(h), Number(w));
    }
  }
  ~Tensor() {
    if (tensor_ != nullptr) cudnn_.cudnnDestroyTensorDescriptor(tensor_);
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  cudnnTensorDescriptor_t get() const { return tensor_; }
  cudnnStatus_t status() const { return status_; }

 private:
  const CudnnFunctions& cudnn_;
  cudnnTensorDescriptor_t tensor_ = nullptr;
  cudnnStatus_t status_ = CUDNN_STATUS_SUCCESS;
};

class Pooling {
 public:
  Pooling(const CudnnFunctions& cudnn, const PoolShape& shape) : cudnn_(cudnn) {
    status_ = cudnn_.cudnnCreatePoolingDescriptor(&pooling_);
    if (status_ == CUDNN_STATUS_SUCCESS) {
      status_ = cudnn_.cudnnSetPooling2dDescriptor(
          pooling_,
          shape.average ? CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING
                        : CUDNN_POOLING_MAX_DETERMINISTIC,
          CUDNN_PROPAGATE_NAN, Number(shape.window_height), Number(shape.window_width),
          Number(shape.padding), Number(shape.padding), Number(shape.stride),
          Number(shape.stride));
    }
  }
  ~Pooling() {
    if (pooling_ != nullptr) cudnn_.cudnnDestroyPoolingDescriptor(pooling_);
  }
  Pooling(const Pooling&) = delete;
  Pooling& operator=(const Pooling&) = delete;

  cudnnPoolingDescriptor_t get() const { return pooling_; }
  cudnnStatus_t status() const { return status_; }

 private:
  const CudnnFunctions& cudnn_;
  cudnnPoolingDescriptor_t pooling_ = nullptr;
  cudnnStatus_t status_ = CUDNN_STATUS_SUCCESS;
};

class NvidiaLibrary final : public LayerLibrary {
 public:
  NvidiaLibrary(const CudnnFunctions& cudnn, const CublasLtFunctions& blas, Precision precision)
      : cudnn_(cudnn), blas_(blas), precision_(precision) {}
  ~NvidiaLibrary() override {
    convolutions_.reset();
    products_.reset();
    if (cudnn_handle_ != nullptr) cudnn_.cudnnDestroy(cudnn_handle_);
    if (blas_handle_ != nullptr) blas_.cublasLtDestroy(blas_handle_);
  }

  absl::Status Start() {
    const absl::Status started =
        CudnnStatus(cudnn_, cudnn_.cudnnCreate(&cudnn_handle_), "starting cuDNN");
    if (!started.ok()) return started;
    if (const cublasStatus_t status = blas_.cublasLtCreate(&blas_handle_);
        status != CUBLAS_STATUS_SUCCESS) {
      return absl::UnavailableError(
          absl::StrCat("starting cuBLASLt: ", blas_.cublasLtGetStatusString(status)));
    }
    convolutions_ = std::make_unique<Convolutions>(cudnn_, cudnn_handle_, precision_);
    products_ = std::make_unique<Products>(blas_, blas_handle_, precision_);
    const size_t version = cudnn_.cudnnGetVersion();
    const size_t blas = blas_.cublasLtGetVersion();
    description_ = absl::StrCat("cuDNN ", version / 10000, ".", version / 100 % 100, ".",
                                version % 100, ", cuBLASLt ", blas / 10000, ".",
                                blas / 100 % 100);
    return absl::OkStatus();
  }

  const std::string& description() const override { return description_; }
  Storage storage() const override {
    return precision_ == Precision::kBf16 ? Storage::kBf16 : Storage::kFp32;
  }
  bool rounds_products() const override { return precision_ == Precision::kTf32; }

  absl::StatusOr<uint64_t> ConvolutionWorkspace(ConvolutionPass pass,
                                                const ConvolutionShape& shape) override {
    return convolutions_->WorkspaceBytes(pass, shape);
  }
  absl::Status ConvolutionForward(const ConvolutionShape& shape, const void* x, const void* w,
                                  void* y, const Workspace& workspace,
                                  NativeStream stream) override {
    if (const absl::Status set = Use(stream); !set.ok()) return set;
    return convolutions_->Forward(shape, x, w, y, workspace);
  }
  absl::Status ConvolutionBackwardData(const ConvolutionShape& shape, const void* w,
                                       const void* dy, void* dx, const Workspace& workspace,
                                       NativeStream stream) override {
    if (const absl::Status set = Use(stream); !set.ok()) return set;
    return convolutions_->BackwardData(shape, w, dy, dx, workspace);
  }
  absl::Status ConvolutionBackwardFilter(const ConvolutionShape& shape, const void* x,
                                         const void* dy, bool accumulate, void* dw,
                                         const Workspace& workspace,
                                         NativeStream stream) override {
    if (const absl::Status set = Use(stream); !set.ok()) return set;
    return convolutions_->BackwardFilter(shape, x, dy, accumulate, dw, workspace);
  }

  absl::Status PoolForward(const PoolShape& shape, const void* x, void* y,
                           NativeStream stream) override {
    if (const absl::Status set = Use(stream); !set.ok()) return set;
    const Tensor in(cudnn_, Type(), shape.examples, shape.height, shape.width, shape.channels);
    const Tensor out(cudnn_, Type(), shape.examples, shape.out_height, shape.out_width,
                     shape.channels);
    const Pooling pooling(cudnn_, shape);
    cudnnStatus_t status = First(First(in.status(), out.status()), pooling.status());
    if (status == CUDNN_STATUS_SUCCESS) {
      status = cudnn_.cudnnPoolingForward(cudnn_handle_, pooling.get(), &kOne, in.get(), x, &kZero,
                                          out.get(), y);
    }
    return CudnnStatus(cudnn_, status, "pooling");
  }
  absl::Status PoolBackward(const PoolShape& shape, const void* x, const void* y, const void* dy,
                            void* dx, NativeStream stream) override {
    if (const absl::Status set = Use(stream); !set.ok()) return set;
    const Tensor in(cudnn_, Type(), shape.examples, shape.height, shape.width, shape.channels);
    const Tensor out(cudnn_, Type(), shape.examples, shape.out_height, shape.out_width,
                     shape.channels);
    const Pooling pooling(cudnn_, shape);
    cudnnStatus_t status = First(First(in.status(), out.status()), pooling.status());
    if (status == CUDNN_STATUS_SUCCESS) {
      status = cudnn_.cudnnPoolingBackward(cudnn_handle_, pooling.get(), &kOne, out.get(), y,
                                           out.get(), dy, in.get(), x, &kZero, in.get(), dx);
    }
    return CudnnStatus(cudnn_, status, "pooling's gradient");
  }

  uint64_t DenseWorkspace() const override { return Products::kWorkspaceBytes; }
  // Row-major matrices are column-major transposed ones, so everything is the other way round:
  // y^T [units, rows] = w [units, inputs] * x^T [inputs, rows].
  absl::Status DenseForward(const DenseShape& shape, const void* x, const void* w,
                            const void* bias, bool relu, void* y, bool y_is_fp32,
                            const Workspace& workspace, NativeStream stream) override {
    return products_->Run({.m = shape.units,
                           .n = shape.rows,
                           .k = shape.inputs,
                           .transpose_a = true,
                           .input = MatrixType(),
                           .output = y_is_fp32 ? CUDA_R_32F : MatrixType(),
                           .bias = bias != nullptr,
                           .relu = relu},
                          w, x, bias, y, workspace, stream);
  }
  // dx^T [inputs, rows] = w^T [inputs, units] * dy^T [units, rows].
  absl::Status DenseBackwardData(const DenseShape& shape, const void* w, const void* dy, void* dx,
                                 const Workspace& workspace, NativeStream stream) override {
    return products_->Run({.m = shape.inputs,
                           .n = shape.rows,
                           .k = shape.units,
                           .input = MatrixType(),
                           .output = MatrixType()},
                          w, dy, nullptr, dx, workspace, stream);
  }
  // dw^T [inputs, units] = x^T [inputs, rows] * dy [rows, units].
  absl::Status DenseBackwardWeight(const DenseShape& shape, const void* x, const void* dy,
                                   bool accumulate, float* dw, const Workspace& workspace,
                                   NativeStream stream) override {
    return products_->Run({.m = shape.inputs,
                           .n = shape.units,
                           .k = shape.rows,
                           .transpose_b = true,
                           .input = MatrixType(),
                           .output = CUDA_R_32F,
                           .accumulate = accumulate},
                          x, dy, nullptr, dw, workspace, stream);
  }

  absl::Status Multiply(uint64_t m, uint64_t n, uint64_t k, const float* a, const float* b,
                        float* c, NativeStream stream) override {
    return products_->Run({.m = n, .n = m, .k = k}, b, a, nullptr, c, {}, stream);
  }

 private:
  cudnnDataType_t Type() const {
    return precision_ == Precision::kBf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
  }
  cudaDataType_t MatrixType() const {
    return precision_ == Precision::kBf16 ? CUDA_R_16BF : CUDA_R_32F;
  }
  static cudnnStatus_t First(cudnnStatus_t a, cudnnStatus_t b) {
    return a != CUDNN_STATUS_SUCCESS ? a : b;
  }
  absl::Status Use(NativeStream stream) {
    return CudnnStatus(cudnn_, cudnn_.cudnnSetStream(cudnn_handle_, stream),
                       "giving cuDNN a stream");
  }

  const CudnnFunctions cudnn_;
  const CublasLtFunctions blas_;
  const Precision precision_;
  cudnnHandle_t cudnn_handle_ = nullptr;
  cublasLtHandle_t blas_handle_ = nullptr;
  std::unique_ptr<Convolutions> convolutions_;
  std::unique_ptr<Products> products_;
  std::string description_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LayerLibrary>> MakeNvidiaLibrary(Precision precision) {
  const auto cudnn = LoadCudnn();
  if (!cudnn.ok()) return cudnn.status();
  const auto blas = LoadCublasLt();
  if (!blas.ok()) return blas.status();
  auto library = std::make_unique<NvidiaLibrary>(*cudnn, *blas, precision);
  if (const absl::Status started = library->Start(); !started.ok()) return started;
  return library;
}

}  // namespace foreshard::kernels::cuda
