#include "kernels/cuda/libraries/convolutions.h"

#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "kernels/device_failure.h"

namespace foreshard::kernels::cuda {
namespace {

constexpr int kMostAlgorithms = 16;
constexpr float kOne = 1, kZero = 0;

const char* NameOf(ConvolutionPass pass) {
  switch (pass) {
    case ConvolutionPass::kForward: return "convolution";
    case ConvolutionPass::kBackwardData: return "convolution's gradient of its input";
    case ConvolutionPass::kBackwardFilter: return "convolution's gradient of its filters";
  }
  return "convolution";
}

}  // namespace

absl::Status CudnnStatus(const CudnnFunctions& cudnn, cudnnStatus_t status,
                         absl::string_view what) {
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  // Of the thread's last failure, in cuDNN's own words: often the one hint at what it did not like.
  char reason[256] = "";
  cudnn.cudnnGetLastErrorString(reason, sizeof reason);
  reason[sizeof reason - 1] = '\0';
  const std::string text = absl::StrCat(what, ": ", cudnn.cudnnGetErrorString(status), " (cuDNN status ",
                                        static_cast<int>(status), *reason == '\0' ? "" : ": ", reason, ")");
  switch (status) {
    case CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER:
    case CUDNN_STATUS_EXECUTION_FAILED_CUDART:
    case CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER:
    case CUDNN_STATUS_NOT_INITIALIZED: return DeviceFailure(absl::UnavailableError(text));
    case CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED:
      return DeviceFailure(absl::ResourceExhaustedError(text));
    default: return LibraryFailure(text);
  }
}

Convolutions::~Convolutions() {
  for (const auto& [shape, known] : known_) Destroy(known);
}

void Convolutions::Destroy(const Known& known) const {
  if (known.x != nullptr) cudnn_.cudnnDestroyTensorDescriptor(known.x);
  if (known.y != nullptr) cudnn_.cudnnDestroyTensorDescriptor(known.y);
  if (known.w != nullptr) cudnn_.cudnnDestroyFilterDescriptor(known.w);
  if (known.convolution != nullptr) cudnn_.cudnnDestroyConvolutionDescriptor(known.convolution);
}

absl::Status Convolutions::Done(cudnnStatus_t status, const char* what,
                                const ConvolutionShape& shape) const {
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  return CudnnStatus(cudnn_, status, absl::StrCat(what, " of ", shape.Text()));
}

absl::StatusOr<Convolutions::Known*> Convolutions::Find(const ConvolutionShape& shape) {
  if (const auto found = known_.find(shape); found != known_.end()) return &found->second;
  Known known;
  const cudnnDataType_t type =
      precision_ == Precision::kBf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
  const auto number = [](uint32_t value) { return static_cast<int>(value); };
  cudnnStatus_t status = cudnn_.cudnnCreateTensorDescriptor(&known.x);
  if (status == CUDNN_STATUS_SUCCESS) status = cudnn_.cudnnCreateTensorDescriptor(&known.y);
  if (status == CUDNN_STATUS_SUCCESS) status = cudnn_.cudnnCreateFilterDescriptor(&known.w);
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnn_.cudnnCreateConvolutionDescriptor(&known.convolution);
  }
  // Dimensions are given as N, C, H, W whatever the layout.
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnn_.cudnnSetTensor4dDescriptor(known.x, CUDNN_TENSOR_NHWC, type,
                                               number(shape.examples), number(shape.channels),
                                               number(shape.height), number(shape.width));
  }
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnn_.cudnnSetTensor4dDescriptor(known.y, CUDNN_TENSOR_NHWC, type,
                                               number(shape.examples), number(shape.filters),
                                               number(shape.out_height), number(shape.out_width));
  }
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnn_.cudnnSetFilter4dDescriptor(known.w, type, CUDNN_TENSOR_NHWC,
                                               number(shape.filters), number(shape.channels),
                                               number(shape.kernel), number(shape.kernel));
  }
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnn_.cudnnSetConvolution2dDescriptor(
        known.convolution, number(shape.padding), number(shape.padding), number(shape.stride),
        number(shape.stride), 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
  }
  if (status != CUDNN_STATUS_SUCCESS) {
    Destroy(known);
    return Done(status, "describing a convolution", shape);
  }
  return &known_.emplace(shape, known).first->second;
}

