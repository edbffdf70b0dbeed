// How a schema's flat vector is cut: into contiguous shards, one a server, and
// those into segments and blocks. Every program computes the same plan from the
// schema and the JobSpec.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/core/block.h"
#include "common/core/schema.h"

namespace foreshard {

struct SegmentPlan {
  uint32_t id = 0;     // index in ShardPlan::segments()
  uint32_t shard = 0;
  TensorKind kind = TensorKind::kTrainable;  // a segment holds one kind only
  uint64_t begin = 0;  // first element, in the flat vector
  uint64_t elements = 0;
  std::vector<Block> blocks;  // cover the segment in order, without gaps
};

struct ShardPlanOptions {
  uint32_t shards = 1;
  uint32_t segment_elements = 1 << 20;
  uint32_t block_elements = kMaxBlockElements;
  // Trainable tensors that stay in full precision (Block::full): those whose name one of
  // the patterns describes, in which '*' is any run of characters, also none; and those
  // with fewer elements than this, unless they are dead.
  std::vector<std::string> full_precision;
  uint64_t full_precision_below = 0;
  // Trainable tensors that never get a gradient (Block::dead), by patterns as above.
  std::vector<std::string> dead;
};

// Immutable once created; safe to share between threads.
class ShardPlan {
 public:
  ShardPlan() = default;

  // The vector is cut into `shards` contiguous parts whose trainable elements
  // differ by less than 64 where the model is large enough; the statistics
  // belong to the last shard. Segments never hold both kinds; empty tensors
  // have no blocks. INVALID_ARGUMENT: no shards, more shards than trainable
  // elements, a block length of 0 or beyond kMaxBlockElements, a segment
  // shorter than a block, a pattern that describes no trainable tensor, a tensor
  // that patterns call both dead and in full precision, nothing but dead ones.
  static absl::StatusOr<ShardPlan> Create(const Schema& schema, const ShardPlanOptions& options);

  const std::vector<SegmentPlan>& segments() const { return segments_; }
  uint32_t shards() const { return options_.shards; }
  // Ids of the shard's segments, in order; contiguous.
  std::vector<uint32_t> SegmentsOfShard(uint32_t shard) const;
  // Largest shard's elements over the mean, minus one.
  double imbalance() const;
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  ShardPlanOptions options_;
  std::vector<SegmentPlan> segments_;
  uint64_t fingerprint_ = 0;
};

}  // namespace foreshard
