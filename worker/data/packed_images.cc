#include "worker/data/packed_images.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/core/random.h"
#include "worker/data/images.h"

namespace foreshard {
namespace {

constexpr uint64_t kPartStream = 0x70617274;  // "part"
constexpr uint64_t kFlipStream = 0x666C6970;  // "flip"
constexpr uint64_t kDraws = 64;               // of one example
constexpr int kTries = 10;
constexpr double kLeastRatio = 3.0 / 4, kMostRatio = 4.0 / 3;
constexpr double kMiddle = 7.0 / 8;

float OfChannel(const std::vector<float>& values, size_t channel, float otherwise) {
  if (values.empty()) return otherwise;
  return values.size() == 1 ? values[0] : values[channel];
}

}  // namespace

ImageBox RandomPart(uint64_t augment_key, uint64_t k, uint32_t width, uint32_t height,
                    float least_area) {
  uint64_t counter = k * kDraws;
  const auto uniform = [&](double low, double high) {
    return low + (high - low) * RandomUniform(augment_key, kPartStream, counter++);
  };
  const double area = double{1} * width * height;
  for (int i = 0; i < kTries; ++i) {
    const double wanted = area * uniform(least_area, 1);
    const double ratio = std::exp(uniform(std::log(kLeastRatio), std::log(kMostRatio)));
    const double w = std::round(std::sqrt(wanted * ratio));
    const double h = std::round(std::sqrt(wanted / ratio));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    const double x = std::floor(uniform(0, 1) * (width - w + 1));
    const double y = std::floor(uniform(0, 1) * (height - h + 1));
    return {x, y, w, h};
  }
  // The middle, as much of it as the ratios allow.
  double w = width, h = height;
  if (w / h < kLeastRatio) h = std::round(w / kLeastRatio);
  if (w / h > kMostRatio) w = std::round(h * kMostRatio);
  return {std::floor((width - w) / 2), std::floor((height - h) / 2), w, h};
}

ImageBox MiddlePart(uint32_t width, uint32_t height) {
  const double side = std::max(1.0, std::round(kMiddle * std::min(width, height)));
  return {std::floor((width - side) / 2), std::floor((height - side) / 2), side, side};
}

absl::StatusOr<std::unique_ptr<Dataset>> LoadPacked(const std::string& folder,
                                                    const PackedOptions& options) {
  if (auto s = CheckImageOptions(options.images, {options.side, options.side, 3}); !s.ok()) return s;
  auto records = PackedRecords::Open(folder);
  if (!records.ok()) return records.status();
  if (const size_t there = (*records)->index().classes.size(); there != options.classes) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, ": has images of ", there, " classes, but data.classes is ",
                     options.classes, "; say ", there, ", or name the right folder"));
  }
  return std::make_unique<PackedDataset>(*std::move(records), options);
}

PackedDataset::PackedDataset(std::unique_ptr<PackedRecords> records, const PackedOptions& options)
    : records_(std::move(records)), options_(options) {
  for (size_t c = 0; c < 3; ++c) {
    const float mean = OfChannel(options.images.means, c, 0);
    const float deviation = OfChannel(options.images.deviations, c, 1);
    for (int value = 0; value < 256; ++value) {
      normalised_.push_back(static_cast<float>((value / 255.0 - mean) / deviation));
    }
  }
  uint32_t threads = options.decode_threads;
  if (threads == 0) threads = std::max(std::thread::hardware_concurrency(), 2u) - 1;
  for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

PackedDataset::~PackedDataset() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  there_is_work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::shared_ptr<PackedDataset::Work> PackedDataset::MakeWork(absl::Span<const uint32_t> indices,
                                                             uint64_t key) const {
  auto work = std::make_shared<Work>();
  work->indices.assign(indices.begin(), indices.end());
  work->key = key;
  work->batch.examples = indices.size();
  work->batch.inputs.resize(indices.size() * shape().elements());
  for (uint32_t index : indices) {
    work->batch.labels.push_back(static_cast<int32_t>(records_->index().records[index].label));
  }
  return work;
}

void PackedDataset::Expect(absl::Span<const uint32_t> indices, uint64_t augment_key) const {
  const auto same = [&](const std::shared_ptr<Work>& work) {
    return work->key == augment_key &&
           std::equal(indices.begin(), indices.end(), work->indices.begin(), work->indices.end());
  };
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::any_of(work_.begin(), work_.end(), same)) return;
  }
  auto work = MakeWork(indices, augment_key);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    while (work_.size() >= kMostExpected) {
      const auto oldest = std::find_if(work_.begin(), work_.end(), [](const auto& each) { return !each->gathered; });
      if (oldest == work_.end()) return;
      work_.erase(oldest);
    }
    work_.push_back(std::move(work));
  }
  there_is_work_.notify_all();
}

