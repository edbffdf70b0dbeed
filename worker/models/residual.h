// What residual networks have in common (He et al., arXiv 1512.03385 and 1603.05027):
// blocks whose input is added to what their layers make of it. Names of tensors are those
// of torchvision's ResNet.
//
//   LayerList layers(options.input, Initialisation::kTorchvision);
//   layers.Convolution("conv1", 16);
//   layers.BatchNorm("bn1");
//   layers.Relu();
//   BasicBlock(&layers, "layer1.0", {.channels = 16, .stride = 1});
#pragma once

#include <cstdint>
#include <string>

#include "worker/models/layered_model.h"

namespace foreshard {

struct Block {
  uint32_t channels = 0;  // of the block's 3 x 3 convolutions
  uint32_t stride = 1;    // of its first 3 x 3 convolution
  // Where input and output differ in shape, the shortcut is a 1 x 1 convolution with
  // batch norm (`name`.downsample.0 and .1); or, where this is set, rows, columns and
  // zeros (kernels::Subsample).
  bool padded_shortcut = false;
};

// conv 3 x 3, bn, relu, conv 3 x 3, bn; the shortcut added; relu.
void BasicBlock(LayerList* layers, const std::string& name, const Block& block);

// conv 1 x 1, bn, relu, conv 3 x 3, bn, relu, conv 1 x 1 to four times the channels, bn; the
// shortcut added; relu.
void Bottleneck(LayerList* layers, const std::string& name, const Block& block);

// bn, relu, conv 3 x 3, bn, relu, conv 3 x 3; the shortcut added: the block's input itself or,
// where shapes differ, a 1 x 1 convolution (`name`.downsample.0) of its first relu. Its
// padded_shortcut is not looked at.
void PreActivationBlock(LayerList* layers, const std::string& name, const Block& block);

}  // namespace foreshard
