// Steps of whole models and of small networks of one kind of layer: forward and backward of a batch
// from host memory, parameters and gradient on the GPU. What the other side (pytorch_steps.py) is to
// compute is told in the line: it builds the same network from it.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/core/random.h"
#include "kernels/cuda/libraries/cuda_device.h"
#include "kernels/cuda/libraries/nvidia_library.h"
#include "kernels/text_layers.h"
#include "tools/gpu_check/measure.h"
#include "worker/models/layered_model.h"

namespace foreshard::gpu_check {
namespace {

using kernels::NetworkSpec;

// Takes networks' descriptions and makes none: what a model consists of, without its memory.
class DescribingDevice final : public kernels::Device {
 public:
  const std::string& description() const override { return description_; }
  std::string_view name() const override { return "none"; }
  absl::StatusOr<std::unique_ptr<kernels::Buffer>> Allocate(uint64_t) override {
    return absl::UnimplementedError("this device has no memory");
  }
  absl::StatusOr<std::unique_ptr<kernels::Network>> MakeNetwork(const NetworkSpec&) override {
    return nullptr;
  }
  absl::Status MatrixMultiply(uint64_t, uint64_t, uint64_t, const float*, const float*,
                              float*) override {
    return absl::UnimplementedError("this device computes nothing");
  }

 private:
  const std::string description_ = "none";
};

struct Figures {
  double seconds = 0;
  double host_seconds = 0;  // of the step, until all of it is given to the GPU
};

// A made-up batch. Sequences of text are full, their targets spread over them.
class MadeBatch {
 public:
  MadeBatch(const NetworkSpec& spec, const std::vector<kernels::Shape>& shapes) : labels_(spec.batch_size) {
    const uint32_t batch = spec.batch_size, classes = shapes.back().channels;
    if (kernels::ReadsText(spec)) {
      const uint32_t positions = spec.input.height, targets = shapes.back().height;
      for (uint64_t i = 0; i < uint64_t{batch} * positions; ++i) {
        tokens_.push_back(static_cast<int32_t>(RandomBits(1, 1, i) % classes));
        segments_.push_back(i % positions < positions / 3 ? 0 : 1);
      }
      for (uint64_t i = 0; i < uint64_t{batch} * targets; ++i) {
        targets_.push_back(static_cast<int32_t>(RandomBits(1, 2, i) % classes));
        target_positions_.push_back(static_cast<int32_t>(i % targets * positions / targets));
      }
      lengths_.assign(batch, static_cast<int32_t>(positions));
      for (uint32_t i = 0; i < batch; ++i) keys_.push_back(RandomBits(1, 3, i));
      view_.text = {tokens_.data(), segments_.data(), lengths_.data(), target_positions_.data(),
                    targets_.data(), keys_.data()};
    } else {
      inputs_.resize(batch * spec.input.elements());
      for (uint64_t i = 0; i < inputs_.size(); ++i) inputs_[i] = std::sin(0.37f * static_cast<float>(i % 9973));
      for (uint32_t i = 0; i < batch; ++i) labels_[i] = static_cast<int32_t>(i * 7 % classes);
      view_.inputs = inputs_.data();
    }
    view_.examples = batch;
    view_.labels = labels_.data();
  }
  MadeBatch(const MadeBatch&) = delete;
  MadeBatch& operator=(const MadeBatch&) = delete;

  const kernels::BatchView& view() const { return view_; }

