// Which layer of a network reads what, with branches resolved: what every device
// needs to know before it runs a list of layers. Values are numbered: 0 is the
// network's input, i + 1 what layer i computes. From and SideLoss compute nothing: their output
// is the value that they go on with; a SideLoss reads it.
//
//   const Wiring wiring(spec.layers);
//   for (size_t i = 0; i < spec.layers.size(); ++i) {
//     Compute(spec.layers[i], values[wiring.input(i)], &values[wiring.output(i)]);
//   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/device.h"

namespace foreshard::kernels {

// Immutable. Layers that name no earlier one (CheckNetwork refuses them) are wired to
// the input.
class Wiring {
 public:
  static constexpr uint32_t kNoValue = ~uint32_t{0};

  explicit Wiring(absl::Span<const Layer> layers);

  uint32_t values() const { return static_cast<uint32_t>(uses_.size()); }
  // The value that layer i reads, and of AddFrom the one that it adds (kNoValue of others).
  uint32_t input(size_t i) const { return wires_[i].input; }
  uint32_t other(size_t i) const { return wires_[i].other; }
  uint32_t output(size_t i) const { return wires_[i].output; }

  // How often layers read a value: where a gradient is summed up, and when its memory is
  // free again.
  uint32_t uses(uint32_t value) const { return uses_[value]; }
  // Whether a tensor that is trained lies before a value.
  bool needs_gradient(uint32_t value) const { return needs_gradient_[value]; }
  // Whether a Relu is all that reads layer i's output, so that both may be one.
  bool relu_follows(size_t i) const { return relu_follows_[i]; }

 private:
  struct Wire {
    uint32_t input = 0, other = kNoValue, output = 0;
  };

  std::vector<Wire> wires_;            // by layer
  std::vector<uint32_t> uses_;         // by value
  std::vector<bool> needs_gradient_;   // by value
  std::vector<bool> relu_follows_;     // by layer
};

}  // namespace foreshard::kernels
