// mlp: dense layers with batch norm and ReLU, then the output. Options: widths
// are the units of each hidden layer.
#include "absl/strings/str_cat.h"
#include "worker/models/layered_model.h"
#include "worker/models/models.h"

namespace foreshard {

absl::StatusOr<std::unique_ptr<Model>> MakeMlp(const ModelOptions& options,
                                               kernels::Device& device) {
  if (options.dense_units != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model mlp: dense_units is ", options.dense_units, ", but its layers are given by widths"));
  }
  std::vector<uint32_t> widths = options.widths;
  if (widths.empty()) widths = {256, 128};
  LayerList layers(options.input);
  for (size_t i = 0; i < widths.size(); ++i) {
    layers.Dense(absl::StrCat("fc", i + 1), widths[i], /*bias=*/false);
    layers.BatchNorm(absl::StrCat("bn", i + 1));
    layers.Relu();
  }
  layers.Dense("output", options.classes, /*bias=*/true);
  return layers.Make("mlp", options, device);
}

}  // namespace foreshard
