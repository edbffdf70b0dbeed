// wrn16_4: the wide residual network of Zagoruyko and Komodakis (arXiv 1605.07146) with 16
// layers, four times as wide, without dropout: three stages of two pre-activation blocks with
// 64, 128 and 256 channels; the last batch norm is "bn1".
#include "absl/strings/str_cat.h"
#include "worker/models/models.h"
#include "worker/models/residual.h"

namespace foreshard {

absl::StatusOr<std::unique_ptr<Model>> MakeWrn16By4(const ModelOptions& options,
                                                    kernels::Device& device) {
  LayerList layers(options.input, Initialisation::kTorchvision);
  layers.Convolution("conv1", 16);
  for (uint32_t stage = 0; stage < 3; ++stage) {
    for (uint32_t block = 0; block < 2; ++block) {
      PreActivationBlock(
          &layers, absl::StrCat("layer", stage + 1, ".", block),
          {.channels = 64u << stage, .stride = stage > 0 && block == 0 ? 2u : 1u});
    }
  }
  layers.BatchNorm("bn1");
  layers.Relu();
  layers.GlobalAveragePool();
  layers.Dense("fc", options.classes, /*bias=*/true);
  return layers.Make("wrn16_4", options, device);
}

}  // namespace foreshard
