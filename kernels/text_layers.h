// What the layers of text make of shapes, tensors and each other: the part of CheckNetwork
// (device.h) that is theirs, for any device.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace foreshard::kernels {

// A tensor of `elements` at `offset` must lie inside [begin, end).
absl::Status CheckTensor(const char* what, uint64_t offset, uint64_t elements, uint64_t begin,
                         uint64_t end);

// Whether the first layer is an Embedding.
bool ReadsText(const NetworkSpec& spec);

// Inputs of one unit.
inline uint64_t DenseInputs(const Dense& dense, const Shape& in) {
  return dense.each_position ? in.channels : in.elements();
}

// Whether the weight of layer i, an Embedding's table of tokens, is a later Dense's too, whose
// gradient is written first.
bool IsTied(const NetworkSpec& spec, const Embedding& embedding);

// Of layers of text, and of those that leave the shape as it is.
absl::StatusOr<Shape> TextOutputShape(const Layer& layer, const Shape& input);

// Tensors of layers of text lie inside [0, trainable).
absl::Status CheckTextTensors(const Layer& layer, const Shape& in, uint64_t trainable);

// Layers of text stand where they can: Embedding first, the others in networks that read text,
// one SideLoss at most and From behind it.
absl::Status CheckTextOrder(const NetworkSpec& spec, size_t i);

// INVALID_ARGUMENT naming example and position: a token, segment, length, target or label out of
// range. `shapes` as CheckNetwork gives them.
absl::Status CheckText(const NetworkSpec& spec, absl::Span<const Shape> shapes,
                       const BatchView& batch, bool labels);

// The position of SideLoss in the list, or the list's length.
size_t SideLossAt(const NetworkSpec& spec);

}  // namespace foreshard::kernels
