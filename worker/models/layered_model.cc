#include "worker/models/layered_model.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/core/bytes.h"
#include "common/core/random.h"
#include "kernels/device_failure.h"

namespace foreshard {
namespace {

// Every place where a layer names a tensor.
template <typename Visit>
void VisitTensors(kernels::Layer& layer, Visit visit) {
  if (auto* conv = std::get_if<kernels::Convolution>(&layer)) {
    visit(conv->weight);
    visit(conv->bias);
  } else if (auto* norm = std::get_if<kernels::BatchNorm>(&layer)) {
    visit(norm->weight);
    visit(norm->bias);
    visit(norm->mean);
    visit(norm->variance);
  } else if (auto* dense = std::get_if<kernels::Dense>(&layer)) {
    visit(dense->weight);
    visit(dense->bias);
  } else if (auto* embedding = std::get_if<kernels::Embedding>(&layer)) {
    visit(embedding->token);
    visit(embedding->position);
    visit(embedding->segment);
  } else if (auto* layer_norm = std::get_if<kernels::LayerNorm>(&layer)) {
    visit(layer_norm->weight);
    visit(layer_norm->bias);
  }
}

FirstValues He(uint64_t fan) {
  return {.deviation = std::sqrt(2.0 / static_cast<double>(std::max<uint64_t>(fan, 1)))};
}

}  // namespace

LayerList::LayerList(InputShape input, Initialisation initialisation)
    : input_{input.height, input.width, input.channels}, initialisation_(initialisation) {}

uint64_t LayerList::AddTensor(const std::string& name, std::vector<int64_t> shape, TensorKind kind,
                              bool decayed, FirstValues first) {
  tensors_.push_back({{name, std::move(shape), kind, decayed}, first, std::nullopt});
  return tensors_.size() - 1;
}

void LayerList::Append(const std::string& name, const kernels::Layer& layer) {
  auto out = kernels::OutputShape(layer, shape(), shapes_);
  if (!out.ok() && status_.ok()) {
    status_ =
        absl::InvalidArgumentError(absl::StrCat("layer ", name, ": ", out.status().message()));
  }
  shapes_.push_back(out.ok() ? *out : kernels::Shape{});
  layers_.push_back(layer);
}

void LayerList::Convolution(const std::string& name, uint32_t filters, uint32_t kernel,
                            uint32_t stride) {
  kernels::Convolution layer{
      .filters = filters, .kernel = kernel, .stride = stride, .padding = kernel / 2};
  const int64_t side = kernel, channels = shape().channels;
  const uint64_t fan_in = uint64_t{kernel} * kernel * shape().channels;
  const uint64_t fan_out = uint64_t{kernel} * kernel * filters;
  layer.weight = AddTensor(name + ".weight", {filters, side, side, channels},
                           TensorKind::kTrainable, true,
                           He(initialisation_ == Initialisation::kHe ? fan_in : fan_out));
  Append(name, layer);
}

void LayerList::BatchNorm(const std::string& name) {
  const int64_t channels = shape().channels;
  kernels::BatchNorm layer;
  const auto trainable = TensorKind::kTrainable, statistic = TensorKind::kStatistic;
  layer.weight = AddTensor(name + ".weight", {channels}, trainable, false, {.constant = 1});
  layer.bias = AddTensor(name + ".bias", {channels}, trainable, false, {.constant = 0});
  layer.mean = AddTensor(name + ".running_mean", {channels}, statistic, false, {.constant = 0});
  layer.variance = AddTensor(name + ".running_var", {channels}, statistic, false, {.constant = 1});
  Append(name, layer);
}

void LayerList::Relu() { Append("relu", kernels::Relu{}); }

void LayerList::MaxPool(const kernels::MaxPool& pool) { Append("pool", pool); }

void LayerList::GlobalAveragePool() { Append("avgpool", kernels::GlobalAveragePool{}); }

void LayerList::Dense(const std::string& name, uint32_t units, bool bias) {
  kernels::Dense layer{.units = units};
  const uint64_t inputs = shape().elements();
  const bool he = initialisation_ == Initialisation::kHe;
  const bool bert = initialisation_ == Initialisation::kBert;
  const double bound = 1 / std::sqrt(static_cast<double>(std::max<uint64_t>(inputs, 1)));
  layer.weight = AddTensor(name + ".weight", {units, static_cast<int64_t>(inputs)},
                           TensorKind::kTrainable, true,
                           he     ? He(inputs)
                           : bert ? FirstValues{.deviation = kBertDeviation}
                                  : FirstValues{.bound = bound});
  if (const kernels::Shape& image = shape(); image.height * image.width > 1) {
    tensors_.back().columns = InputShape{image.height, image.width, image.channels};
  }
  if (bias) {
    layer.bias = AddTensor(name + ".bias", {units}, TensorKind::kTrainable, false,
                           he || bert ? FirstValues{.constant = 0} : FirstValues{.bound = bound});
  }
  Append(name, layer);
}

void LayerList::Subsample(uint32_t channels, uint32_t stride) {
  Append("subsample", kernels::Subsample{.stride = stride, .channels = channels});
}

void LayerList::From(uint32_t layer) { Append("from", kernels::From{layer}); }

void LayerList::AddFrom(uint32_t layer) { Append("add", kernels::AddFrom{layer}); }

absl::StatusOr<std::unique_ptr<Model>> LayerList::Make(const std::string& model,
                                                       const ModelOptions& options,
                                                       kernels::Device& device) const {
  const std::string prefix = absl::StrCat("model ", model, ": ");
  if (!status_.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(prefix, status_.message()));
  }
  // The schema wants the trainable tensors first.
  std::unique_ptr<LayeredModel> made(new LayeredModel());
  std::vector<TensorSpec> specs;
  std::vector<size_t> place(tensors_.size());
  for (TensorKind kind : {TensorKind::kTrainable, TensorKind::kStatistic}) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].spec.kind != kind) continue;
      place[i] = specs.size();
      specs.push_back(tensors_[i].spec);
      made->first_values_.push_back(tensors_[i].first);
      made->columns_.push_back(tensors_[i].columns);
    }
  }
  auto schema = Schema::Create(std::move(specs));
  if (!schema.ok()) return schema.status();
  made->name_ = model;
  made->extra_weights_ = extra_weights_;
  made->schema_ = *std::move(schema);
  made->spec_ = {.input = input_,
                 .layers = layers_,
                 .batch_size = options.batch_size,
                 .trainable_elements = made->schema_.trainable_elements(),
                 .elements = made->schema_.elements()};
  for (kernels::Layer& layer : made->spec_.layers) {
    VisitTensors(layer, [&](uint64_t& tensor) {
      if (tensor != kernels::kNoTensor) tensor = made->schema_.offset(place[tensor]);
    });
  }
  made->targets_ = shape().height;
  auto network = device.MakeNetwork(made->spec_);
  if (!network.ok()) {
    absl::Status status(network.status().code(), absl::StrCat(prefix, network.status().message()));
    return kernels::IsDeviceFailure(network.status()) ? kernels::DeviceFailure(status) : status;
  }
  made->network_ = *std::move(network);
  auto memory =
      device.MakeStepMemory(made->schema_.trainable_elements(), made->schema_.elements());
  if (!memory.ok()) return memory.status();
  made->memory_ = *std::move(memory);
  return made;
}

