// How a worker's pushes are made, wherever its gradient lies: PushEncoder works in host memory,
// DevicePushEncoder has it done on the device that computed the gradient. The same bytes.
//
//   RETURN_IF_ERROR(encoding->Prepare(steps));          // on a device, while the step computes
//   auto bytes = encoding->Make(plan, step, buffer);    // once the step is known to be finite
#pragma once

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/core/bytes.h"
#include "common/core/shard_plan.h"
#include "kernels/codecs/codec.h"
#include "worker/squeeze_replica.h"

namespace foreshard {

// The push of one trainable segment.
struct SegmentStep {
  PushPlace place;  // what the server will be told with it
  uint64_t ticket = 0;
  uint64_t clock = 0;  // the highest ticket that the server has said of the segment
  // The segment's own, in host memory; unused where the gradient is on a device.
  const float* parameters = nullptr;
  float* gradient = nullptr;
};

// Thread-compatible. Only trainable segments are given to it. Errors: the device's.
class PushEncoding {
 public:
  virtual ~PushEncoding() = default;

  // Of the segment's next push.
  virtual const Codec& codec(const SegmentPlan& plan) const = 0;

  // The worker half, then the codec. What is made is committed: the error keeps what was lost, and
  // a retry sends the same bytes. They lie in memory that `buffer` gave for so many bytes, or
  // elsewhere, where they stay until the next step.
  virtual absl::StatusOr<ByteSpan> Make(const SegmentPlan& plan, const SegmentStep& step,
                                        absl::FunctionRef<uint8_t*(uint64_t)> buffer) = 0;

  virtual bool has_momentum() const = 0;
  // Of the segment; until the next step. Only where there is one.
  virtual absl::StatusOr<const float*> Momentum(const SegmentPlan& plan) = 0;
  // The server counts the segment's momentum at the rate of this ticket from now on.
  virtual void NoteRepaired(const SegmentPlan& plan, uint64_t ticket) = 0;

  // Whether compression keeps something back.
  virtual bool keeps_error() const = 0;
  // It, by position in the flat trainable vector; empty where it is on a device.
  virtual absl::Span<const float> error() const = 0;
  // ||error|| over ||momentum||, or over ||gradient|| [trainable_elements] where there is no
  // momentum; 0 without compression.
  virtual double ErrorFeedbackRatio(absl::Span<const SegmentPlan> segments,
                                    const float* gradient) = 0;

  // Rules that compress rounds both ways: as PushEncoder::TakeReply.
  virtual bool squeezes() const { return false; }
  virtual absl::Status TakeReply(const SegmentPlan& plan, const RoundReply& reply,
                                 const Payload& payload, const PushPlace& place, ByteSpan sent,
                                 float* parameters) {
    return absl::InternalError("this rule does not squeeze rounds");
  }
  // The next push of every segment is in full precision, with all that was kept back, where the
  // rule squeezes.
  virtual void FoldNext() {}
};

}  // namespace foreshard
