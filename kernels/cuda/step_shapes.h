// What the libraries and our kernels are told of a layer, from the network's list (internal to
// step_plan.cc).
#pragma once

#include "kernels/cuda/activations.h"
#include "kernels/cuda/batch_norm.h"
#include "kernels/cuda/layer_library.h"
#include "kernels/device.h"
#include "kernels/text_layers.h"

namespace FORESHARD_CUDA_NAMESPACE {

// A layer's input and output.
struct LayerShapes {
  uint32_t examples = 0;
  Shape in, out;
};

inline ConvolutionShape ShapeOf(const Convolution& layer, const LayerShapes& s) {
  return {s.examples,     s.in.height,    s.in.width,   s.in.channels, s.out.height,
          s.out.width,    s.out.channels, layer.kernel, layer.stride,  layer.padding};
}

inline NormShape ShapeOf(const BatchNorm& layer, const LayerShapes& s) {
  return {uint64_t{s.examples} * s.in.height * s.in.width, s.in.channels, layer.epsilon};
}

inline DenseShape ShapeOf(const Dense& layer, const LayerShapes& s) {
  const uint32_t rows = layer.each_position ? s.examples * s.in.height * s.in.width : s.examples;
  return {rows, static_cast<uint32_t>(DenseInputs(layer, s.in)), layer.units};
}

inline SubsampleShape ShapeOf(const Subsample& layer, const LayerShapes& s) {
  return {s.examples,   s.in.height, s.in.width,     s.in.channels,
          s.out.height, s.out.width, s.out.channels, layer.stride};
}

// MaxPool or GlobalAveragePool.
inline PoolShape PoolShapeOf(const Layer& layer, const LayerShapes& s) {
  PoolShape shape = {.average = true,
                     .examples = s.examples,
                     .height = s.in.height,
                     .width = s.in.width,
                     .channels = s.in.channels,
                     .out_height = s.out.height,
                     .out_width = s.out.width,
                     .window_height = s.in.height,
                     .window_width = s.in.width};
  if (const auto* pool = std::get_if<MaxPool>(&layer)) {
    shape.average = false;
    shape.window_height = shape.window_width = pool->size;
    shape.stride = pool->stride;
    shape.padding = pool->padding;
  }
  return shape;
}

}  // namespace FORESHARD_CUDA_NAMESPACE
