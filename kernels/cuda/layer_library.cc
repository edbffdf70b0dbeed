#include "kernels/cuda/layer_library.h"

#include "absl/strings/str_cat.h"

namespace FORESHARD_CUDA_NAMESPACE {

std::string ConvolutionShape::Text() const {
  return absl::StrCat(examples, " x ", height, " x ", width, " x ", channels, ", ", kernel, " x ",
                      kernel, ", stride ", stride, ", padding ", padding, ", to ", out_height,
                      " x ", out_width, " x ", filters);
}

}  // namespace FORESHARD_CUDA_NAMESPACE
