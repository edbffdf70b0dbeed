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
#include <string>
#include <vector>

#include "worker/models/model.h"

namespace foreshard {

// Every tensor's first values: a constant, or normal with mean 0 (He et al.,
// arXiv 1502.01852: deviation sqrt(2 / inputs of one unit)).
struct FirstValues {
  double constant = 0;
  double deviation = 0;
};

// Made by LayerList::Make.
class LayeredModel : public Model {
 public:
  const Schema& schema() const override { return schema_; }
  void InitialValues(uint64_t seed, float* vector) const override;
  absl::StatusOr<StepResult> ForwardBackward(const Batch& batch, const float* vector,
                                             ParameterGate& gate, float weight, bool accumulate,
                                             float* gradient, float* statistics) override;
  absl::Status BatchStatistics(const Batch& batch, const float* vector,
                               float* statistics) override;
  absl::StatusOr<StepResult> Evaluate(const Batch& batch, const float* vector) override;

  const kernels::NetworkSpec& network_spec() const { return spec_; }

 private:
  friend class LayerList;
  LayeredModel() = default;

  // INVALID_ARGUMENT when the batch's arrays do not have the sizes it claims.
  absl::StatusOr<kernels::BatchView> View(const Batch& batch) const;

  std::string name_;
  Schema schema_;
  std::vector<FirstValues> first_values_;  // by tensor
  kernels::NetworkSpec spec_;
  std::unique_ptr<kernels::Network> network_;
};

// Names are as PyTorch's: `name`.weight, .bias, .running_mean, .running_var.
// Weights of convolutions and dense layers are decayed, nothing else is.
class LayerList {
 public:
  explicit LayerList(InputShape input);

  // 3 x 3, padding 1, stride 1, no bias: a batch norm follows.
  void Convolution(const std::string& name, uint32_t filters);
  void BatchNorm(const std::string& name);
  void Relu();
  // 2 x 2, stride 2.
  void MaxPool();
  void Dense(const std::string& name, uint32_t units, bool bias);

  // Shape after the layers so far; empty where one did not fit.
  const kernels::Shape& shape() const { return shape_; }

  // INVALID_ARGUMENT names the layer that does not fit.
  absl::StatusOr<std::unique_ptr<Model>> Make(const std::string& model,
                                              const ModelOptions& options,
                                              kernels::Device& device) const;

 private:
  struct Tensor {
    TensorSpec spec;
    FirstValues first;
  };
  // Adds a tensor and returns its place: its number, until Make turns the
  // numbers into positions in the vector.
  uint64_t Add(const std::string& name, std::vector<int64_t> shape, TensorKind kind, bool decayed,
               FirstValues first);
  void Append(const std::string& name, const kernels::Layer& layer);

  kernels::Shape input_, shape_;
  std::vector<kernels::Layer> layers_;
  std::vector<Tensor> tensors_;
  absl::Status status_;
};

}  // namespace foreshard
