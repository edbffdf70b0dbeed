// PushEncoding where the gradient stays on the device that computed it: says how each segment is
// to be pushed, and takes the bytes that come back. Momentum and error are the device's.
//
//   DevicePushEncoder encoder(options, step_encoder, plan);
//   ... in StepOutput::given: encoder.Prepare(steps, clip_norm) ...
//   auto bytes = encoder.Make(plan, step, buffer);
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "common/core/schedule.h"
#include "kernels/step_encoder.h"
#include "kernels/step_receiver.h"
#include "worker/push_encoder.h"
#include "worker/push_encoding.h"

namespace foreshard {

// What the device is to do for these pushes: segments are `plan`'s trainable ones, in their order.
// `codecs` outlives the call that it is given to.
kernels::StepEncoderOptions MakeStepEncoderOptions(const PushEncoderOptions& options,
                                                   const ShardPlan& plan, const CodecSet& codecs);

// Thread-compatible; Prepare and Make never at the same time.
class DevicePushEncoder final : public PushEncoding {
 public:
  // `encoder` was made from MakeStepEncoderOptions, `receiver` for it where the rule squeezes rounds,
  // which alone needs it; both outlive this.
  DevicePushEncoder(const PushEncoderOptions& options, kernels::StepEncoder* encoder,
                    kernels::StepReceiver* receiver);

  // Gives the device the step's pushes, by trainable segment; nothing is committed yet.
  absl::Status Prepare(absl::Span<const SegmentPlan> plans, absl::Span<const SegmentStep> steps,
                       std::optional<double> clip_norm);

  const Codec& codec(const SegmentPlan& plan) const override;
  // `step` as Prepare was told.
  absl::StatusOr<ByteSpan> Make(const SegmentPlan& plan, const SegmentStep& step,
                                absl::FunctionRef<uint8_t*(uint64_t)> buffer) override;
  bool has_momentum() const override { return encoder_->has_momentum(); }
  absl::StatusOr<const float*> Momentum(const SegmentPlan& plan) override;
  void NoteRepaired(const SegmentPlan& plan, uint64_t ticket) override;
  bool keeps_error() const override { return encoder_->has_error(); }
  absl::Span<const float> error() const override { return {}; }
  double ErrorFeedbackRatio(absl::Span<const SegmentPlan> segments, const float* gradient) override;
  bool squeezes() const override { return squeeze_ != nullptr; }
  absl::Status TakeReply(const SegmentPlan& plan, const RoundReply& reply, const Payload& payload,
                         const PushPlace& place, ByteSpan sent, float* parameters) override;
  void FoldNext() override { fold_next_ = true; }

 private:
  // The next `bytes` of a reply, to where the device takes the segment's from.
  absl::Status Land(const SegmentPlan& plan, uint64_t bytes, PayloadReader& reader);

  const PushEncoderOptions options_;
  CodecSet codecs_;
  const Codec* const codec_;
  kernels::StepEncoder* const encoder_;
  kernels::StepReceiver* const receiver_;
  // What it knows of each segment's phase; its vectors are the device's.
  std::unique_ptr<SqueezeReplica> squeeze_;
  bool fold_next_ = false;
  std::vector<float> previous_eta_;  // by segment; as PushEncoder's
  std::vector<float> momentum_;      // brought for a repair; empty before the first
};

}  // namespace foreshard