void LayeredModel::InitialValues(uint64_t seed, float* vector) const {
  for (size_t i = 0; i < schema_.tensors().size(); ++i) {
    const TensorSpec& tensor = schema_.tensors()[i];
    const FirstValues& first = first_values_[i];
    const uint64_t stream = Checksum(
        AsBytes(tensor.name));
    float* values = vector + schema_.offset(i);
    for (uint64_t j = 0; j < tensor.elements(); ++j) {
      double draw = first.deviation > 0 ? first.deviation * RandomNormal(seed, stream, j) : 0;
      if (first.bound > 0) draw = first.bound * (2 * RandomUniform(seed, stream, j) - 1);
      values[j] = static_cast<float>(first.constant + draw);
    }
  }
}

absl::StatusOr<kernels::BatchView> LayeredModel::View(const Batch& batch) const {
  if (std::holds_alternative<kernels::Embedding>(spec_.layers.front())) return TextView(batch);
  if (batch.inputs.size() != batch.examples * spec_.input.elements() ||
      batch.labels.size() != batch.examples) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model ", name_, ": a batch of ", batch.examples, " examples has ", batch.inputs.size(),
        " input values and ", batch.labels.size(), " labels; it needs ",
        batch.examples * spec_.input.elements(), " and ", batch.examples));
  }
  return kernels::BatchView{batch.examples, batch.inputs.data(), batch.labels.data()};
}

