#include "worker/push_encoder.h"

#include <algorithm>

namespace foreshard {

PushEncoder::PushEncoder(const PushEncoderOptions& options)
    : options_(options),
      codecs_(options.codec_settings),
      codec_(codecs_.Find(options.codec)),
      half_(MakeWorkerHalf(options.rule, options.half, options.trainable_elements)),
      previous_eta_(options.segments) {
  if (!plain()) error_.resize(options.trainable_elements);
}

void PushEncoder::Transform(const SegmentPlan& plan, uint64_t ticket, uint64_t clock,
                            const float* parameters, float* gradient) {
  if (half_ == nullptr) return;
  const float eta = options_.schedule.At(std::max(ticket, clock));
  float& previous_eta = previous_eta_[plan.id];
  half_->Transform(plan.blocks, plan.begin, eta, previous_eta == 0 ? eta : previous_eta, parameters,
                   gradient);
  previous_eta = eta;
}

uint64_t PushEncoder::EncodedBytes(const SegmentPlan& plan) const {
  return foreshard::EncodedBytes(*codec_, plan.blocks);
}

void PushEncoder::Encode(const SegmentPlan& plan, const PushPlace& place, const float* gradient,
                         uint8_t* payload) {
  EncodeSegment(*codec_, plan.blocks, gradient,
                error_.empty() ? nullptr : error_.data() + plan.begin,
                PushKey(options_.seed, plan.id, place), payload);
}

absl::Span<const float> PushEncoder::momentum() const {
  return half_ == nullptr ? absl::Span<const float>() : half_->momentum();
}

void PushEncoder::NoteRepaired(const SegmentPlan& plan, uint64_t ticket) {
  float& previous_eta = previous_eta_[plan.id];
  if (previous_eta != 0) previous_eta = options_.schedule.At(ticket);
}

}  // namespace foreshard
