#include "worker/device_push_encoder.h"

#include <algorithm>
#include <utility>

#include "glog/logging.h"

namespace foreshard {

kernels::StepEncoderOptions MakeStepEncoderOptions(const PushEncoderOptions& options,
                                                   const ShardPlan& plan, const CodecSet& codecs) {
  kernels::StepEncoderOptions made = {
      .codec = codecs.Find(options.codec), .rule = options.rule, .half = options.half};
  for (const SegmentPlan& segment : plan.segments()) {
    if (segment.kind != TensorKind::kTrainable) continue;
    made.segments.push_back(
        {.begin = segment.begin, .elements = segment.elements, .blocks = segment.blocks});
  }
  return made;
}

DevicePushEncoder::DevicePushEncoder(const PushEncoderOptions& options,
                                     kernels::StepEncoder* encoder)
    : options_(options),
      codecs_(options.codec_settings),
      codec_(codecs_.Find(options.codec)),
      encoder_(encoder),
      previous_eta_(options.segments) {}

absl::Status DevicePushEncoder::Prepare(absl::Span<const SegmentPlan> plans,
                                        absl::Span<const SegmentStep> steps,
                                        std::optional<double> clip_norm) {
  std::vector<kernels::SegmentPush> pushes;
  for (const SegmentPlan& plan : plans) {
    if (plan.kind != TensorKind::kTrainable) continue;
    const SegmentStep& step = steps[pushes.size()];
    kernels::SegmentPush& push = pushes.emplace_back();
    push.key = PushKey(options_.seed, plan.id, step.place);
    push.eta = options_.schedule.At(std::max(step.ticket, step.clock));
    const float previous = previous_eta_[plan.id];
    push.previous_eta = previous == 0 ? push.eta : previous;
  }
  return encoder_->Give(clip_norm, pushes);
}

absl::StatusOr<ByteSpan> DevicePushEncoder::Make(const SegmentPlan& plan, const SegmentStep& step,
                                                 absl::FunctionRef<uint8_t*(uint64_t)> buffer) {
  if (has_momentum()) {
    previous_eta_[plan.id] = options_.schedule.At(std::max(step.ticket, step.clock));
  }
  // Trainable segments are the first of every plan.
  return encoder_->Bytes(plan.id);
}

absl::StatusOr<const float*> DevicePushEncoder::Momentum(const SegmentPlan& plan) {
  if (momentum_.empty()) momentum_.resize(options_.trainable_elements);
  float* const momentum = momentum_.data() + plan.begin;
  const absl::Status read = encoder_->ReadMomentum(plan.id, momentum);
  if (!read.ok()) return read;
  return momentum;
}

void DevicePushEncoder::NoteRepaired(const SegmentPlan& plan, uint64_t ticket) {
  float& previous_eta = previous_eta_[plan.id];
  if (previous_eta != 0) previous_eta = options_.schedule.At(ticket);
}

double DevicePushEncoder::ErrorFeedbackRatio(absl::Span<const SegmentPlan>, const float*) {
  const absl::StatusOr<double> ratio = encoder_->ErrorRatio();
  if (ratio.ok()) return *ratio;
  // A lost device ends the next step; a figure need not.
  LOG(WARNING) << "the error feedback cannot be measured: " << ratio.status().message();
  return 0;
}

}  // namespace foreshard