 private:
  std::vector<float> inputs_;
  std::vector<int32_t> labels_, tokens_, segments_, lengths_, target_positions_, targets_;
  std::vector<uint64_t> keys_;
  kernels::BatchView view_;
};

absl::StatusOr<Figures> StepOf(const NetworkSpec& spec, const std::vector<float>& vector,
                               kernels::Device& device) {
  auto network = device.MakeNetwork(spec);
  if (!network.ok()) return network.status();
  auto memory = device.MakeStepMemory(spec.trainable_elements, spec.elements);
  if (!memory.ok()) return memory.status();
  if (const absl::Status given = (*memory)->Upload(vector.data(), 0, spec.elements); !given.ok()) {
    return given;
  }
  const auto shapes = kernels::CheckNetwork(spec);
  if (!shapes.ok()) return shapes.status();
  const MadeBatch batch(spec, *shapes);
  const auto open = [](uint64_t, uint64_t) { return absl::OkStatus(); };
  using Clock = std::chrono::steady_clock;
  std::vector<double> host;
  Clock::time_point begin;
  const auto seconds = SecondsOfStep([&]() -> absl::Status {
    begin = Clock::now();
    kernels::StepOutput output = {.gradient = (*memory)->gradient(),
                                  .statistics = (*memory)->statistics()};
    output.given = [&] {
      host.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
      return absl::OkStatus();
    };
    const auto loss = (*network)->Train(batch.view(), (*memory)->vector(), open, output);
    if (!loss.ok()) return loss.status();
    return std::isfinite(loss->loss) ? absl::OkStatus()
                                     : absl::InternalError("the loss is not finite");
  });
  if (!seconds.ok()) return seconds.status();
  std::nth_element(host.begin(), host.begin() + static_cast<int64_t>(host.size() / 2), host.end());
  return Figures{*seconds, host[host.size() / 2]};
}

absl::StatusOr<std::unique_ptr<kernels::Device>> Gpu(std::string_view precision) {
  const auto parsed = kernels::ParsePrecision(precision);
  if (!parsed.ok()) return parsed.status();
  return kernels::cuda::MakeCudaDevice(0, {.precision = *parsed}, "");
}

// A layer of the small networks, as the line says it.
struct Piece {
  std::string kind;  // conv, batch_norm, relu, max_pool, average_pool, dense
  std::vector<uint32_t> numbers;
};

std::string Describe(const std::vector<Piece>& pieces) {
  return absl::StrCat("[", absl::StrJoin(pieces, ", ", [](std::string* out, const Piece& piece) {
                        absl::StrAppend(out, "[\"", piece.kind, "\"");
                        for (const uint32_t number : piece.numbers) absl::StrAppend(out, ", ", number);
                        absl::StrAppend(out, "]");
                      }), "]");
}

// Tensors follow each other; first values are small.
NetworkSpec MakeSpec(const kernels::Shape& input, const std::vector<Piece>& pieces, uint32_t batch) {
  NetworkSpec spec{.input = input, .batch_size = batch};
  uint64_t trainable = 0, statistics = 0;
  kernels::Shape shape = input;
  const auto take = [](uint64_t* total, uint64_t elements) {
    const uint64_t begin = *total;
    *total += elements;
    return begin;
  };
  for (const Piece& piece : pieces) {
    kernels::Layer layer;
    if (piece.kind == "conv") {  // filters, kernel, stride
      kernels::Convolution conv{.filters = piece.numbers[0],
                                .kernel = piece.numbers[1],
                                .stride = piece.numbers[2],
                                .padding = piece.numbers[1] / 2};
      conv.weight = take(&trainable, uint64_t{conv.filters} * conv.kernel * conv.kernel * shape.channels);
      layer = conv;
    } else if (piece.kind == "batch_norm") {
      kernels::BatchNorm norm;
      norm.weight = take(&trainable, shape.channels);
      norm.bias = take(&trainable, shape.channels);
      norm.mean = take(&statistics, shape.channels);
      norm.variance = take(&statistics, shape.channels);
      layer = norm;
    } else if (piece.kind == "relu") {
      layer = kernels::Relu{};
    } else if (piece.kind == "max_pool") {  // size, stride, padding
      layer = kernels::MaxPool{piece.numbers[0], piece.numbers[1], piece.numbers[2]};
    } else if (piece.kind == "average_pool") {
      layer = kernels::GlobalAveragePool{};
    } else {  // dense: units
      kernels::Dense dense{.units = piece.numbers[0]};
      dense.weight = take(&trainable, dense.units * shape.elements());
      dense.bias = take(&trainable, dense.units);
      layer = dense;
    }
    const auto out = kernels::OutputShape(layer, shape);
    if (out.ok()) shape = *out;  // what does not fit, MakeNetwork refuses
    spec.layers.push_back(layer);
  }
  for (kernels::Layer& layer : spec.layers) {
    if (auto* norm = std::get_if<kernels::BatchNorm>(&layer)) {
      norm->mean += trainable;
      norm->variance += trainable;
    }
  }
  spec.trainable_elements = trainable;
  spec.elements = trainable + statistics;
  return spec;
}

std::vector<Piece> Repeated(const std::vector<Piece>& pieces, int times) {
  std::vector<Piece> all;
  for (int i = 0; i < times; ++i) all.insert(all.end(), pieces.begin(), pieces.end());
  return all;
}

}  // namespace

absl::Status BenchLayers(std::string_view precision, uint32_t batch) {
  auto device = Gpu(precision);
  if (!device.ok()) return device.status();
  struct Small {
    std::string name;
    kernels::Shape input;
    std::vector<Piece> pieces;
  };
  const std::vector<Small> all = {
      {"conv3x3_16", {32, 32, 16}, Repeated({{"conv", {16, 3, 1}}}, 8)},
      {"conv3x3_64", {32, 32, 64}, Repeated({{"conv", {64, 3, 1}}}, 8)},
      {"conv3x3_256", {14, 14, 256}, Repeated({{"conv", {256, 3, 1}}}, 8)},
      {"conv1x1_64_256", {56, 56, 64}, Repeated({{"conv", {256, 1, 1}}, {"conv", {64, 1, 1}}}, 4)},
      {"batch_norm_relu_64", {32, 32, 64},
       Repeated({{"conv", {64, 1, 1}}, {"batch_norm", {}}, {"relu", {}}}, 8)},
      {"max_pool_64", {112, 112, 64}, {{"conv", {64, 1, 1}}, {"max_pool", {3, 2, 1}}}},
      {"dense_1024", {1, 1, 1024}, Repeated({{"dense", {1024}}, {"relu", {}}}, 8)},
  };
  absl::Status first;
  for (const Small& small : all) {
    std::vector<Piece> pieces = small.pieces;
    pieces.push_back({"average_pool", {}});
    pieces.push_back({"dense", {10}});
    const NetworkSpec spec = MakeSpec(small.input, pieces, batch);
    std::vector<float> vector(spec.elements);
    for (uint64_t i = 0; i < spec.elements; ++i) {
      vector[i] = i < spec.trainable_elements ? static_cast<float>(0.02 * RandomNormal(1, 2, i)) : 1;
    }
    const auto figures = StepOf(spec, vector, **device);
    if (!figures.ok()) {
      // The others may do.
      std::fprintf(stderr, "%s: %s\n", small.name.c_str(), std::string(figures.status().message()).c_str());
      if (first.ok()) {
        first = absl::Status(figures.status().code(), absl::StrCat(small.name, ": ", figures.status().message()));
      }
      continue;
    }
    Print(Line("layers", small.name)
              .Text("precision", precision)
              .Number("batch", batch)
              .Number("seconds", figures->seconds)
              .Number("host_seconds", figures->host_seconds)
              .Json("shape", absl::StrCat("[", small.input.height, ", ", small.input.width, ", ",
                                          small.input.channels, "]"))
              .Json("layers", Describe(pieces)));
  }
  return first;
}

namespace {

// Values of matrices, of either sign, from 0.5 to 2: where all are zeros, or of one sign, or rows are
// equal, fewer bits change from one operation to the next, which needs less power and runs faster.
class Operands {
 public:
  explicit Operands(kernels::Precision precision) : bf16_(precision == kernels::Precision::kBf16) {}

