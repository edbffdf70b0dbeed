#include "common/core/shard_plan.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/core/bytes.h"

namespace foreshard {
namespace {

// Shard boundaries fall on multiples of this where shards are long enough, so
// that runs of a shard begin aligned in the flat vector.
constexpr uint64_t kShardAlignment = 64;
// So many names are said where none of them was meant.
constexpr size_t kNamedTensors = 20;

uint64_t ShardBoundary(uint64_t trainable, uint32_t shards, uint32_t shard) {
  if (shard == shards) return trainable;
  // Without 128-bit products: quotient and remainder apart.
  const uint64_t quotient = trainable / shards;
  const uint64_t remainder = trainable % shards;
  const uint64_t exact = quotient * shard + remainder * shard / shards;
  if (quotient < 2 * kShardAlignment) return exact;
  return exact / kShardAlignment * kShardAlignment;
}

// Whether the whole name is described by the pattern.
bool Describes(std::string_view pattern, std::string_view name) {
  // `star`: behind the last '*' seen; `retry`: where in the name its run ends so far.
  size_t p = 0, n = 0, star = std::string_view::npos, retry = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      retry = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star;
      n = ++retry;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

bool IsTrainable(const TensorSpec& tensor) { return tensor.kind == TensorKind::kTrainable; }

// By tensor: whether it is trainable and described by one of the patterns of this field.
absl::StatusOr<std::vector<bool>> Described(const Schema& schema, absl::string_view field,
                                            const std::vector<std::string>& patterns) {
  const std::vector<TensorSpec>& tensors = schema.tensors();
  std::vector<bool> described(tensors.size());
  for (const std::string& pattern : patterns) {
    bool found = false;
    for (size_t t = 0; t < tensors.size(); ++t) {
      if (!IsTrainable(tensors[t]) || !Describes(pattern, tensors[t].name)) continue;
      found = described[t] = true;
    }
    if (!found) {
      std::vector<std::string> names;
      for (size_t t = 0; t < tensors.size() && names.size() < kNamedTensors; ++t) {
        if (IsTrainable(tensors[t])) names.push_back(tensors[t].name);
      }
      return absl::InvalidArgumentError(absl::StrCat(
          field, ": '", pattern, "': no trainable tensor of the model has such a "
          "name ('*' stands for any characters); there are ", absl::StrJoin(names, ", "),
          names.size() == kNamedTensors ? ", ..." : ""));
    }
  }
  return described;
}

// By tensor.
struct Precision {
  std::vector<bool> full, dead;
};

absl::StatusOr<Precision> TensorPrecision(const Schema& schema, const ShardPlanOptions& options) {
  const std::vector<TensorSpec>& tensors = schema.tensors();
  auto full = Described(schema, "compression.full_precision", options.full_precision);
  if (!full.ok()) return full.status();
  auto dead = Described(schema, "apmsqueeze.dead", options.dead);
  if (!dead.ok()) return dead.status();
  bool any_alive = false;
  for (size_t t = 0; t < tensors.size(); ++t) {
    if ((*full)[t] && (*dead)[t]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "apmsqueeze.dead: '", tensors[t].name, "' is named by compression.full_precision too; of a "
          "dead tensor nothing is sent: take it out of one of the two"));
    }
    if (!IsTrainable(tensors[t])) continue;
    any_alive |= !(*dead)[t] && tensors[t].elements() > 0;
    if (tensors[t].elements() < options.full_precision_below && !(*dead)[t]) (*full)[t] = true;
  }
  if (!options.dead.empty() && !any_alive) {
    return absl::InvalidArgumentError(absl::StrCat(
        "apmsqueeze.dead: '", absl::StrJoin(options.dead, "', '"), "': no tensor is left that could be "
        "trained; name only those that never get a gradient"));
  }
  return Precision{.full = *std::move(full), .dead = *std::move(dead)};
}

}  // namespace

