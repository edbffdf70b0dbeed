#include "kernels/wiring.h"

namespace foreshard::kernels {
namespace {

bool HasTensors(const Layer& layer) {
  return std::holds_alternative<Convolution>(layer) || std::holds_alternative<BatchNorm>(layer) ||
         std::holds_alternative<Dense>(layer) || std::holds_alternative<Embedding>(layer) ||
         std::holds_alternative<LayerNorm>(layer);
}

}  // namespace

Wiring::Wiring(absl::Span<const Layer> layers)
    : wires_(layers.size()),
      uses_(layers.size() + 1),
      needs_gradient_(layers.size() + 1),
      relu_follows_(layers.size()) {
  const auto output_of = [&](uint32_t layer, size_t before) {
    return layer < before ? wires_[layer].output : 0;
  };
  for (size_t i = 0; i < layers.size(); ++i) {
    Wire& wire = wires_[i];
    if (const auto* from = std::get_if<From>(&layers[i])) {
      wire.input = wire.output = output_of(from->layer, i);
      continue;
    }
    wire.input = i == 0 ? 0 : wires_[i - 1].output;
    ++uses_[wire.input];
    if (std::holds_alternative<SideLoss>(layers[i])) {
      wire.output = wire.input;
      continue;
    }
    wire.output = static_cast<uint32_t>(i + 1);
    needs_gradient_[wire.output] = needs_gradient_[wire.input] || HasTensors(layers[i]);
    if (const auto* add = std::get_if<AddFrom>(&layers[i])) {
      wire.other = output_of(add->layer, i);
      ++uses_[wire.other];
      needs_gradient_[wire.output] =
          needs_gradient_[wire.output] || needs_gradient_[wire.other];
    }
  }
  for (size_t i = 0; i + 1 < layers.size(); ++i) {
    relu_follows_[i] = wires_[i].output == i + 1 && std::holds_alternative<Relu>(layers[i + 1]) &&
                       uses_[i + 1] == 1;
  }
}

}  // namespace foreshard::kernels
