#include "worker/models/residual.h"

namespace foreshard {
namespace {

constexpr uint32_t kExpansion = 4;  // of a bottleneck

void ConvolutionAndNorm(LayerList* layers, const std::string& name, const char* convolution,
                        const char* norm, uint32_t filters, uint32_t kernel, uint32_t stride) {
  layers->Convolution(name + convolution, filters, kernel, stride);
  layers->BatchNorm(name + norm);
}

// Adds the output of layer `input`, or what the shortcut makes of it.
void AddShortcut(LayerList* layers, const std::string& name, const Block& block, uint32_t input,
                 const kernels::Shape& input_shape) {
  const kernels::Shape shape = layers->shape();
  if (shape == input_shape) {
    layers->AddFrom(input);
    return;
  }
  const uint32_t main = layers->last();
  layers->From(input);
  if (block.padded_shortcut) {
    layers->Subsample(shape.channels, block.stride);
  } else {
    ConvolutionAndNorm(layers, name, ".downsample.0", ".downsample.1", shape.channels, 1,
                       block.stride);
  }
  layers->AddFrom(main);
}

}  // namespace

void BasicBlock(LayerList* layers, const std::string& name, const Block& block) {
  const uint32_t input = layers->last();
  const kernels::Shape input_shape = layers->shape();
  ConvolutionAndNorm(layers, name, ".conv1", ".bn1", block.channels, 3, block.stride);
  layers->Relu();
  ConvolutionAndNorm(layers, name, ".conv2", ".bn2", block.channels, 3, 1);
  AddShortcut(layers, name, block, input, input_shape);
  layers->Relu();
}

void Bottleneck(LayerList* layers, const std::string& name, const Block& block) {
  const uint32_t input = layers->last();
  const kernels::Shape input_shape = layers->shape();
  ConvolutionAndNorm(layers, name, ".conv1", ".bn1", block.channels, 1, 1);
  layers->Relu();
  ConvolutionAndNorm(layers, name, ".conv2", ".bn2", block.channels, 3, block.stride);
  layers->Relu();
  ConvolutionAndNorm(layers, name, ".conv3", ".bn3", kExpansion * block.channels, 1, 1);
  AddShortcut(layers, name, block, input, input_shape);
  layers->Relu();
}

void PreActivationBlock(LayerList* layers, const std::string& name, const Block& block) {
  const uint32_t input = layers->last();
  const kernels::Shape input_shape = layers->shape();
  layers->BatchNorm(name + ".bn1");
  layers->Relu();
  const uint32_t activated = layers->last();
  layers->Convolution(name + ".conv1", block.channels, 3, block.stride);
  layers->BatchNorm(name + ".bn2");
  layers->Relu();
  layers->Convolution(name + ".conv2", block.channels);
  if (layers->shape() == input_shape) {
    layers->AddFrom(input);
    return;
  }
  const uint32_t main = layers->last();
  layers->From(activated);
  layers->Convolution(name + ".downsample.0", block.channels, 1, block.stride);
  layers->AddFrom(main);
}

}  // namespace foreshard
