// The worker's half of update rules that have one. A rule without a half pushes
// its gradient as it is.
//
// Its momentum lives as long as the worker's process. A worker whose lease was over and
// that comes back goes on with it: unlike a rule that keeps v_i at the server and drops
// it with the slot, dana_slim's Theta still holds this worker's -eta gamma v_i, so Theta
// and v go on fitting together, and the worker has been a slow one, no more. To forget v
// would leave that term in Theta for good. A worker that is started anew begins at zero.
//
//   auto half = MakeWorkerHalf("dana_slim", {.momentum = 0.9f}, schema.trainable_elements());
//   half->Transform(plan.blocks, plan.begin, eta, previous_eta, parameters, gradient);
//   EncodeSegment(codec, plan.blocks, gradient, error, payload);
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/types/span.h"
#include "common/core/block.h"

namespace foreshard {

struct WorkerHalfSettings {
  float momentum = 0;      // gamma
  float weight_decay = 0;  // lambda; blocks with decayed == false are left out
};

// Thread-compatible; one object a worker. Segments are identified by their
// position in the flat trainable vector.
class WorkerHalf {
 public:
  virtual ~WorkerHalf() = default;

  // Turns the gradient of one segment into what is pushed, in place.
  // `parameters` are the segment's values the worker holds. `eta` is the rate
  // at which the server will apply this push, `previous_eta` the one of this
  // worker's last push (equal to eta for the first). Offsets of blocks count
  // from the segment's start; `begin` is the segment's place in the vector.
  virtual void Transform(absl::Span<const Block> blocks, uint64_t begin, float eta,
                         float previous_eta, const float* parameters, float* gradient) = 0;

  // Momentum etc. as of the last Transform, trainable_elements long; empty for none.
  virtual absl::Span<const float> momentum() const = 0;
};

// nullptr for rules that have no worker half.
std::unique_ptr<WorkerHalf> MakeWorkerHalf(std::string_view rule,
                                           const WorkerHalfSettings& settings,
                                           uint64_t trainable_elements);

}  // namespace foreshard
