// The data set of a folder of packed images. Records stay on disk; a batch is decoded by
// threads of its own and by the one that gathers it, and batches that are expected are decoded
// ahead, while another is computed. Made by LoadPacked (dataset.h).
//
// Training images, after torchvision's RandomResizedCrop: a part of the picture with an area
// uniform in [least_area, 1] of it and a ratio of width to height log-uniform in [3/4, 4/3],
// wherever it fits, comes to side x side; then half of them are mirrored. Otherwise the middle
// square of 7/8 of the shorter side (as 224 of 256), which is also what training images are where least_area
// is 1. All draws follow from the key of the batch and the place in it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "worker/data/dataset.h"
#include "worker/data/image_codec.h"
#include "worker/data/packed_records.h"

namespace foreshard {

// Part of a picture that a training image is, for the place `k` of the batch with this key.
ImageBox RandomPart(uint64_t augment_key, uint64_t k, uint32_t width, uint32_t height,
                    float least_area);
// Of a test image.
ImageBox MiddlePart(uint32_t width, uint32_t height);

// Thread-safe.
class PackedDataset : public Dataset {
 public:
  PackedDataset(std::unique_ptr<PackedRecords> records, const PackedOptions& options);
  ~PackedDataset() override;

  uint64_t examples() const override { return records_->index().records.size(); }
  InputShape shape() const override { return {options_.side, options_.side, 3}; }
  uint32_t classes() const override { return options_.classes; }
  absl::Status Gather(absl::Span<const uint32_t> indices, uint64_t augment_key,
                      Batch* batch) const override;
  // At most kMostExpected batches wait to be gathered; the oldest goes first.
  void Expect(absl::Span<const uint32_t> indices, uint64_t augment_key) const override;

  static constexpr size_t kMostExpected = 64;

 private:
  // One batch; its examples are taken one by one.
  struct Work {
    std::vector<uint32_t> indices;
    uint64_t key = 0;
    Batch batch;
    size_t next = 0;  // example to be taken
    size_t done = 0;
    bool gathered = false;  // somebody waits for it
    absl::Status status;    // the first that failed
  };

  std::shared_ptr<Work> MakeWork(absl::Span<const uint32_t> indices, uint64_t key) const;
  void Run();
  // Decodes example `k`, without the mutex.
  absl::Status Decode(const Work& work, size_t k, float* to) const;
  // Takes and decodes one example. The lock is held before and after, not meanwhile.
  void Step(std::unique_lock<std::mutex>* lock, const std::shared_ptr<Work>& work) const;

  const std::unique_ptr<PackedRecords> records_;
  const PackedOptions options_;
  std::vector<float> normalised_;  // [3, 256]

  mutable std::mutex mutex_;
  mutable std::condition_variable there_is_work_, some_done_;
  mutable std::deque<std::shared_ptr<Work>> work_;  // guarded by mutex_; all not gathered yet
  bool closing_ = false;                            // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace foreshard
