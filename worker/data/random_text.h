// Made-up sequences for benchmarks and for comparisons with other frameworks.
//
//   Batch batch = RandomText(options, /*seed=*/1, /*full=*/true);
#pragma once

#include <cstdint>

#include "worker/models/model.h"

namespace foreshard {

// options.batch_size sequences of options.input.height tokens below options.classes, in two
// segments, with options.text.targets targets each. Full: no padding and every target is one;
// else lengths differ and some places have no target. No dropout keys.
Batch RandomText(const ModelOptions& options, uint64_t seed, bool full);

}  // namespace foreshard
