// Models that are a list of layers run by a device: the list and the schema grow
// side by side, so a model's file only says what follows what.
//
//   LayerList layers(input);
//   layers.Dense("fc1", 128, /*bias=*/false);
//   layers.BatchNorm("bn1");
//   layers.Relu();
//   layers.Dense("fc2", classes, /*bias=*/true);
//   auto model = layers.Make("mlp", options, device);
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/models/model.h"

namespace foreshard {

// Every tensor's first values: a constant, normal with mean 0, or uniform in
// [-bound, bound).
struct FirstValues {
  double constant = 0;
  double deviation = 0;
  double bound = 0;
};

// Of weights and of biases of dense layers.
enum class Initialisation : uint8_t {
  // Normal, deviation sqrt(2 / inputs of one unit) (He et al., arXiv 1502.01852); biases 0.
  kHe,
  // As torchvision's residual networks: convolutions normal with deviation
  // sqrt(2 / (filters * kernel^2)) (He et al. by outputs), dense layers with their biases
  // uniform within 1 / sqrt(inputs).
  kTorchvision,
  // As BERT: normal with deviation kBertDeviation, biases 0.
  kBert,
};

inline constexpr double kBertDeviation = 0.02;

// Made by LayerList::Make.
class LayeredModel : public Model {
 public:
  const Schema& schema() const override { return schema_; }
  void InitialValues(uint64_t seed, float* vector) const override;
  std::optional<InputShape> ImageColumns(size_t tensor) const override { return columns_[tensor]; }
  std::vector<ExtraWeight> ExtraWeights() const override { return extra_weights_; }
  std::string OtherName(const std::string& tensor) const override;
  uint64_t step_bytes() const override { return network_->step_bytes(); }
  absl::StatusOr<StepResult> ForwardBackward(const Batch& batch, const float* vector,
                                             ParameterGate& gate, float weight, bool accumulate,
                                             float* gradient, float* statistics) override;
  kernels::StepMemory* step_memory() override { return memory_.get(); }
  absl::StatusOr<StepResult> ForwardBackwardOnDevice(
      const Batch& batch, const float* vector, ParameterGate& gate, float weight, bool accumulate,
      const std::function<absl::Status()>& given) override;
  absl::Status BatchStatistics(const Batch& batch, const float* vector,
                               float* statistics) override;
  absl::StatusOr<StepResult> Evaluate(const Batch& batch, const float* vector) override;

  const kernels::NetworkSpec& network_spec() const { return spec_; }

 private:
  friend class LayerList;
  LayeredModel() = default;

  // INVALID_ARGUMENT when the batch's arrays do not have the sizes it claims.
  absl::StatusOr<kernels::BatchView> View(const Batch& batch) const;
  absl::StatusOr<kernels::BatchView> TextView(const Batch& batch) const;

  std::string name_;
  Schema schema_;
  std::vector<FirstValues> first_values_;            // by tensor
  std::vector<std::optional<InputShape>> columns_;  // by tensor, of ImageColumns
  std::vector<ExtraWeight> extra_weights_;
  kernels::NetworkSpec spec_;
  uint32_t targets_ = 0;  // of a sequence of text
  // Where the device does not work in host memory: the vectors on their way there and back.
  std::unique_ptr<kernels::StepMemory> memory_;
  std::unique_ptr<kernels::Network> network_;
};

// Names are as PyTorch's: `name`.weight, .bias, .running_mean, .running_var. Shapes are
// too but for convolutions' weights, which are [out, height, width, in] here and
// [out, in, height, width] there. Weights of convolutions, dense layers and embeddings are
// decayed, nothing else is. Methods of text: kernels/device.h; their file is layered_text.cc.
class LayerList {
 public:
  explicit LayerList(InputShape input, Initialisation initialisation = Initialisation::kHe);

  // kernel x kernel with padding kernel / 2, no bias: a batch norm follows.
  void Convolution(const std::string& name, uint32_t filters, uint32_t kernel = 3,
                   uint32_t stride = 1);
  void BatchNorm(const std::string& name);
  void Relu();
  // 2 x 2, stride 2, where nothing else is said.
  void MaxPool(const kernels::MaxPool& pool = {});
  void GlobalAveragePool();
  void Dense(const std::string& name, uint32_t units, bool bias);

  // `name`.word_embeddings.weight, .position_embeddings.weight, .token_type_embeddings.weight.
  void Embedding(const std::string& name, const kernels::Embedding& sizes);
  void LayerNorm(const std::string& name);
  // Dense of each position; of each name `units`, side by side: first their weights, then
  // their biases.
  void EachPosition(const std::vector<std::string>& names, uint32_t units);
  // Dense of each position with the embedding's table of tokens as weight, and a bias of its own.
  void TiedToEmbedding(const std::string& bias);
  void Attention(uint32_t heads, float dropout);
  void Gelu();
  void Tanh();
  void Dropout(float rate);
  void TargetPositions(uint32_t count);
  void FirstPosition();
  void SideLoss();
  // Of the model that is made.
  void Extra(const std::string& name, const std::string& same_as = "");

  // Branches (kernels/device.h); `layer` is what last() said after an earlier layer.
  void Subsample(uint32_t channels, uint32_t stride);
  void From(uint32_t layer);
  void AddFrom(uint32_t layer);

  // Number of the last layer so far, of at least one.
  uint32_t last() const { return static_cast<uint32_t>(layers_.size() - 1); }
  // Shape after the layers so far; empty where one did not fit.
  const kernels::Shape& shape() const { return shapes_.empty() ? input_ : shapes_.back(); }

  // INVALID_ARGUMENT names the layer that does not fit.
  absl::StatusOr<std::unique_ptr<Model>> Make(const std::string& model,
                                              const ModelOptions& options,
                                              kernels::Device& device) const;

 private:
  struct Tensor {
    TensorSpec spec;
    FirstValues first;
    std::optional<InputShape> columns;  // as Model::ImageColumns
  };
  // Adds a tensor and returns its place: its number, until Make turns the
  // numbers into positions in the vector.
  uint64_t AddTensor(const std::string& name, std::vector<int64_t> shape, TensorKind kind,
                     bool decayed, FirstValues first);
  void Append(const std::string& name, const kernels::Layer& layer);

  kernels::Shape input_;
  Initialisation initialisation_;
  std::vector<kernels::Layer> layers_;
  std::vector<kernels::Shape> shapes_;  // after each layer
  std::vector<Tensor> tensors_;
  std::vector<ExtraWeight> extra_weights_;
  absl::Status status_;
};

}  // namespace foreshard
