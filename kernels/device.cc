#include "kernels/device.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/text_layers.h"
#include "kernels/wiring.h"

namespace foreshard::kernels {
namespace {

absl::Status CheckTensors(const Layer& layer, const Shape& in, const Shape& out,
                          const NetworkSpec& spec) {
  const uint64_t trainable = spec.trainable_elements;
  auto weights = [&](uint64_t weight, uint64_t elements, uint64_t bias) {
    if (auto s = CheckTensor("weight", weight, elements, 0, trainable); !s.ok()) return s;
    if (bias == kNoTensor) return absl::OkStatus();
    return CheckTensor("bias", bias, out.channels, 0, trainable);
  };
  if (const auto* conv = std::get_if<Convolution>(&layer)) {
    return weights(conv->weight,
                   uint64_t{conv->filters} * conv->kernel * conv->kernel * in.channels, conv->bias);
  }
  if (const auto* dense = std::get_if<Dense>(&layer)) {
    return weights(dense->weight, dense->units * DenseInputs(*dense, in), dense->bias);
  }
  if (const auto* norm = std::get_if<BatchNorm>(&layer)) {
    if (norm->bias == kNoTensor) return absl::InvalidArgumentError("has no bias");
    if (auto s = weights(norm->weight, out.channels, norm->bias); !s.ok()) return s;
    auto s = CheckTensor("mean", norm->mean, out.channels, trainable, spec.elements);
    if (!s.ok()) return s;
    return CheckTensor("variance", norm->variance, out.channels, trainable, spec.elements);
  }
  return CheckTextTensors(layer, in, trainable);
}

absl::StatusOr<Shape> Earlier(uint32_t layer, absl::Span<const Shape> before) {
  if (layer < before.size()) return before[layer];
  return absl::InvalidArgumentError(
      absl::StrCat("names layer ", layer, ", which is not one of the ", before.size(),
                   " before it"));
}

}  // namespace

absl::StatusOr<Shape> OutputShape(const Layer& layer, const Shape& input,
                                  absl::Span<const Shape> before) {
  if (input.elements() == 0) return absl::InvalidArgumentError("its input is empty");
  if (const auto* conv = std::get_if<Convolution>(&layer)) {
    if (conv->filters == 0 || conv->kernel == 0 || conv->stride == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("a convolution needs filters, kernel and stride of at least 1, not ",
                       conv->filters, ", ", conv->kernel, " and ", conv->stride));
    }
    const uint64_t height = uint64_t{input.height} + 2 * uint64_t{conv->padding};
    const uint64_t width = uint64_t{input.width} + 2 * uint64_t{conv->padding};
    if (height < conv->kernel || width < conv->kernel || conv->padding >= conv->kernel) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a filter of ", conv->kernel, " x ", conv->kernel, " with padding ", conv->padding,
          " does not fit an input of ", input.height, " x ", input.width));
    }
    return Shape{static_cast<uint32_t>((height - conv->kernel) / conv->stride + 1),
                 static_cast<uint32_t>((width - conv->kernel) / conv->stride + 1), conv->filters};
  }
  if (const auto* pool = std::get_if<MaxPool>(&layer)) {
    const uint64_t height = uint64_t{input.height} + 2 * uint64_t{pool->padding};
    const uint64_t width = uint64_t{input.width} + 2 * uint64_t{pool->padding};
    if (pool->size == 0 || pool->stride == 0 || pool->size > height || pool->size > width ||
        pool->padding > pool->size / 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a pooling window of ", pool->size, " x ", pool->size, " with stride ", pool->stride,
          " and padding ", pool->padding, " does not fit an input of ", input.height, " x ",
          input.width));
    }
    return Shape{static_cast<uint32_t>((height - pool->size) / pool->stride + 1),
                 static_cast<uint32_t>((width - pool->size) / pool->stride + 1), input.channels};
  }
  if (std::holds_alternative<GlobalAveragePool>(layer)) return Shape{1, 1, input.channels};
  if (const auto* subsample = std::get_if<Subsample>(&layer)) {
    if (subsample->stride == 0 || subsample->channels < input.channels) {
      return absl::InvalidArgumentError(
          absl::StrCat("a subsampling of stride ", subsample->stride, " to ", subsample->channels,
                       " channels does not fit an input of ", input.channels));
    }
    return Shape{(input.height - 1) / subsample->stride + 1,
                 (input.width - 1) / subsample->stride + 1, subsample->channels};
  }
  if (const auto* from = std::get_if<From>(&layer)) return Earlier(from->layer, before);
  if (const auto* add = std::get_if<AddFrom>(&layer)) {
    auto other = Earlier(add->layer, before);
    if (other.ok() && *other != input) {
      return absl::InvalidArgumentError(absl::StrCat(
          "adds the output of layer ", add->layer, ", ", other->height, " x ", other->width, " x ",
          other->channels, ", to another shape, ", input.height, " x ", input.width, " x ",
          input.channels));
    }
    return other;
  }
  if (const auto* dense = std::get_if<Dense>(&layer)) {
    if (dense->units == 0) return absl::InvalidArgumentError("a dense layer needs units");
    if (dense->each_position) return Shape{input.height, input.width, dense->units};
    return Shape{1, 1, dense->units};
  }
  return TextOutputShape(layer, input);
}