absl::StatusOr<Convolutions::Choice> Convolutions::Choose(ConvolutionPass pass,
                                                          const ConvolutionShape& shape,
                                                          const Known& known) const {
  // TF32 is cuDNN's default on cards that have it; FMA alone is fp32 throughout.
  const cudnnMathType_t math =
      precision_ == Precision::kFp32 ? CUDNN_FMA_MATH
      : precision_ == Precision::kTf32 ? CUDNN_DEFAULT_MATH : CUDNN_TENSOR_OP_MATH;
  cudnnStatus_t status = cudnn_.cudnnSetConvolutionMathType(known.convolution, math);
  Choice choice = {.made = true, .math = math};
  size_t least = SIZE_MAX;  // workspace of the choice
  std::string passed_over;  // for the error
  // `list`(count, listed) and `measure`(algorithm, bytes) ask cuDNN about one direction. The list
  // begins with what cuDNN takes for fastest.
  const auto choose = [&]<typename Performance>(std::type_identity<Performance>, auto list, auto measure) {
    Performance listed[kMostAlgorithms];
    int count = 0;
    status = list(&count, listed);
    if (status != CUDNN_STATUS_SUCCESS) return;
    for (int i = 0; i < count && least > kMostWorkspace; ++i) {
      // Where fp32 is asked for the list may still say "default", which would be TF32.
      const cudnnMathType_t with = precision_ == Precision::kFp32 ? CUDNN_FMA_MATH : listed[i].mathType;
      cudnnStatus_t usable = listed[i].status;
      size_t bytes = 0;
      if (usable == CUDNN_STATUS_SUCCESS) usable = cudnn_.cudnnSetConvolutionMathType(known.convolution, with);
      if (usable == CUDNN_STATUS_SUCCESS) usable = measure(listed[i].algo, &bytes);
      const bool same_bits = listed[i].determinism == CUDNN_DETERMINISTIC;
      if (usable == CUDNN_STATUS_SUCCESS && same_bits && bytes < least) {
        least = bytes;
        choice.algorithm = listed[i].algo;
        choice.math = with;
        choice.workspace_bytes = bytes;
      }
      absl::StrAppend(&passed_over, i > 0 ? "; " : "", static_cast<int>(listed[i].algo), ": ",
                      usable != CUDNN_STATUS_SUCCESS ? cudnn_.cudnnGetErrorString(usable)
                      : same_bits                    ? absl::StrCat(bytes >> 20, " MiB")
                                                     : std::string("other bits each time"));
    }
  };
  if (status == CUDNN_STATUS_SUCCESS && pass == ConvolutionPass::kForward) {
    choose(
        std::type_identity<cudnnConvolutionFwdAlgoPerf_t>(),
        [&](int* count, cudnnConvolutionFwdAlgoPerf_t* listed) {
          return cudnn_.cudnnGetConvolutionForwardAlgorithm_v7(handle_, known.x, known.w, known.convolution, known.y,
                                                               kMostAlgorithms, count, listed);
        },
        [&](cudnnConvolutionFwdAlgo_t algorithm, size_t* bytes) {
          return cudnn_.cudnnGetConvolutionForwardWorkspaceSize(handle_, known.x, known.w, known.convolution, known.y,
                                                                algorithm, bytes);
        });
  } else if (status == CUDNN_STATUS_SUCCESS && pass == ConvolutionPass::kBackwardData) {
    choose(
        std::type_identity<cudnnConvolutionBwdDataAlgoPerf_t>(),
        [&](int* count, cudnnConvolutionBwdDataAlgoPerf_t* listed) {
          return cudnn_.cudnnGetConvolutionBackwardDataAlgorithm_v7(
              handle_, known.w, known.y, known.convolution, known.x, kMostAlgorithms, count, listed);
        },
        [&](cudnnConvolutionBwdDataAlgo_t algorithm, size_t* bytes) {
          return cudnn_.cudnnGetConvolutionBackwardDataWorkspaceSize(handle_, known.w, known.y, known.convolution,
                                                                     known.x, algorithm, bytes);
        });
  } else if (status == CUDNN_STATUS_SUCCESS) {
    choose(
        std::type_identity<cudnnConvolutionBwdFilterAlgoPerf_t>(),
        [&](int* count, cudnnConvolutionBwdFilterAlgoPerf_t* listed) {
          return cudnn_.cudnnGetConvolutionBackwardFilterAlgorithm_v7(
              handle_, known.x, known.y, known.convolution, known.w, kMostAlgorithms, count, listed);
        },
        [&](cudnnConvolutionBwdFilterAlgo_t algorithm, size_t* bytes) {
          return cudnn_.cudnnGetConvolutionBackwardFilterWorkspaceSize(handle_, known.x, known.y, known.convolution,
                                                                       known.w, algorithm, bytes);
        });
  }
  if (status != CUDNN_STATUS_SUCCESS) return Done(status, NameOf(pass), shape);
  if (least == SIZE_MAX) {
    return absl::InternalError(absl::StrCat(NameOf(pass), " of ", shape.Text(),
                                            ": cuDNN has no algorithm that gives the same bits each time (", passed_over,
                                            ")"));
  }
  return choice;
}

