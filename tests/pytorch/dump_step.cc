// One training step of a model, written down for another framework: weights and batch that
// it began with, loss, gradient and statistics that came of it, and the loss in inference mode
// with those statistics.
//
//   dump_step --model resnet20 --shape 32,32,3 --batch 8 --out FOLDER
//
// --precision is that of layers on a GPU; step.json says how the step was computed (the CPU: fp32).
// Of a BERT --shape is the sequence's length, 1, 1; --targets and --next-sentence are its own.
//
// FOLDER/step.json names what lies in the raw little-endian files beside it: inputs.f32
// [examples, height, width, channels], labels.i32, and vector.f32, gradient.f32 and
// statistics.f32 with the tensors at the offsets that it gives. With text there are tokens.i32,
// segments.i32, lengths.i32, target_positions.i32 and targets.i32 instead of inputs.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "common/core/catalogue.h"
#include "common/core/random.h"
#include "kernels/device.h"
#include "nlohmann/json.hpp"
#include "worker/data/random_text.h"
#include "worker/models/model.h"

namespace foreshard {
namespace {

// What scales a bottleneck's branch before it is added to the shortcut.
constexpr char kLastOfBranch[] = ".bn3.weight";

struct Flags {
  ModelOptions model;
  std::vector<uint32_t> shape = {32, 32, 3};
  std::string device = "cpu", precision = "fp32", out;
  uint64_t seed = 1;
  float branches = 1;
};

template <typename Value>
bool Write(const std::string& path, const std::vector<Value>& values) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(Value)));
  return file.good();
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "dump_step: %s\n", status.ToString().c_str());
  return 1;
}

Batch MakeBatch(const Flags& flags) {
  if (ReadsText(flags.model.name)) return RandomText(flags.model, flags.seed, /*full=*/false);
  Batch batch{.examples = flags.model.batch_size};
  for (uint64_t i = 0; i < batch.examples * flags.model.input.elements(); ++i) {
    batch.inputs.push_back(static_cast<float>(RandomNormal(flags.seed, 1, i)));
  }
  for (uint64_t i = 0; i < batch.examples; ++i) {
    batch.labels.push_back(
        static_cast<int32_t>(RandomBits(flags.seed, 2, i) % flags.model.classes));
  }
  return batch;
}

int Dump(const Flags& flags) {
  const auto precision = kernels::ParsePrecision(flags.precision);
  if (!precision.ok()) return Fail(precision.status());
  auto device = kernels::MakeDevice(flags.device, {.precision = *precision});
  if (!device.ok()) return Fail(device.status());
  auto model = MakeModel(flags.model, **device);
  if (!model.ok()) return Fail(model.status());
  const Schema& schema = (*model)->schema();
  std::vector<float> vector(schema.elements()), gradient(schema.trainable_elements());
  std::vector<float> statistics(schema.statistic_elements());
  (*model)->InitialValues(flags.seed, vector.data());
  // In general position: no weight of a batch norm is 1, no bias and no mean 0.
  for (size_t t = 0; t < schema.tensors().size(); ++t) {
    if (schema.tensors()[t].shape.size() != 1) continue;
    for (uint64_t i = 0; i < schema.tensors()[t].elements(); ++i) {
      float& value = vector[schema.offset(t) + i];
      value += 0.2f * static_cast<float>(RandomUniform(flags.seed, 3 + t, i) - 0.5);
      if (absl::EndsWith(schema.tensors()[t].name, kLastOfBranch)) value *= flags.branches;
    }
  }
  const Batch batch = MakeBatch(flags);
  OpenGate gate;
  auto step = (*model)->ForwardBackward(batch, vector.data(), gate, 1, false, gradient.data(),
                                        statistics.data());
  if (!step.ok()) return Fail(step.status());
  // In inference with the batch's own statistics: others would let a deep network overflow.
  std::vector<float> recalibrated = vector;
  std::copy(statistics.begin(), statistics.end(),
            recalibrated.begin() + static_cast<int64_t>(schema.trainable_elements()));
  auto evaluation = (*model)->Evaluate(batch, recalibrated.data());
  if (!evaluation.ok()) return Fail(evaluation.status());

  nlohmann::ordered_json json;
  const auto examples = static_cast<double>(batch.examples);
  json["model"] = flags.model.name;
  json["device"] = (*device)->description();
  json["precision"] = (*device)->name() == "cpu" ? "fp32" : flags.precision;
  json["classes"] = flags.model.classes;
  json["examples"] = batch.examples;
  json["shape"] = flags.shape;
  const auto mean = [&](const StepResult& result) {
    return result.loss_sum / static_cast<double>(result.count) + result.side_loss_sum / examples;
  };
  json["loss"] = mean(*step);
  json["correct"] = step->correct;
  json["evaluation_loss"] = mean(*evaluation);
  json["targets"] = flags.model.text.targets;
  json["tensors"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < schema.tensors().size(); ++i) {
    const TensorSpec& tensor = schema.tensors()[i];
    json["tensors"].push_back({{"name", tensor.name},
                               {"shape", tensor.shape},
                               {"trainable", tensor.kind == TensorKind::kTrainable},
                               {"offset", schema.offset(i)}});
  }
  const std::string folder = flags.out + "/";
  std::ofstream text(folder + "step.json");
  text << json.dump(1) << "\n";
  if (!text.good() || !Write(folder + "inputs.f32", batch.inputs) ||
      !Write(folder + "labels.i32", batch.labels) || !Write(folder + "vector.f32", vector) ||
      !Write(folder + "tokens.i32", batch.tokens) || !Write(folder + "segments.i32", batch.segments) ||
      !Write(folder + "lengths.i32", batch.lengths) || !Write(folder + "targets.i32", batch.targets) ||
      !Write(folder + "target_positions.i32", batch.target_positions) ||
      !Write(folder + "gradient.f32", gradient) || !Write(folder + "statistics.f32", statistics)) {
    return Fail(absl::InternalError(folder + ": cannot be written to"));
  }
  return 0;
}

}  // namespace
}  // namespace foreshard

int main(int argc, char** argv) {
  foreshard::Flags flags;
  flags.model.classes = 10;
  flags.model.batch_size = 8;
  CLI::App app("One training step of a model, written down for another framework");
  app.add_option("--model", flags.model.name)->required();
  app.add_option("--shape", flags.shape, "height,width,channels")->delimiter(',')->expected(3);
  app.add_option("--classes", flags.model.classes);
  app.add_option("--batch", flags.model.batch_size);
  app.add_option("--seed", flags.seed);
  app.add_option("--branches", flags.branches, "Factor of the branches of resnet50's blocks");
  app.add_option("--targets", flags.model.text.targets, "of a sequence");
  app.add_flag("--next-sentence", flags.model.text.next_sentence);
  app.add_option("--device", flags.device, "auto, cpu or cuda[:n]");
  app.add_option("--precision", flags.precision, "fp32, tf32 or bf16; of a GPU");
  app.add_option("--out", flags.out, "an existing folder")->required();
  CLI11_PARSE(app, argc, argv);
  flags.model.text.dropout = 0;
  flags.model.text.positions = std::max(flags.shape[0], flags.model.text.positions);
  flags.model.input = {flags.shape[0], flags.shape[1], flags.shape[2]};
  return foreshard::Dump(flags);
}