absl::StatusOr<std::vector<Shape>> CheckNetwork(const NetworkSpec& spec) {
  if (spec.batch_size == 0) return absl::InvalidArgumentError("network: batch_size is 0");
  if (spec.elements < spec.trainable_elements) {
    return absl::InvalidArgumentError("network: fewer elements than trainable elements");
  }
  if (spec.layers.empty() || !std::holds_alternative<Dense>(spec.layers.back())) {
    return absl::InvalidArgumentError("network: the last layer must be Dense");
  }
  std::vector<Shape> shapes;
  Shape shape = spec.input;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    auto out = OutputShape(spec.layers[i], shape, shapes);
    absl::Status status = out.status();
    if (status.ok()) status = CheckTensors(spec.layers[i], shape, *out, spec);
    if (status.ok()) status = CheckTextOrder(spec, i);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("network: layer ", i, ": ", status.message()));
    }
    shape = *out;
    shapes.push_back(shape);
  }
  if (!ReadsText(spec) && (shape.height > 1 || shape.width > 1)) {
    return absl::InvalidArgumentError(
        "network: the last layer is Dense of each position, which needs text and its targets");
  }
  const Wiring wiring(spec.layers);
  for (size_t i = 0; i + 1 < spec.layers.size(); ++i) {
    if (wiring.output(i) == i + 1 && wiring.uses(i + 1) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("network: layer ", i, ": no layer reads its output"));
    }
  }
  return shapes;
}

uint64_t TrainingFlops(const NetworkSpec& spec) {
  uint64_t total = 0;
  std::vector<Shape> shapes;
  const Wiring wiring(spec.layers);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const Shape& in = i == 0 ? spec.input : shapes[i - 1];
    auto out = OutputShape(spec.layers[i], in, shapes);
    if (!out.ok()) return 0;
    uint64_t forward = 0;
    if (const auto* conv = std::get_if<Convolution>(&spec.layers[i])) {
      forward = 2 * out->elements() * conv->kernel * conv->kernel * in.channels;
    } else if (const auto* dense = std::get_if<Dense>(&spec.layers[i])) {
      forward = 2 * out->elements() * DenseInputs(*dense, in);
    } else if (std::holds_alternative<Attention>(spec.layers[i])) {
      forward = 4 * out->elements() * in.height;
    }
    total += forward * (wiring.needs_gradient(wiring.input(i)) ? 3 : 2);
    shapes.push_back(*out);
  }
  return total;
}

absl::StatusOr<Precision> ParsePrecision(std::string_view text) {
  for (const Precision precision : {Precision::kFp32, Precision::kTf32, Precision::kBf16}) {
    if (text == NameOf(precision)) return precision;
  }
  return absl::InvalidArgumentError(absl::StrCat("precision '", absl::string_view(text.data(), text.size()),
                                                 "' is not known: use fp32, tf32 or bf16"));
}

std::string_view NameOf(Precision precision) {
  switch (precision) {
    case Precision::kFp32: return "fp32";
    case Precision::kTf32: return "tf32";
    case Precision::kBf16: return "bf16";
  }
  return "fp32";
}

}  // namespace foreshard::kernels