absl::Status PackedDataset::Gather(absl::Span<const uint32_t> indices, uint64_t augment_key,
                                   Batch* batch) const {
  std::shared_ptr<Work> work;
  std::unique_lock<std::mutex> lock(mutex_);
  for (const std::shared_ptr<Work>& each : work_) {
    if (!each->gathered && each->key == augment_key &&
        std::equal(indices.begin(), indices.end(), each->indices.begin(), each->indices.end())) {
      work = each;
      break;
    }
  }
  if (work == nullptr) {
    lock.unlock();
    work = MakeWork(indices, augment_key);
    lock.lock();
    work_.push_front(work);
    there_is_work_.notify_all();
  }
  work->gathered = true;
  while (work->next < work->indices.size()) Step(&lock, work);
  some_done_.wait(lock, [&] { return work->done == work->indices.size(); });
  std::erase(work_, work);
  lock.unlock();
  *batch = std::move(work->batch);
  return work->status;
}

void PackedDataset::Step(std::unique_lock<std::mutex>* lock, const std::shared_ptr<Work>& work) const {
  const size_t k = work->next++;
  lock->unlock();
  const absl::Status status = Decode(*work, k, work->batch.inputs.data() + k * shape().elements());
  lock->lock();
  if (!status.ok() && work->status.ok()) work->status = status;
  if (++work->done == work->indices.size()) some_done_.notify_all();
}

void PackedDataset::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!closing_) {
    const auto found = std::find_if(work_.begin(), work_.end(), [](const auto& work) {
      return work->next < work->indices.size();
    });
    if (found == work_.end()) {
      there_is_work_.wait(lock);
    } else {
      const std::shared_ptr<Work> work = *found;  // stays when it is dropped meanwhile
      Step(&lock, work);
    }
  }
}

absl::Status PackedDataset::Decode(const Work& work, size_t k, float* to) const {
  const uint32_t record = work.indices[k];
  const auto bytes = records_->Read(record);
  if (!bytes.ok()) return bytes.status();
  const auto image = DecodeImage(*bytes);
  if (!image.ok()) {
    return absl::DataLossError(
        absl::StrCat(records_->Describe(record), " ", std::string(image.status().message())));
  }
  const bool random = work.key != 0 && options_.least_area < 1;
  const ImageBox box = random ? RandomPart(work.key, k, image->width, image->height, options_.least_area)
                              : MiddlePart(image->width, image->height);
  const bool mirrored = work.key != 0 && options_.images.flip &&
                        (RandomBits(work.key, kFlipStream, k / 64) >> (k % 64) & 1) != 0;
  const Image cut = Resize(*image, box, options_.side, options_.side, mirrored);
  const size_t pixels = size_t{options_.side} * options_.side;
  for (size_t i = 0; i < pixels; ++i) {
    for (size_t c = 0; c < 3; ++c) to[3 * i + c] = normalised_[c * 256 + cut.pixels[3 * i + c]];
  }
  return absl::OkStatus();
}

}  // namespace foreshard