absl::StatusOr<kernels::BatchView> LayeredModel::TextView(const Batch& batch) const {
  const uint64_t tokens = batch.examples * spec_.input.height, targets = batch.examples * targets_;
  if (batch.tokens.size() != tokens || batch.segments.size() != tokens ||
      batch.lengths.size() != batch.examples || batch.targets.size() != targets ||
      batch.target_positions.size() != targets || batch.labels.size() != batch.examples ||
      (!batch.keys.empty() && batch.keys.size() != batch.examples)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model ", name_, ": a batch of ", batch.examples, " sequences has ", batch.tokens.size(),
        " tokens, ", batch.segments.size(), " segments, ", batch.lengths.size(), " lengths, ",
        batch.targets.size(), " targets and ", batch.labels.size(), " labels; it needs ", tokens, ", ",
        tokens, ", ", batch.examples, ", ", targets, " and ", batch.examples));
  }
  return kernels::BatchView{.examples = batch.examples,
                            .labels = batch.labels.data(),
                            .text = {.tokens = batch.tokens.data(),
                                     .segments = batch.segments.data(),
                                     .lengths = batch.lengths.data(),
                                     .target_positions = batch.target_positions.data(),
                                     .targets = batch.targets.data(),
                                     .keys = batch.keys.empty() ? nullptr : batch.keys.data(),
                                     .divisor = batch.divisor}};
}

absl::StatusOr<StepResult> LayeredModel::ForwardBackward(const Batch& batch, const float* vector,
                                                         ParameterGate& gate, float weight,
                                                         bool accumulate, float* gradient,
                                                         float* statistics) {
  if (memory_ != nullptr) {
    auto step = ForwardBackwardOnDevice(batch, vector, gate, weight, accumulate, nullptr);
    if (!step.ok()) return step;
    const absl::Status back = memory_->Download(gradient, statistics);
    if (!back.ok()) return back;
    return step;
  }
  auto view = View(batch);
  if (!view.ok()) return view.status();
  auto wait = [&](uint64_t begin, uint64_t elements) { return gate.WaitFor(begin, elements); };
  auto loss = network_->Train(*view, vector, wait, {weight, accumulate, gradient, statistics});
  if (!loss.ok()) return loss.status();
  return StepResult{loss->loss, loss->correct, loss->count, loss->side_loss, loss->side_correct};
}

absl::StatusOr<StepResult> LayeredModel::ForwardBackwardOnDevice(
    const Batch& batch, const float* vector, ParameterGate& gate, float weight, bool accumulate,
    const std::function<absl::Status()>& given) {
  auto view = View(batch);
  if (!view.ok()) return view.status();
  auto wait = [&](uint64_t begin, uint64_t elements) {
    const absl::Status there = gate.WaitFor(begin, elements);
    return there.ok() && !gate.on_device() ? memory_->Upload(vector, begin, elements) : there;
  };
  auto loss = network_->Train(
      *view, memory_->vector(), wait,
      {weight, accumulate, memory_->gradient(), memory_->statistics(), given});
  if (!loss.ok()) return loss.status();
  return StepResult{loss->loss, loss->correct, loss->count, loss->side_loss, loss->side_correct};
}

absl::Status LayeredModel::BatchStatistics(const Batch& batch, const float* vector,
                                           float* statistics) {
  auto view = View(batch);
  if (!view.ok()) return view.status();
  if (memory_ == nullptr) return network_->Statistics(*view, vector, statistics);
  absl::Status status = memory_->Upload(vector, 0, schema_.elements());
  if (status.ok()) status = network_->Statistics(*view, memory_->vector(), memory_->statistics());
  return status.ok() ? memory_->Download(nullptr, statistics) : status;
}

absl::StatusOr<StepResult> LayeredModel::Evaluate(const Batch& batch, const float* vector) {
  auto view = View(batch);
  if (!view.ok()) return view.status();
  if (memory_ != nullptr) {
    const absl::Status given = memory_->Upload(vector, 0, schema_.elements());
    if (!given.ok()) return given;
  }
  auto loss = network_->Evaluate(*view, memory_ != nullptr ? memory_->vector() : vector);
  if (!loss.ok()) return loss.status();
  return StepResult{loss->loss, loss->correct, loss->count, loss->side_loss, loss->side_correct};
}

}  // namespace foreshard
