// resnet50: torchvision's (a bottleneck's stride is in its 3 x 3 convolution), for images of
// ImageNet's size: 7 x 7 convolution and max pooling, then bottlenecks in four stages.
#include "absl/strings/str_cat.h"
#include "worker/models/models.h"
#include "worker/models/residual.h"

namespace foreshard {

absl::StatusOr<std::unique_ptr<Model>> MakeResnet50(const ModelOptions& options,
                                                    kernels::Device& device) {
  constexpr uint32_t kBlocks[] = {3, 4, 6, 3};
  LayerList layers(options.input, Initialisation::kTorchvision);
  layers.Convolution("conv1", 64, /*kernel=*/7, /*stride=*/2);
  layers.BatchNorm("bn1");
  layers.Relu();
  layers.MaxPool({.size = 3, .stride = 2, .padding = 1});
  for (uint32_t stage = 0; stage < 4; ++stage) {
    for (uint32_t block = 0; block < kBlocks[stage]; ++block) {
      Bottleneck(&layers, absl::StrCat("layer", stage + 1, ".", block),
                 {.channels = 64u << stage, .stride = stage > 0 && block == 0 ? 2u : 1u});
    }
  }
  layers.GlobalAveragePool();
  layers.Dense("fc", options.classes, /*bias=*/true);
  return layers.Make("resnet50", options, device);
}

}  // namespace foreshard
