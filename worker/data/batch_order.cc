#include <algorithm>

#include "common/core/random.h"
#include "worker/data/dataset.h"

namespace foreshard {
namespace {

// Streams of the shuffles: one an epoch, apart from those of tensors by chance
// of a 64-bit hash.
constexpr uint64_t kShuffleStream = 0x73687566666C6500;  // "shuffle"

}  // namespace

BatchOrder::BatchOrder(uint64_t seed, uint64_t examples, uint32_t batch_size)
    : seed_(seed),
      examples_(examples),
      batches_per_epoch_((examples + batch_size - 1) / batch_size),
      batch_size_(batch_size) {}

absl::Span<const uint32_t> BatchOrder::Indices(uint64_t ticket) {
  const uint64_t epoch = ticket / batches_per_epoch_;
  if (epoch != epoch_) {
    permutation_ =
        RandomPermutation(seed_, kShuffleStream + epoch, static_cast<uint32_t>(examples_));
    epoch_ = epoch;
  }
  const uint64_t begin = ticket % batches_per_epoch_ * batch_size_;
  const uint64_t size = std::min<uint64_t>(batch_size_, examples_ - begin);
  return absl::MakeConstSpan(permutation_).subspan(begin, size);
}

}  // namespace foreshard