absl::StatusOr<ShardPlan> ShardPlan::Create(const Schema& schema, const ShardPlanOptions& options) {
  if (options.shards == 0) {
    return absl::InvalidArgumentError("shard plan: 0 shards; a job needs at least one server");
  }
  if (options.shards > schema.trainable_elements()) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard plan: ", options.shards, " shards for ", schema.trainable_elements(),
                     " trainable elements; use fewer servers"));
  }
  if (options.block_elements == 0 || options.block_elements > kMaxBlockElements) {
    return absl::InvalidArgumentError(absl::StrCat("shard plan: blocks of ", options.block_elements,
                                                   " elements; use 1 to ", kMaxBlockElements));
  }
  if (options.segment_elements < options.block_elements) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard plan: segments of ", options.segment_elements,
                     " elements are shorter than a block of ", options.block_elements,
                     "; use longer segments or shorter blocks"));
  }

  const absl::StatusOr<Precision> precision = TensorPrecision(schema, options);
  if (!precision.ok()) return precision.status();

  ShardPlan plan;
  plan.options_ = options;
  ByteWriter identity;
  identity.Put(options.shards);
  identity.Put(options.block_elements);
  identity.Put(schema.fingerprint());
  size_t tensor = 0;  // first tensor that may reach into the segment
  const auto cut = [&](uint32_t shard, TensorKind kind, uint64_t begin, uint64_t end) {
    if (begin == end) return;
    // Equal segments rather than full ones and a rest.
    const uint64_t count = (end - begin + options.segment_elements - 1) / options.segment_elements;
    for (uint64_t k = 0; k < count; ++k) {
      const auto boundary = [&](uint64_t j) {
        return begin + (end - begin) / count * j + (end - begin) % count * j / count;
      };
      SegmentPlan segment;
      segment.id = static_cast<uint32_t>(plan.segments_.size());
      segment.shard = shard;
      segment.kind = kind;
      segment.begin = boundary(k);
      segment.elements = boundary(k + 1) - segment.begin;
      const uint64_t segment_end = segment.begin + segment.elements;
      while (schema.offset(tensor) + schema.tensors()[tensor].elements() <= segment.begin) ++tensor;
      for (size_t t = tensor; t < schema.tensors().size() && schema.offset(t) < segment_end; ++t) {
        const uint64_t from = std::max(schema.offset(t), segment.begin);
        const uint64_t to =
            std::min(schema.offset(t) + schema.tensors()[t].elements(), segment_end);
        for (uint64_t at = from; at < to; at += options.block_elements) {
          segment.blocks.push_back(
              {.offset = at - segment.begin,
               .elements = static_cast<uint32_t>(std::min<uint64_t>(options.block_elements, to - at)),
               .decayed = schema.tensors()[t].decayed,
               .full = precision->full[t],
               .dead = precision->dead[t]});
        }
      }
      identity.Put(segment.shard);
      identity.Put(segment.kind);
      identity.Put(segment.begin);
      identity.Put(segment.elements);
      for (const Block& block : segment.blocks) {
        if (block.full) identity.Put(block.offset);
        if (block.dead) identity.Put(~block.offset);
      }
      plan.segments_.push_back(std::move(segment));
    }
  };
  const uint64_t trainable = schema.trainable_elements();
  for (uint32_t shard = 0; shard < options.shards; ++shard) {
    cut(shard, TensorKind::kTrainable, ShardBoundary(trainable, options.shards, shard),
        ShardBoundary(trainable, options.shards, shard + 1));
  }
  cut(options.shards - 1, TensorKind::kStatistic, trainable, schema.elements());
  const std::string bytes = identity.Take();
  plan.fingerprint_ = Checksum(AsBytes(bytes));
  return plan;
}

std::vector<uint32_t> ShardPlan::SegmentsOfShard(uint32_t shard) const {
  std::vector<uint32_t> ids;
  for (const SegmentPlan& segment : segments_) {
    if (segment.shard == shard) ids.push_back(segment.id);
  }
  return ids;
}

double ShardPlan::imbalance() const {
  std::vector<uint64_t> elements(options_.shards);
  uint64_t total = 0;
  for (const SegmentPlan& segment : segments_) {
    elements[segment.shard] += segment.elements;
    total += segment.elements;
  }
  if (total == 0) return 0;
  const uint64_t largest = *std::max_element(elements.begin(), elements.end());
  return static_cast<double>(largest) * options_.shards / static_cast<double>(total) - 1;
}

}  // namespace foreshard
