#include "worker/data/random_text.h"

#include <algorithm>

#include "common/core/random.h"

namespace foreshard {

Batch RandomText(const ModelOptions& options, uint64_t seed, bool full) {
  enum Stream : uint64_t { kToken = 1, kLength, kTarget, kLabel };
  const uint64_t positions = options.input.height, targets = options.text.targets;
  const auto draw = [&](Stream stream, uint64_t counter, uint64_t below) {
    return static_cast<int32_t>(RandomBits(seed, stream, counter) % below);
  };
  Batch batch{.examples = options.batch_size};
  for (uint64_t e = 0; e < batch.examples; ++e) {
    const int32_t padding = full ? 0 : draw(kLength, e, positions / 2 + 1);
    const auto length = static_cast<int32_t>(std::max<uint64_t>(positions, 1)) - padding;
    batch.lengths.push_back(length);
    batch.labels.push_back(draw(kLabel, e, 2));
    for (uint64_t p = 0; p < positions; ++p) {
      batch.tokens.push_back(draw(kToken, e * positions + p, options.classes));
      batch.segments.push_back(p * 3 > positions);
    }
    for (uint64_t t = 0; t < targets; ++t) {
      // Different places where there are enough of them.
      batch.target_positions.push_back(static_cast<int32_t>(t * static_cast<uint64_t>(length) / targets));
      const bool none = !full && t % 3 == 2 && e % 2 == 1;
      batch.targets.push_back(none ? kernels::kNoTarget : draw(kTarget, e * targets + t, options.classes));
    }
  }
  return batch;
}

}  // namespace foreshard
