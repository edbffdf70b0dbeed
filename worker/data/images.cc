#include "worker/data/images.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/core/random.h"

namespace foreshard {
namespace {

constexpr uint64_t kFlipStream = 0x666C6970;  // "flip"
constexpr uint64_t kCropStream = 0x63726F70;  // "crop"

// The value of one channel, or the one that all have.
float OfChannel(const std::vector<float>& values, size_t channel, float otherwise) {
  if (values.empty()) return otherwise;
  return values.size() == 1 ? values[0] : values[channel];
}

// Uniform in 0..places-1 from 32 random bits.
uint64_t Place(uint64_t bits, uint64_t places) { return (bits & 0xFFFFFFFF) * places >> 32; }

}  // namespace

absl::Status CheckImageOptions(const ImageOptions& options, const InputShape& shape) {
  for (const std::vector<float>* values : {&options.means, &options.deviations}) {
    if (values->size() > 1 && values->size() != shape.channels) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.", values == &options.means ? "channel_means" : "channel_deviations",
                       " has ", values->size(), " numbers, but images have ", shape.channels,
                       " channels"));
    }
  }
  for (size_t c = 0; c < shape.channels; ++c) {
    const float mean = OfChannel(options.means, c, 0);
    const float deviation = OfChannel(options.deviations, c, 1);
    if (!(deviation > 0) || !(std::abs(mean) < 1e6f)) {
      return absl::InvalidArgumentError(absl::StrCat("data.mean is ", mean,
                                                     " and data.deviation ", deviation,
                                                     "; the deviation must be above 0"));
    }
  }
  if (options.crop_padding >= std::min(shape.height, shape.width) && options.crop_padding > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.crop_padding is ", options.crop_padding, ", but images are ",
                     shape.height, " x ", shape.width, "; it must be smaller"));
  }
  return absl::OkStatus();
}

ImageDataset::ImageDataset(std::vector<uint8_t> pixels, std::vector<uint8_t> labels,
                           InputShape shape, uint32_t classes, const ImageOptions& options)
    : pixels_(std::move(pixels)),
      labels_(std::move(labels)),
      shape_(shape),
      classes_(classes),
      flip_(options.flip),
      crop_padding_(options.crop_padding) {
  for (size_t c = 0; c < shape.channels; ++c) {
    const float mean = OfChannel(options.means, c, 0);
    const float deviation = OfChannel(options.deviations, c, 1);
    for (int value = 0; value < 256; ++value) {
      normalised_.push_back(static_cast<float>((value / 255.0 - mean) / deviation));
    }
  }
}

absl::Status ImageDataset::Gather(absl::Span<const uint32_t> indices, uint64_t augment_key,
                                  Batch* batch) const {
  const uint64_t size = shape_.elements();
  batch->examples = indices.size();
  batch->inputs.resize(indices.size() * size);
  batch->labels.resize(indices.size());
  uint64_t mirrored = 0;  // of 64 examples
  for (uint64_t k = 0; k < indices.size(); ++k) {
    Move move;
    if (flip_ && augment_key != 0) {
      if (k % 64 == 0) mirrored = RandomBits(augment_key, kFlipStream, k / 64);
      move.mirrored = mirrored >> (k % 64) & 1;
    }
    if (crop_padding_ > 0 && augment_key != 0) {
      const uint64_t bits = RandomBits(augment_key, kCropStream, k);
      const uint64_t places = 2 * uint64_t{crop_padding_} + 1;
      move.down = static_cast<int64_t>(Place(bits >> 32, places)) - crop_padding_;
      move.right = static_cast<int64_t>(Place(bits, places)) - crop_padding_;
    }
    Write(pixels_.data() + indices[k] * size, move, batch->inputs.data() + k * size);
    batch->labels[k] = labels_[indices[k]];
  }
  return absl::OkStatus();
}

void ImageDataset::Write(const uint8_t* from, const Move& move, float* to) const {
  const int64_t width = shape_.width, height = shape_.height, channels = shape_.channels;
  // Pixel x of a row is x + right of the picture that is there; mirrored, (width - 1 - x) +
  // right. From `begin` to `end` that lies inside.
  const int64_t shift = move.mirrored ? -move.right : move.right;
  const int64_t begin = std::max<int64_t>(0, -shift);
  const int64_t end = std::min(width, width - shift);
  const int64_t first = (move.mirrored ? width - 1 - begin : begin) + move.right;
  for (int64_t y = 0; y < height; ++y, to += width * channels) {
    const int64_t row = y + move.down;
    if (row < 0 || row >= height) {
      WriteBlack(static_cast<uint64_t>(width), to);
      continue;
    }
    WriteBlack(static_cast<uint64_t>(begin), to);
    WriteRun(from + (row * width + first) * channels, move.mirrored,
             static_cast<uint64_t>(end - begin), to + begin * channels);
    WriteBlack(static_cast<uint64_t>(width - end), to + end * channels);
  }
}

void ImageDataset::WriteRun(const uint8_t* from, bool backwards, uint64_t pixels,
                            float* to) const {
  const uint64_t channels = shape_.channels;
  const float* table = normalised_.data();
  if (channels == 1) {
    if (backwards) {
      for (uint64_t x = 0; x < pixels; ++x) to[x] = table[*(from - x)];
    } else {
      for (uint64_t x = 0; x < pixels; ++x) to[x] = table[from[x]];
    }
    return;
  }
  const int64_t step = backwards ? -static_cast<int64_t>(channels) : static_cast<int64_t>(channels);
  for (uint64_t x = 0; x < pixels; ++x, from += step, to += channels) {
    for (uint64_t c = 0; c < channels; ++c) to[c] = table[c * 256 + from[c]];
  }
}

void ImageDataset::WriteBlack(uint64_t pixels, float* to) const {
  const uint64_t channels = shape_.channels;
  for (uint64_t x = 0; x < pixels; ++x, to += channels) {
    for (uint64_t c = 0; c < channels; ++c) to[c] = normalised_[c * 256];
  }
}

}  // namespace foreshard
