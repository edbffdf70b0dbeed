// A model as the training loop sees it: named tensors, first values, and the
// gradient of the mean loss of a batch. Knows no network.
//
//   auto device = kernels::MakeDevice("cpu").value();
//   auto model = MakeModel(options, *device).value();
//   std::vector<float> vector(model->schema().elements());
//   model->InitialValues(seed, vector.data());
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/core/schema.h"
#include "kernels/device.h"

namespace foreshard {

// A batch in host memory. Plain data.
struct Batch {
  uint64_t examples = 0;
  std::vector<float> inputs;    // [examples, height, width, channels]; none with text
  std::vector<int32_t> labels;  // [examples], 0..classes-1; of pairs of text 1: not what follows
  // Text, as kernels::TextView has it.
  std::vector<int32_t> tokens, segments;  // [examples, positions]
  std::vector<int32_t> lengths;           // [examples]
  std::vector<int32_t> target_positions;  // [examples, targets]
  std::vector<int32_t> targets;           // [examples, targets]
  std::vector<uint64_t> keys;             // [examples], or none
  double divisor = 0;
};

struct InputShape {
  uint32_t height = 0, width = 0, channels = 0;
  uint64_t elements() const { return uint64_t{height} * width * channels; }
};

// Lets a forward pass begin while later parameters are still on their way.
class ParameterGate {
 public:
  virtual ~ParameterGate() = default;
  // Returns once elements [begin, begin + elements) of the flat vector are
  // those of this step; an error ends the step.
  virtual absl::Status WaitFor(uint64_t begin, uint64_t elements) = 0;
  // Whether the elements are then in the device's memory (StepReceiver), not in the host's.
  virtual bool on_device() const { return false; }
};

// Of parameters that are all there.
class OpenGate final : public ParameterGate {
 public:
  absl::Status WaitFor(uint64_t begin, uint64_t elements) override { return absl::OkStatus(); }
};

// Sums over what there is a loss for: the examples, or the targets of text.
struct StepResult {
  double loss_sum = 0;
  uint64_t correct = 0;
  uint64_t count = 0;
  double side_loss_sum = 0;  // of the second objective, over the examples
  uint64_t side_correct = 0;
};

// The input is positions x 1 x 1, the classes are the vocabulary.
struct TextOptions {
  uint32_t targets = 0;        // most of a sequence
  uint32_t positions = 512;    // rows of the table of positions
  float dropout = 0.1f;
  bool next_sentence = false;  // the second objective
};

struct ModelOptions {
  std::string name;
  InputShape input;
  uint32_t classes = 0;
  std::vector<uint32_t> widths;  // empty: the model's default
  uint32_t dense_units = 0;      // 0: the model's default
  uint64_t elements = 0;         // quadratic, synthetic
  uint32_t batch_size = 0;       // largest batch that will be given
  TextOptions text = {};         // bert_*
};

// A tensor that a file of weights may have beside the schema's, and what becomes of it.
struct ExtraWeight {
  std::string name;    // '*' stands for any characters
  std::string same_as;  // the schema's tensor that it repeats: must be equal; empty: left out
};

// Thread-compatible: one step at a time.
class Model {
 public:
  virtual ~Model() = default;

  virtual const Schema& schema() const = 0;

  // Writes the first values of the whole vector (statistics too), derived from
  // the seed and each tensor's name only.
  virtual void InitialValues(uint64_t seed, float* vector) const = 0;

  // Of tensor i of the schema, the weight of a dense layer that reads an image: the image's
  // shape, in whose order (height, width, channel) the weight's columns are. Else nothing.
  virtual std::optional<InputShape> ImageColumns(size_t tensor) const { return std::nullopt; }

  // What files of weights with PyTorch's names may have besides, and other names that the
  // schema's tensors may have there.
  virtual std::vector<ExtraWeight> ExtraWeights() const { return {}; }
  virtual std::string OtherName(const std::string& tensor) const { return {}; }

  // Device memory of a training step beside the vectors, known beforehand; 0: next to none.
  virtual uint64_t step_bytes() const { return 0; }

  // Forward in training mode and backward. `vector` is the whole flat vector
  // [schema().elements()]. Writes (accumulate: adds) the gradient of the batch's
  // mean loss (with text: of the masked tokens' mean loss and the examples' of the second
  // objective) times `weight` to gradient[trainable_elements], and the batch's
  // statistics (means, unbiased variances) to statistics[statistic_elements]
  // (accumulate: adds weight * value). The gate is asked before a layer's
  // parameters are first read. Errors: those of the gate, and INVALID_ARGUMENT
  // for a batch that does not fit.
  virtual absl::StatusOr<StepResult> ForwardBackward(const Batch& batch, const float* vector,
                                                     ParameterGate& gate, float weight,
                                                     bool accumulate, float* gradient,
                                                     float* statistics) = 0;

  // The device's vectors, where the model's device does not work in host memory; else null.
  virtual kernels::StepMemory* step_memory() { return nullptr; }
  // ForwardBackward whose gradient and statistics stay in step_memory(). `given` as StepOutput's;
  // may be empty. Only where there is a step_memory().
  virtual absl::StatusOr<StepResult> ForwardBackwardOnDevice(
      const Batch& batch, const float* vector, ParameterGate& gate, float weight, bool accumulate,
      const std::function<absl::Status()>& given) {
    return absl::InternalError("this model's gradients are in host memory");
  }

  // Only the batch's statistics at these parameters, in training mode: what
  // recalibration averages.
  virtual absl::Status BatchStatistics(const Batch& batch, const float* vector,
                                       float* statistics) = 0;

  // Loss and hits in inference mode, with the vector's running statistics.
  virtual absl::StatusOr<StepResult> Evaluate(const Batch& batch, const float* vector) = 0;
};

// INVALID_ARGUMENT naming the option. Unknown names list the known ones.
absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelOptions& options,
                                                 kernels::Device& device);

std::vector<std::string_view> ModelNames();

}  // namespace foreshard
