// resnet20: the CIFAR network of He et al. (arXiv 1512.03385, 4.2): three stages of three
// basic blocks with 16, 32 and 64 channels. Shortcuts between stages are without tensors
// (the paper's A, as in the PyTorch implementation that most results were made with): 269,722
// trainable numbers with 10 classes.
#include "absl/strings/str_cat.h"
#include "worker/models/models.h"
#include "worker/models/residual.h"

namespace foreshard {

absl::StatusOr<std::unique_ptr<Model>> MakeResnet20(const ModelOptions& options,
                                                    kernels::Device& device) {
  LayerList layers(options.input, Initialisation::kTorchvision);
  layers.Convolution("conv1", 16);
  layers.BatchNorm("bn1");
  layers.Relu();
  for (uint32_t stage = 0; stage < 3; ++stage) {
    for (uint32_t block = 0; block < 3; ++block) {
      BasicBlock(&layers, absl::StrCat("layer", stage + 1, ".", block),
                 {.channels = 16u << stage,
                  .stride = stage > 0 && block == 0 ? 2u : 1u,
                  .padded_shortcut = true});
    }
  }
  layers.GlobalAveragePool();
  layers.Dense("fc", options.classes, /*bias=*/true);
  return layers.Make("resnet20", options, device);
}

}  // namespace foreshard
