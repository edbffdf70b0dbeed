// Forward of a network that reads text as plainly as possible, in fp64: what its layers are
// compared with, and, by central differences of its loss, their gradients.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <variant>
#include <vector>

#include "kernels/device.h"
#include "kernels/philox.h"

namespace foreshard::kernels {

struct TextReference {
  double loss = 0;  // as Train's gradient belongs to: means over targets and examples
  double target_loss = 0, side_loss = 0;  // sums
  uint64_t correct = 0, side_correct = 0, count = 0;
};

// [examples, positions, channels].
using Values = std::vector<double>;

inline Values ReferenceAttention(const Attention& layer, uint32_t number, const Shape& in,
                                 const BatchView& batch, const Values& x, bool training) {
  const uint64_t positions = in.height, channels = in.channels / 3, d = channels / layer.heads;
  Values y(batch.examples * positions * channels);
  const auto at = [&](uint64_t e, uint64_t p, uint64_t which, uint64_t head, uint64_t c) {
    return x[(e * positions + p) * 3 * channels + which * channels + head * d + c];
  };
  for (uint64_t e = 0; e < batch.examples; ++e)
    for (uint64_t head = 0; head < layer.heads; ++head)
      for (uint64_t row = 0; row < uint64_t(batch.text.lengths[e]); ++row) {
        const auto length = uint64_t(batch.text.lengths[e]);
        Values weights(length);
        double sum = 0;
        for (uint64_t column = 0; column < length; ++column) {
          double dot = 0;
          for (uint64_t c = 0; c < d; ++c) dot += at(e, row, 0, head, c) * at(e, column, 1, head, c);
          weights[column] = std::exp(dot / std::sqrt(double(d)));
          sum += weights[column];
        }
        for (uint64_t column = 0; column < length; ++column) {
          double weight = weights[column] / sum;
          if (training && layer.dropout > 0 && batch.text.keys != nullptr) {
            const uint64_t value = (head * positions + row) * positions + column;
            const uint32_t word = DropoutWord(batch.text.keys[e], number, value);
            weight = word < DropoutThreshold(layer.dropout) ? 0 : weight / (1 - double{layer.dropout});
          }
          for (uint64_t c = 0; c < d; ++c) {
            y[(e * positions + row) * channels + head * d + c] += weight * at(e, column, 2, head, c);
          }
        }
      }
  return y;
}

inline Values ReferenceTextLayer(const Layer& layer, uint32_t number, const Shape& in,
                                 const Shape& out, const BatchView& batch, const Values& x,
                                 const std::vector<double>& vector, bool training) {
  const uint64_t examples = batch.examples;
  Values y(examples * out.elements());
  if (const auto* embedding = std::get_if<Embedding>(&layer)) {
    for (uint64_t row = 0; row < examples * in.height; ++row)
      for (uint64_t c = 0; c < out.channels; ++c)
        y[row * out.channels + c] =
            vector[embedding->token + batch.text.tokens[row] * out.channels + c] +
            vector[embedding->position + row % in.height * out.channels + c] +
            vector[embedding->segment + batch.text.segments[row] * out.channels + c];
  } else if (const auto* norm = std::get_if<LayerNorm>(&layer)) {
    for (uint64_t row = 0; row < examples * in.height; ++row) {
      const double* from = x.data() + row * in.channels;
      double mean = 0, variance = 0;
      for (uint64_t c = 0; c < in.channels; ++c) mean += from[c] / in.channels;
      for (uint64_t c = 0; c < in.channels; ++c) variance += (from[c] - mean) * (from[c] - mean) / in.channels;
      for (uint64_t c = 0; c < in.channels; ++c)
        y[row * in.channels + c] = vector[norm->weight + c] * (from[c] - mean) /
                                       std::sqrt(variance + double{norm->epsilon}) +
                                   vector[norm->bias + c];
    }
  } else if (const auto* dense = std::get_if<Dense>(&layer)) {
    const uint64_t inputs = dense->each_position ? in.channels : in.elements();
    for (uint64_t row = 0; row < x.size() / inputs; ++row)
      for (uint64_t o = 0; o < dense->units; ++o) {
        double sum = dense->bias == kNoTensor ? 0 : vector[dense->bias + o];
        for (uint64_t i = 0; i < inputs; ++i) sum += x[row * inputs + i] * vector[dense->weight + o * inputs + i];
        y[row * dense->units + o] = sum;
      }
  } else if (const auto* attention = std::get_if<Attention>(&layer)) {
    return ReferenceAttention(*attention, number, in, batch, x, training);
  } else if (const auto* dropout = std::get_if<Dropout>(&layer)) {
    for (uint64_t i = 0; i < x.size(); ++i) {
      const uint64_t elements = in.elements();
      const bool on = training && dropout->rate > 0 && batch.text.keys != nullptr;
      const bool dropped = on && DropoutWord(batch.text.keys[i / elements], number, i % elements) <
                                     DropoutThreshold(dropout->rate);
      y[i] = !on ? x[i] : dropped ? 0 : x[i] / (1 - double{dropout->rate});
    }
  } else if (std::holds_alternative<Gelu>(layer)) {
    for (uint64_t i = 0; i < x.size(); ++i) y[i] = x[i] * 0.5 * (1 + std::erf(x[i] / std::sqrt(2.0)));
  } else if (std::holds_alternative<Relu>(layer)) {
    for (uint64_t i = 0; i < x.size(); ++i) y[i] = std::max(x[i], 0.0);
  } else if (std::holds_alternative<Tanh>(layer)) {
    for (uint64_t i = 0; i < x.size(); ++i) y[i] = std::tanh(x[i]);
  } else {  // TargetPositions, FirstPosition
    const bool first = std::holds_alternative<FirstPosition>(layer);
    for (uint64_t row = 0; row < examples * out.height; ++row) {
      const uint64_t from = row / out.height * in.height + (first ? 0 : batch.text.target_positions[row]);
      for (uint64_t c = 0; c < in.channels; ++c) y[row * in.channels + c] = x[from * in.channels + c];
    }
  }
  return y;
}

// Cross-entropy of one row of logits.
inline double RowLoss(const double* row, uint64_t classes, uint64_t label, bool* correct) {
  const uint64_t best = std::max_element(row, row + classes) - row;
  double sum = 0;
  for (uint64_t c = 0; c < classes; ++c) sum += std::exp(row[c] - row[best]);
  *correct = best == label;
  return std::log(sum) - (row[label] - row[best]);
}

inline TextReference ReferenceTextForward(const NetworkSpec& spec, const BatchView& batch,
                                          const std::vector<double>& vector, bool training) {
  TextReference result;
  std::vector<Shape> shapes;
  std::vector<Values> outputs;
  Shape shape = spec.input;
  Values x;
  for (uint32_t i = 0; i < spec.layers.size(); ++i) {
    const Layer& layer = spec.layers[i];
    const Shape out = OutputShape(layer, shape, shapes).value();
    if (const auto* from = std::get_if<From>(&layer)) {
      x = outputs[from->layer];
    } else if (const auto* add = std::get_if<AddFrom>(&layer)) {
      for (size_t k = 0; k < x.size(); ++k) x[k] += outputs[add->layer][k];
    } else if (std::holds_alternative<SideLoss>(layer)) {
      for (uint64_t e = 0; e < batch.examples; ++e) {
        bool correct = false;
        result.side_loss += RowLoss(x.data() + e * out.channels, out.channels, batch.labels[e], &correct);
        result.side_correct += correct;
      }
    } else {
      x = ReferenceTextLayer(layer, i, shape, out, batch, x, vector, training);
    }
    shape = out;
    shapes.push_back(shape);
    outputs.push_back(x);
  }
  for (uint64_t row = 0; row < batch.examples * shape.height; ++row) {
    if (batch.text.targets[row] == kNoTarget) continue;
    bool correct = false;
    result.target_loss += RowLoss(x.data() + row * shape.channels, shape.channels, batch.text.targets[row], &correct);
    result.correct += correct;
    ++result.count;
  }
  const double divisor = batch.text.divisor > 0 ? batch.text.divisor : double(result.count);
  result.loss = (divisor > 0 ? result.target_loss / divisor : 0) + result.side_loss / double(batch.examples);
  return result;
}

// d loss / d vector, element by element, by central differences.
inline std::vector<double> ReferenceTextGradient(const NetworkSpec& spec, const BatchView& batch,
                                                 std::vector<double> vector) {
  constexpr double kStep = 1e-6;
  std::vector<double> gradient(spec.trainable_elements);
  for (uint64_t i = 0; i < gradient.size(); ++i) {
    const double value = vector[i];
    vector[i] = value + kStep;
    const double above = ReferenceTextForward(spec, batch, vector, true).loss;
    vector[i] = value - kStep;
    const double below = ReferenceTextForward(spec, batch, vector, true).loss;
    vector[i] = value;
    gradient[i] = (above - below) / (2 * kStep);
  }
  return gradient;
}

}  // namespace foreshard::kernels
