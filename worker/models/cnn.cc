// cnn: 3 x 3 convolutions, each with 2 x 2 max pooling while the image is at
// least 4 x 4, batch norm and ReLU; then a dense layer with batch norm and ReLU,
// and the output. Pooling comes before batch norm, which then has a quarter of
// the work. Options: widths are the channels of each convolution, dense_units
// the units of the dense layer.
#include "absl/strings/str_cat.h"
#include "worker/models/layered_model.h"
#include "worker/models/models.h"

namespace foreshard {

absl::StatusOr<std::unique_ptr<Model>> MakeCnn(const ModelOptions& options,
                                               kernels::Device& device) {
  std::vector<uint32_t> widths = options.widths;
  if (widths.empty()) widths = {32, 64};
  const uint32_t dense_units = options.dense_units > 0 ? options.dense_units : 128;
  LayerList layers(options.input);
  for (size_t i = 0; i < widths.size(); ++i) {
    layers.Convolution(absl::StrCat("conv", i + 1), widths[i]);
    if (layers.shape().height >= 4 && layers.shape().width >= 4) layers.MaxPool();
    layers.BatchNorm(absl::StrCat("bn", i + 1));
    layers.Relu();
  }
  layers.Dense("fc1", dense_units, /*bias=*/false);
  layers.BatchNorm(absl::StrCat("bn", widths.size() + 1));
  layers.Relu();
  layers.Dense("output", options.classes, /*bias=*/true);
  return layers.Make("cnn", options, device);
}

}  // namespace foreshard
