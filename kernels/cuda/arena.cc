#include "kernels/cuda/arena.h"

#include <algorithm>

namespace FORESHARD_CUDA_NAMESPACE {

ArenaPlan::Region ArenaPlan::Take(uint64_t bytes) {
  const uint64_t length =
      (std::max<uint64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  live_bytes_ += length;
  // The smallest hole that fits, so that large ones stay whole.
  auto best = free_.end();
  for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
    if (hole->bytes >= length && (best == free_.end() || hole->bytes < best->bytes)) best = hole;
  }
  if (best != free_.end()) {
    const Region region = {best->offset, length};
    best->offset += length;
    best->bytes -= length;
    if (best->bytes == 0) free_.erase(best);
    return region;
  }
  Region region = {bytes_, length};
  // A hole at the end grows.
  if (!free_.empty() && free_.back().offset + free_.back().bytes == bytes_) {
    region.offset = free_.back().offset;
    free_.pop_back();
  }
  bytes_ = region.offset + length;
  return region;
}

void ArenaPlan::Give(const Region& region) {
  live_bytes_ -= region.bytes;
  auto next = std::find_if(free_.begin(), free_.end(),
                           [&](const Region& hole) { return hole.offset > region.offset; });
  next = free_.insert(next, region);
  if (next + 1 != free_.end() && next->offset + next->bytes == (next + 1)->offset) {
    next->bytes += (next + 1)->bytes;
    free_.erase(next + 1);
  }
  if (next != free_.begin() && (next - 1)->offset + (next - 1)->bytes == next->offset) {
    (next - 1)->bytes += next->bytes;
    free_.erase(next);
  }
}

}  // namespace FORESHARD_CUDA_NAMESPACE
