// Resize of image_codec.h: two passes with the same filter, first along rows.
#include <algorithm>
#include <cmath>

#include "worker/data/image_codec.h"

namespace foreshard {
namespace {

// The pixels that one pixel of the result is made of, and their weights, which sum to 1.
struct Taps {
  uint32_t first = 0;
  std::vector<float> weights;
};

// Of a side: `to` pixels from [begin, begin + length) of `from`.
std::vector<Taps> TapsOf(uint32_t from, double begin, double length, uint32_t to) {
  const double scale = length / to;
  const double reach = std::max(scale, 1.0);  // half the triangle's width
  std::vector<Taps> all(to);
  for (uint32_t i = 0; i < to; ++i) {
    const double center = begin + (i + 0.5) * scale;
    const auto low = static_cast<int64_t>(std::floor(center - reach));
    const auto high = static_cast<int64_t>(std::ceil(center + reach));
    Taps& taps = all[i];
    const int64_t first = std::clamp<int64_t>(low, 0, int64_t{from} - 1);
    const int64_t last = std::clamp<int64_t>(high, first + 1, from);
    taps.first = static_cast<uint32_t>(first);
    double sum = 0;
    std::vector<double> weights;
    for (int64_t at = first; at < last; ++at) {
      weights.push_back(std::max(0.0, 1 - std::abs(static_cast<double>(at) + 0.5 - center) / reach));
      sum += weights.back();
    }
    if (sum <= 0) {
      weights.assign(1, 1.0);
      sum = 1;
    }
    for (double weight : weights) taps.weights.push_back(static_cast<float>(weight / sum));
  }
  return all;
}

}  // namespace

Image Resize(const Image& image, const ImageBox& box, uint32_t width, uint32_t height,
             bool mirrored) {
  Image out{width, height, std::vector<uint8_t>(size_t{width} * height * 3)};
  const std::vector<Taps> columns = TapsOf(image.width, box.x, box.width, width);
  const std::vector<Taps> rows = TapsOf(image.height, box.y, box.height, height);
  uint32_t top = image.height, bottom = 0;
  for (const Taps& taps : rows) {
    top = std::min(top, taps.first);
    bottom = std::max(bottom, taps.first + static_cast<uint32_t>(taps.weights.size()));
  }
  const size_t row_floats = size_t{width} * 3;
  std::vector<float> between(row_floats * (bottom - top));
  for (uint32_t y = top; y < bottom; ++y) {
    const uint8_t* from = image.pixels.data() + size_t{y} * image.width * 3;
    float* to = between.data() + (y - top) * row_floats;
    for (uint32_t x = 0; x < width; ++x, to += 3) {
      const Taps& taps = columns[mirrored ? width - 1 - x : x];
      const uint8_t* pixel = from + size_t{taps.first} * 3;
      float red = 0, green = 0, blue = 0;
      for (float weight : taps.weights) {
        red += weight * pixel[0];
        green += weight * pixel[1];
        blue += weight * pixel[2];
        pixel += 3;
      }
      to[0] = red;
      to[1] = green;
      to[2] = blue;
    }
  }
  std::vector<float> sums(row_floats);
  for (uint32_t y = 0; y < height; ++y) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    const float* from = between.data() + (rows[y].first - top) * row_floats;
    for (float weight : rows[y].weights) {
      for (size_t i = 0; i < row_floats; ++i) sums[i] += weight * from[i];
      from += row_floats;
    }
    uint8_t* to = out.pixels.data() + y * row_floats;
    for (size_t i = 0; i < row_floats; ++i) {
      to[i] = static_cast<uint8_t>(std::clamp(sums[i] + 0.5f, 0.0f, 255.0f));
    }
  }
  return out;
}

}  // namespace foreshard
