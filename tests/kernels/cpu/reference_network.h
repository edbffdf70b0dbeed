// Forward of a kernels::NetworkSpec as plainly as possible, in fp64: what layers
// are compared with, and, by central differences of its loss, their gradients.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/device.h"

namespace foreshard::kernels {

struct ReferenceResult {
  double loss = 0;  // sum over the examples
  uint64_t correct = 0;
  std::vector<double> statistics;  // training: as Network::Train gives them, weight 1
};

// Activations are [examples, height, width, channels].
inline std::vector<double> ReferenceLayer(const Layer& layer, uint64_t examples, const Shape& in,
                                          const Shape& out, const std::vector<double>& x,
                                          const std::vector<double>& vector, bool training,
                                          uint64_t statistics_begin,
                                          std::vector<double>& statistics) {
  std::vector<double> y(examples * out.elements());
  auto at = [](const Shape& shape, uint64_t n, uint64_t h, uint64_t w, uint64_t c) {
    return ((n * shape.height + h) * shape.width + w) * shape.channels + c;
  };
  if (const auto* conv = std::get_if<Convolution>(&layer)) {
    for (uint64_t n = 0; n < examples; ++n)
      for (uint64_t h = 0; h < out.height; ++h)
        for (uint64_t w = 0; w < out.width; ++w)
          for (uint64_t o = 0; o < out.channels; ++o) {
            double sum = conv->bias == kNoTensor ? 0 : vector[conv->bias + o];
            for (uint64_t kh = 0; kh < conv->kernel; ++kh)
              for (uint64_t kw = 0; kw < conv->kernel; ++kw) {
                const int64_t ih = int64_t(h * conv->stride + kh) - conv->padding;
                const int64_t iw = int64_t(w * conv->stride + kw) - conv->padding;
                if (ih < 0 || iw < 0 || ih >= in.height || iw >= in.width) continue;
                for (uint64_t i = 0; i < in.channels; ++i) {
                  const uint64_t filter =
                      ((o * conv->kernel + kh) * conv->kernel + kw) * in.channels + i;
                  sum += x[at(in, n, ih, iw, i)] * vector[conv->weight + filter];
                }
              }
            y[at(out, n, h, w, o)] = sum;
          }
  } else if (const auto* norm = std::get_if<BatchNorm>(&layer)) {
    const uint64_t values = examples * in.height * in.width;
    for (uint64_t c = 0; c < in.channels; ++c) {
      double mean = vector[norm->mean + c], variance = vector[norm->variance + c];
      if (training) {
        mean = variance = 0;
        for (uint64_t i = 0; i < values; ++i) mean += x[i * in.channels + c] / double(values);
        for (uint64_t i = 0; i < values; ++i) {
          const double difference = x[i * in.channels + c] - mean;
          variance += difference * difference / double(values);
        }
        statistics[norm->mean - statistics_begin + c] = mean;
        statistics[norm->variance - statistics_begin + c] =
            values > 1 ? variance * double(values) / double(values - 1) : variance;
      }
      const double scale = vector[norm->weight + c] / std::sqrt(variance + double{norm->epsilon});
      for (uint64_t i = 0; i < values; ++i) {
        y[i * in.channels + c] =
            scale * (x[i * in.channels + c] - mean) + vector[norm->bias + c];
      }
    }
  } else if (const auto* pool = std::get_if<MaxPool>(&layer)) {
    for (uint64_t n = 0; n < examples; ++n)
      for (uint64_t h = 0; h < out.height; ++h)
        for (uint64_t w = 0; w < out.width; ++w)
          for (uint64_t c = 0; c < out.channels; ++c) {
            double largest = -INFINITY;
            for (uint64_t kh = 0; kh < pool->size; ++kh)
              for (uint64_t kw = 0; kw < pool->size; ++kw) {
                const int64_t ih = int64_t(h * pool->stride + kh) - pool->padding;
                const int64_t iw = int64_t(w * pool->stride + kw) - pool->padding;
                if (ih < 0 || iw < 0 || ih >= in.height || iw >= in.width) continue;
                largest = std::max(largest, x[at(in, n, ih, iw, c)]);
              }
            y[at(out, n, h, w, c)] = largest;
          }
  } else if (std::holds_alternative<GlobalAveragePool>(layer)) {
    const uint64_t positions = uint64_t{in.height} * in.width;
    for (uint64_t n = 0; n < examples; ++n)
      for (uint64_t i = 0; i < positions; ++i)
        for (uint64_t c = 0; c < in.channels; ++c)
          y[n * in.channels + c] += x[(n * positions + i) * in.channels + c] / double(positions);
  } else if (const auto* subsample = std::get_if<Subsample>(&layer)) {
    const uint64_t before = (out.channels - in.channels) / 2;
    for (uint64_t n = 0; n < examples; ++n)
      for (uint64_t h = 0; h < out.height; ++h)
        for (uint64_t w = 0; w < out.width; ++w)
          for (uint64_t c = 0; c < in.channels; ++c)
            y[at(out, n, h, w, before + c)] =
                x[at(in, n, h * subsample->stride, w * subsample->stride, c)];
  } else if (const auto* dense = std::get_if<Dense>(&layer)) {
    const uint64_t inputs = in.elements();
    for (uint64_t n = 0; n < examples; ++n)
      for (uint64_t o = 0; o < dense->units; ++o) {
        double sum = dense->bias == kNoTensor ? 0 : vector[dense->bias + o];
        for (uint64_t i = 0; i < inputs; ++i)
          sum += x[n * inputs + i] * vector[dense->weight + o * inputs + i];
        y[n * dense->units + o] = sum;
      }
  } else {
    for (size_t i = 0; i < x.size(); ++i) y[i] = std::max(0.0, x[i]);
  }
  return y;
}

inline ReferenceResult ReferenceForward(const NetworkSpec& spec, const BatchView& batch,
                                        const std::vector<double>& vector, bool training) {
  ReferenceResult result;
  result.statistics.resize(spec.elements - spec.trainable_elements);
  std::vector<double> x(batch.inputs, batch.inputs + batch.examples * spec.input.elements());
  Shape shape = spec.input;
  std::vector<Shape> shapes;
  std::vector<std::vector<double>> outputs;
  for (const Layer& layer : spec.layers) {
    const Shape out = OutputShape(layer, shape, shapes).value();
    if (const auto* from = std::get_if<From>(&layer)) {
      x = outputs[from->layer];
    } else if (const auto* add = std::get_if<AddFrom>(&layer)) {
      for (size_t i = 0; i < x.size(); ++i) x[i] += outputs[add->layer][i];
    } else {
      x = ReferenceLayer(layer, batch.examples, shape, out, x, vector, training,
                         spec.trainable_elements, result.statistics);
    }
    shape = out;
    shapes.push_back(shape);
    outputs.push_back(x);
  }
  for (uint64_t n = 0; n < batch.examples; ++n) {
    const double* row = x.data() + n * shape.channels;
    const uint64_t best = std::max_element(row, row + shape.channels) - row;
    double sum = 0;
    for (uint32_t c = 0; c < shape.channels; ++c) sum += std::exp(row[c] - row[best]);
    result.loss += std::log(sum) - (row[batch.labels[n]] - row[best]);
    result.correct += best == static_cast<uint64_t>(batch.labels[n]);
  }
  return result;
}

// d(mean loss) / d(vector), element by element, by central differences.
inline std::vector<double> ReferenceGradient(const NetworkSpec& spec, const BatchView& batch,
                                             std::vector<double> vector) {
  constexpr double kStep = 1e-6;
  std::vector<double> gradient(spec.trainable_elements);
  for (uint64_t i = 0; i < gradient.size(); ++i) {
    const double value = vector[i];
    vector[i] = value + kStep;
    const double above = ReferenceForward(spec, batch, vector, true).loss;
    vector[i] = value - kStep;
    const double below = ReferenceForward(spec, batch, vector, true).loss;
    vector[i] = value;
    gradient[i] = (above - below) / (2 * kStep) / double(batch.examples);
  }
  return gradient;
}

}  // namespace foreshard::kernels
