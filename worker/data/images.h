// Labelled images of bytes in memory: normalised when a batch is gathered, and moved and
// mirrored where the job says so. What the loaders of files fill.
//
//   auto data = std::make_unique<ImageDataset>(std::move(pixels), std::move(labels),
//       InputShape{32, 32, 3}, 10, ImageOptions{.means = {0.5f, 0.5f, 0.5f}, .flip = true});
#pragma once

#include <cstdint>
#include <vector>

#include "worker/data/dataset.h"

namespace foreshard {

class ImageDataset : public Dataset {
 public:
  // `pixels` [examples, height, width, channels], `labels` [examples] below `classes`;
  // `options` as CheckImageOptions approved them for these channels.
  ImageDataset(std::vector<uint8_t> pixels, std::vector<uint8_t> labels, InputShape shape,
               uint32_t classes, const ImageOptions& options);

  uint64_t examples() const override { return labels_.size(); }
  InputShape shape() const override { return shape_; }
  uint32_t classes() const override { return classes_; }
  absl::Status Gather(absl::Span<const uint32_t> indices, uint64_t augment_key,
                      Batch* batch) const override;

 private:
  // Of one example: where the picture that is made begins in the one that is there, and
  // whether it is mirrored.
  struct Move {
    int64_t down = 0, right = 0;
    bool mirrored = false;
  };

  void Write(const uint8_t* from, const Move& move, float* to) const;
  // `pixels` of a row from `from` on, forwards or backwards.
  void WriteRun(const uint8_t* from, bool backwards, uint64_t pixels, float* to) const;
  void WriteBlack(uint64_t pixels, float* to) const;

  std::vector<uint8_t> pixels_;
  std::vector<uint8_t> labels_;
  InputShape shape_;
  uint32_t classes_;
  bool flip_;
  uint32_t crop_padding_;
  std::vector<float> normalised_;  // [channels, 256]
};

// INVALID_ARGUMENT naming the field of the job: a deviation that is not above 0, a mean
// beyond reason, neither one nor `channels` of them, padding as large as the image.
absl::Status CheckImageOptions(const ImageOptions& options, const InputShape& shape);

}  // namespace foreshard
