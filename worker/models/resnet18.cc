// resnet18: torchvision's, with a first convolution for small images (3 x 3, stride 1, no
// pooling after it): four stages of two basic blocks with 64 to 512 channels.
#include "absl/strings/str_cat.h"
#include "worker/models/models.h"
#include "worker/models/residual.h"

namespace foreshard {

absl::StatusOr<std::unique_ptr<Model>> MakeResnet18(const ModelOptions& options,
                                                    kernels::Device& device) {
  LayerList layers(options.input, Initialisation::kTorchvision);
  layers.Convolution("conv1", 64);
  layers.BatchNorm("bn1");
  layers.Relu();
  for (uint32_t stage = 0; stage < 4; ++stage) {
    for (uint32_t block = 0; block < 2; ++block) {
      BasicBlock(&layers, absl::StrCat("layer", stage + 1, ".", block),
                 {.channels = 64u << stage, .stride = stage > 0 && block == 0 ? 2u : 1u});
    }
  }
  layers.GlobalAveragePool();
  layers.Dense("fc", options.classes, /*bias=*/true);
  return layers.Make("resnet18", options, device);
}

}  // namespace foreshard