absl::StatusOr<Convolutions::Known*> Convolutions::Prepare(ConvolutionPass pass,
                                                           const ConvolutionShape& shape) {
  auto known = Find(shape);
  if (!known.ok()) return known.status();
  Choice& choice = (*known)->choices[static_cast<size_t>(pass)];
  if (!choice.made) {
    auto made = Choose(pass, shape, **known);
    if (!made.ok()) return made.status();
    choice = *made;
  }
  const cudnnStatus_t status =
      cudnn_.cudnnSetConvolutionMathType((*known)->convolution, choice.math);
  if (status != CUDNN_STATUS_SUCCESS) return Done(status, NameOf(pass), shape);
  return *known;
}

absl::StatusOr<uint64_t> Convolutions::WorkspaceBytes(ConvolutionPass pass,
                                                      const ConvolutionShape& shape) {
  const auto known = Prepare(pass, shape);
  if (!known.ok()) return known.status();
  return (*known)->choices[static_cast<size_t>(pass)].workspace_bytes;
}

absl::Status Convolutions::Forward(const ConvolutionShape& shape, const void* x, const void* w,
                                   void* y, const Workspace& workspace) {
  const auto known = Prepare(ConvolutionPass::kForward, shape);
  if (!known.ok()) return known.status();
  const Known& k = **known;
  return Done(cudnn_.cudnnConvolutionForward(
                  handle_, &kOne, k.x, x, k.w, w, k.convolution,
                  static_cast<cudnnConvolutionFwdAlgo_t>(k.choices[0].algorithm), workspace.data,
                  workspace.bytes, &kZero, k.y, y),
              NameOf(ConvolutionPass::kForward), shape);
}

absl::Status Convolutions::BackwardData(const ConvolutionShape& shape, const void* w,
                                        const void* dy, void* dx, const Workspace& workspace) {
  const auto known = Prepare(ConvolutionPass::kBackwardData, shape);
  if (!known.ok()) return known.status();
  const Known& k = **known;
  return Done(cudnn_.cudnnConvolutionBackwardData(
                  handle_, &kOne, k.w, w, k.y, dy, k.convolution,
                  static_cast<cudnnConvolutionBwdDataAlgo_t>(k.choices[1].algorithm),
                  workspace.data, workspace.bytes, &kZero, k.x, dx),
              NameOf(ConvolutionPass::kBackwardData), shape);
}

absl::Status Convolutions::BackwardFilter(const ConvolutionShape& shape, const void* x,
                                          const void* dy, bool accumulate, void* dw,
                                          const Workspace& workspace) {
  const auto known = Prepare(ConvolutionPass::kBackwardFilter, shape);
  if (!known.ok()) return known.status();
  const Known& k = **known;
  return Done(cudnn_.cudnnConvolutionBackwardFilter(
                  handle_, &kOne, k.x, x, k.y, dy, k.convolution,
                  static_cast<cudnnConvolutionBwdFilterAlgo_t>(k.choices[2].algorithm),
                  workspace.data, workspace.bytes, accumulate ? &kOne : &kZero, k.w, dw),
              NameOf(ConvolutionPass::kBackwardFilter), shape);
}

}  // namespace foreshard::kernels::cuda
