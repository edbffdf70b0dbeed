// Weights in PyTorch's layout out of our model, or into it, and what it then makes of a batch.
//
//   weights_step --model resnet20 --shape 32,32,3 --save FOLDER    (writes weights.safetensors)
//   weights_step --model resnet20 --shape 32,32,3 --load FOLDER    (reads weights.safetensors)
//
// Both write FOLDER/inputs.f32 [examples, height, width, channels] and FOLDER/losses.f32, the
// loss of each example for each label [examples, classes] in inference mode: up to a constant an
// example, the logits with their signs turned.
//
// Of a BERT --shape is the sequence's length, 1, 1; --targets and --next-sentence are its own. There
// are tokens.i32, segments.i32 and lengths.i32, target_positions.i32 and targets.i32 instead of
// inputs, the losses are those of each target alone [examples, targets], and side_losses.f32 are
// those of both labels [examples, 2].
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/core/random.h"
#include "kernels/device.h"
#include "worker/data/random_text.h"
#include "worker/models/model.h"
#include "worker/models/pytorch_weights.h"

namespace foreshard {
namespace {

constexpr uint32_t kExamples = 3;

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "weights_step: %s\n", status.ToString().c_str());
  return 1;
}

template <typename T>
bool Write(const std::string& path, const std::vector<T>& values) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(T)));
  return file.good();
}

int WroteNothing(const std::string& folder) {
  return Fail(absl::InternalError(folder + ": cannot be written to"));
}

// What a text model makes of made-up sequences.
int RunText(Model& model, ModelOptions options, const float* vector, const std::string& folder) {
  options.batch_size = kExamples;
  const Batch all = RandomText(options, 1, /*full=*/false);
  const uint64_t positions = options.input.height, targets = options.text.targets;
  std::vector<float> losses, side_losses;
  const auto part = [](const std::vector<int32_t>& of, uint64_t e, uint64_t n) {
    return std::vector<int32_t>(of.begin() + static_cast<int64_t>(e * n), of.begin() + static_cast<int64_t>((e + 1) * n));
  };
  for (uint64_t e = 0; e < kExamples; ++e) {
    Batch batch{.examples = 1,
                .labels = {0},
                .tokens = part(all.tokens, e, positions),
                .segments = part(all.segments, e, positions),
                .lengths = {all.lengths[e]},
                .target_positions = part(all.target_positions, e, targets),
                .targets = std::vector<int32_t>(targets, kernels::kNoTarget)};
    for (uint64_t t = 0; t < targets; ++t) {
      batch.targets[t] = all.targets[e * targets + t];
      const auto result = model.Evaluate(batch, vector);
      if (!result.ok()) return Fail(result.status());
      losses.push_back(static_cast<float>(result->loss_sum));
      batch.targets[t] = kernels::kNoTarget;
    }
    for (int32_t label = 0; label < 2 && options.text.next_sentence; ++label) {
      batch.labels = {label};
      const auto result = model.Evaluate(batch, vector);
      if (!result.ok()) return Fail(result.status());
      side_losses.push_back(static_cast<float>(result->side_loss_sum));
    }
  }
  const bool written = Write(folder + "/tokens.i32", all.tokens) && Write(folder + "/segments.i32", all.segments) &&
                       Write(folder + "/lengths.i32", all.lengths) && Write(folder + "/targets.i32", all.targets) &&
                       Write(folder + "/target_positions.i32", all.target_positions) &&
                       Write(folder + "/losses.f32", losses) && Write(folder + "/side_losses.f32", side_losses);
  return written ? 0 : WroteNothing(folder);
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
  if (options.text.targets > 0) return RunText(**model, options, vector.data(), folder);
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
    return WroteNothing(folder);
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
  app.add_option("--targets", options.text.targets, "of a sequence");
  app.add_flag("--next-sentence", options.text.next_sentence, "the second objective");
  CLI11_PARSE(app, argc, argv);
  options.input = {shape[0], shape[1], shape[2]};
  return foreshard::Run(options, save.empty() ? load : save, !save.empty());
}
