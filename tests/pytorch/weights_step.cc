// Weights in PyTorch's layout out of our model, or into it, and what it then makes of a batch.
//
//   weights_step --model resnet20 --shape 32,32,3 --save FOLDER    (writes weights.safetensors)
//   weights_step --model resnet20 --shape 32,32,3 --load FOLDER    (reads weights.safetensors)
//
// Both write FOLDER/inputs.f32 [examples, height, width, channels] and FOLDER/losses.f32, the
// loss of each example for each label [examples, classes] in inference mode: up to a constant an
// example, the logits with their signs turned.
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/core/random.h"
#include "kernels/device.h"
#include "worker/models/model.h"
#include "worker/models/pytorch_weights.h"

namespace foreshard {
namespace {

constexpr uint32_t kExamples = 3;

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "weights_step: %s\n", status.ToString().c_str());
  return 1;
}

bool Write(const std::string& path, const std::vector<float>& values) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(float)));
  return file.good();
}

// First values moved, so that no norm is 1 and no mean 0; variances stay above 0.
void General(const Schema& schema, std::vector<float>* vector) {
  for (size_t t = 0; t < schema.tensors().size(); ++t) {
    if (schema.tensors()[t].shape.size() != 1) continue;
    for (uint64_t i = 0; i < schema.tensors()[t].elements(); ++i) {
      (*vector)[schema.offset(t) + i] += 0.4f * static_cast<float>(RandomUniform(1, 3 + t, i) - 0.5);
    }
  }
}

int Run(const ModelOptions& options, const std::string& folder, bool save) {
  auto device = kernels::MakeDevice("cpu");
  if (!device.ok()) return Fail(device.status());
  auto model = MakeModel(options, **device);
  if (!model.ok()) return Fail(model.status());
  std::vector<float> vector((*model)->schema().elements());
  const std::string file = folder + "/weights.safetensors";
  absl::Status status;
  if (save) {
    (*model)->InitialValues(1, vector.data());
    General((*model)->schema(), &vector);
    status = SavePytorchWeights(**model, vector, file);
  } else {
    status = LoadPytorchWeights(**model, file, vector.data());
  }
  if (!status.ok()) return Fail(status);
  std::vector<float> inputs, losses;
  for (uint64_t i = 0; i < kExamples * options.input.elements(); ++i) {
    inputs.push_back(static_cast<float>(RandomNormal(1, 1, i)));
  }
  const uint64_t size = options.input.elements();
  for (uint32_t e = 0; e < kExamples; ++e) {
    for (uint32_t label = 0; label < options.classes; ++label) {
      const Batch batch{.examples = 1,
                        .inputs = {inputs.begin() + static_cast<int64_t>(e * size),
                                   inputs.begin() + static_cast<int64_t>((e + 1) * size)},
                        .labels = {static_cast<int32_t>(label)}};
      const auto result = (*model)->Evaluate(batch, vector.data());
      if (!result.ok()) return Fail(result.status());
      losses.push_back(static_cast<float>(result->loss_sum));
    }
  }
  if (!Write(folder + "/inputs.f32", inputs) || !Write(folder + "/losses.f32", losses)) {
    return Fail(absl::InternalError(folder + ": cannot be written to"));
  }
  return 0;
}

}  // namespace
}  // namespace foreshard

int main(int argc, char** argv) {
  foreshard::ModelOptions options{.classes = 7, .batch_size = 1};
  std::vector<uint32_t> shape;
  std::string save, load;
  CLI::App app("Weights out of a model, or into it, and what it makes of a batch");
  app.add_option("--model", options.name)->required();
  app.add_option("--shape", shape, "height,width,channels")->delimiter(',')->expected(3)->required();
  auto* saving = app.add_option("--save", save, "an existing folder");
  app.add_option("--load", load, "an existing folder")->excludes(saving);
  CLI11_PARSE(app, argc, argv);
  options.input = {shape[0], shape[1], shape[2]};
  return foreshard::Run(options, save.empty() ? load : save, !save.empty());
}
