// Small networks that read text, with a made-up batch: for tests of every device.
#pragma once

#include <cstdint>
#include <vector>

#include "common/core/random.h"
#include "kernels/device.h"

namespace foreshard::kernels {

inline constexpr uint32_t kTokens = 11;
inline constexpr uint64_t kBias = 0;  // asks TextCase for one
inline constexpr uint64_t kTied = 1;  // as a weight: the embedding's

struct TextCase {
  NetworkSpec spec;
  std::vector<float> vector;
  std::vector<int32_t> tokens, segments, lengths, target_positions, targets, labels;
  std::vector<uint64_t> keys;

  BatchView Batch(uint64_t examples, uint64_t first = 0) const {
    const uint64_t positions = spec.input.height, count = target_positions.size() / spec.batch_size;
    return {.examples = examples,
            .labels = labels.data() + first,
            .text = {.tokens = tokens.data() + first * positions,
                     .segments = segments.data() + first * positions,
                     .lengths = lengths.data() + first,
                     .target_positions = target_positions.data() + first * count,
                     .targets = targets.data() + first * count,
                     .keys = keys.data() + first}};
  }
  std::vector<double> Doubles() const { return {vector.begin(), vector.end()}; }
};

// The last layer is added: of each target's position, for the vocabulary.
inline TextCase MakeTextCase(uint32_t positions, std::vector<Layer> layers, uint32_t batch_size,
                  uint32_t targets, bool tied, uint64_t seed = 1) {
  TextCase c;
  layers.push_back(Dense{.units = kTokens, .weight = tied ? kTied : kNoTensor, .bias = kBias, .each_position = true});
  c.spec = {.input = {positions, 1, 1}, .layers = std::move(layers), .batch_size = batch_size};
  uint64_t elements = 0;
  const auto take = [&](uint64_t n) {
    elements += n;
    return elements - n;
  };
  Shape shape = c.spec.input;
  std::vector<Shape> shapes;
  for (Layer& layer : c.spec.layers) {
    const Shape out = OutputShape(layer, shape, shapes).value();
    if (auto* embedding = std::get_if<Embedding>(&layer)) {
      embedding->token = take(embedding->tokens * embedding->channels);
      embedding->position = take(embedding->positions * embedding->channels);
      embedding->segment = take(embedding->segments * embedding->channels);
    } else if (auto* norm = std::get_if<LayerNorm>(&layer)) {
      norm->weight = take(shape.channels);
      norm->bias = take(shape.channels);
    } else if (auto* dense = std::get_if<Dense>(&layer)) {
      const uint64_t inputs = dense->each_position ? shape.channels : shape.elements();
      dense->weight = dense->weight == kTied ? std::get<Embedding>(c.spec.layers[0]).token
                                             : take(dense->units * inputs);
      if (dense->bias != kNoTensor) dense->bias = take(dense->units);
    }
    shape = out;
    shapes.push_back(out);
  }
  c.spec.trainable_elements = c.spec.elements = elements;
  for (uint64_t i = 0; i < elements; ++i) {
    c.vector.push_back(0.5f * static_cast<float>(RandomNormal(seed, 1, i)));
  }
  for (uint64_t e = 0; e < batch_size; ++e) {
    const auto length = static_cast<int32_t>(e == 0 ? positions : positions - RandomBits(seed, 2, e) % (positions / 2 + 1));
    c.lengths.push_back(length);
    c.keys.push_back(RandomBits(seed, 3, e));
    c.labels.push_back(static_cast<int32_t>(RandomBits(seed, 4, e) % 2));
    for (uint64_t p = 0; p < positions; ++p) {
      c.tokens.push_back(static_cast<int32_t>(RandomBits(seed, 5, e * positions + p) % kTokens));
      c.segments.push_back(static_cast<int32_t>(p * 2 / positions));
    }
    for (uint64_t t = 0; t < targets; ++t) {
      c.target_positions.push_back(static_cast<int32_t>((t * 3 + e) % length));
      const bool none = t + 1 == targets && e % 2 == 1;
      c.targets.push_back(none ? kNoTarget : static_cast<int32_t>(RandomBits(seed, 6, e * targets + t) % kTokens));
    }
  }
  return c;
}

inline Embedding Table(uint32_t channels, uint32_t positions) {
  return {.channels = channels, .tokens = kTokens, .positions = positions, .segments = 2};
}

// Two heads of 4; a block as BERT's, with dropout wherever it is.
inline std::vector<Layer> Encoder(uint32_t positions, float dropout) {
  return {Table(8, positions),
          LayerNorm{},
          Dropout{dropout},
          Dense{.units = 24, .bias = kBias, .each_position = true},
          Attention{.heads = 2, .dropout = dropout},
          Dense{.units = 8, .bias = kBias, .each_position = true},
          Dropout{dropout},
          AddFrom{2},
          LayerNorm{},
          Dense{.units = 20, .bias = kBias, .each_position = true},
          Gelu{},
          Dense{.units = 8, .bias = kBias, .each_position = true},
          Dropout{dropout},
          AddFrom{8},
          LayerNorm{}};
}

inline std::vector<Layer> With(std::vector<Layer> layers, const std::vector<Layer>& more) {
  layers.insert(layers.end(), more.begin(), more.end());
  return layers;
}

}  // namespace foreshard::kernels