  // Words of one float each, or of two values in bf16, which is a float's upper half.
  std::vector<uint32_t> Next(uint64_t words) {
    std::vector<uint32_t> values(words);
    for (uint32_t& value : values) {
      value = Float();
      if (bf16_) value = (value & 0xffff0000) | Float() >> 16;
    }
    return values;
  }

 private:
  uint32_t Float() {
    state_ = state_ * 1664525u + 1013904223u;
    // Of this generator the low bits repeat soon: they end up lowest in the mantissa.
    return (state_ & 0x80000000) | 0x3f000000 | (state_ >> 7 & 0x00ffffff);
  }

  const bool bf16_;
  uint32_t state_ = 1;
};

// Operations a second of the library's own product of 8192 x 8192 matrices, as a network's dense
// layers are: what a step's share of the peak is a share of.
absl::StatusOr<double> ProductRate(std::string_view precision) {
  constexpr uint32_t kSide = 8192;
  constexpr uint64_t kElements = uint64_t{kSide} * kSide;
  const auto parsed = kernels::ParsePrecision(precision);
  if (!parsed.ok()) return parsed.status();
  const auto library = kernels::cuda::MakeNvidiaLibrary(*parsed);
  if (!library.ok()) return library.status();
  const auto stream = kernels::cuda::Stream::Make();
  if (!stream.ok()) return stream.status();
  using Floats = kernels::cuda::DeviceArray<float>;
  auto x = Floats::Allocate(kElements), w = Floats::Allocate(kElements), y = Floats::Allocate(kElements);
  auto workspace = Floats::Allocate((*library)->DenseWorkspace() / sizeof(float) + 1);
  for (const auto* array : {&x, &w, &y, &workspace}) {
    if (!array->ok()) return array->status();
  }
  Operands operands(*parsed);
  for (Floats* array : {&*x, &*w}) {
    const std::vector<uint32_t> values = operands.Next(kElements);
    absl::Status given = kernels::cuda::CopyToDevice(array->data(), values.data(), array->bytes(), stream->native());
    if (given.ok()) given = stream->Synchronize();
    if (!given.ok()) return given;
  }
  const auto seconds = SecondsOf(stream->native(), [&] {
    return (*library)->DenseForward({kSide, kSide, kSide}, x->data(), w->data(), nullptr, false, y->data(),
                                    false, {workspace->data(), (*library)->DenseWorkspace()}, stream->native());
  });
  if (!seconds.ok()) return seconds.status();
  return 2.0 * kSide * kSide * kSide / *seconds;
}

constexpr uint32_t kVocabulary = 30522;

// "bert_base_128": a model and the length of its sequences, of which a seventh are targets. False
// where the name is no BERT's.
bool TextModel(std::string_view name, ModelOptions* options) {
  const size_t at = name.rfind('_');
  uint32_t positions = 0;
  if (name.substr(0, 5) != "bert_" || at == std::string_view::npos ||
      !absl::SimpleAtoi(absl::string_view(name.data() + at + 1, name.size() - at - 1), &positions) || positions == 0) {
    return false;
  }
  options->name = std::string(name.substr(0, at));
  options->input = {positions, 1, 1};
  options->classes = kVocabulary;
  options->text.targets = (positions * 3 + 19) / 20;
  return true;
}

}  // namespace

absl::Status BenchModel(std::string_view name, std::string_view precision, uint32_t batch) {
  auto device = Gpu(precision);
  if (!device.ok()) return device.status();
  const bool large = name == "resnet50";
  ModelOptions options;
  options.name = std::string(name);
  options.input = large ? InputShape{224, 224, 3} : InputShape{32, 32, 3};
  options.classes = large ? 1000 : 10;
  options.batch_size = batch;
  const bool text = TextModel(name, &options);
  DescribingDevice describing;
  const auto model = MakeModel(options, describing);
  if (!model.ok()) return model.status();
  const auto* layered = dynamic_cast<const LayeredModel*>(model->get());
  if (layered == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(options.name, " is not made of layers"));
  }
  std::vector<float> vector(layered->schema().elements());
  layered->InitialValues(1, vector.data());
  const auto figures = StepOf(layered->network_spec(), vector, **device);
  if (!figures.ok()) return figures.status();
  Line line("models", name);
  line.Text("precision", precision)
      .Number("batch", batch)
      .Number("seconds", figures->seconds)
      .Number("host_seconds", figures->host_seconds)
      .Json("shape", absl::StrCat("[", options.input.height, ", ", options.input.width, ", ",
                                  options.input.channels, "]"))
      .Number("classes", options.classes);
  if (text) {
    const auto rate = ProductRate(precision);
    if (!rate.ok()) return rate.status();
    const double flops = static_cast<double>(batch * kernels::TrainingFlops(layered->network_spec()));
    line.Text("model", options.name)
        .Number("targets", options.text.targets)
        .Number("dropout", options.text.dropout)
        .Number("tokens_per_second", batch * options.input.height / figures->seconds)
        .Number("of_peak", flops / figures->seconds / *rate);
  }
  Print(line);
  return absl::OkStatus();
}

}  // namespace foreshard::gpu_check
