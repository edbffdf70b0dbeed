#include "worker/push_encoder.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/vector_math.h"

namespace foreshard {

namespace {

// Every so many blocks are looked at for the error ratio.
constexpr size_t kRatioStride = 16;

}  // namespace

PushEncoder::PushEncoder(const PushEncoderOptions& options)
    : options_(options),
      codecs_(options.codec_settings),
      codec_(codecs_.Find(options.codec)),
      half_(MakeWorkerHalf(options.rule, options.half, options.trainable_elements)),
      previous_eta_(options.segments) {
  if (options.squeeze.has_value()) {
    SqueezeReplicaOptions squeeze = *options.squeeze;
    squeeze.codec = codec_;
    squeeze.seed = options.seed;
    squeeze.trainable_elements = options.trainable_elements;
    squeeze.segments = options.segments;
    squeeze_ = std::make_unique<SqueezeReplica>(squeeze);
  }
  if (codec_->id() != CodecId::kNone) error_.resize(options.trainable_elements);
}

void PushEncoder::Transform(const SegmentPlan& plan, uint64_t ticket, uint64_t clock,
                            const float* parameters, float* gradient) {
  if (squeeze_ != nullptr) {
    squeeze_->Transform(plan, gradient);
    if (squeeze_->frozen(plan) && plain(plan) && !error_.empty()) {
      // A fold: what was kept back goes along, and nothing is.
      float* const error = error_.data() + plan.begin;
      kernels::Add(gradient, error, plan.elements);
      std::fill_n(error, plan.elements, 0.0f);
    }
    return;
  }
  if (half_ == nullptr) return;
  const float eta = options_.schedule.At(std::max(ticket, clock));
  float& previous_eta = previous_eta_[plan.id];
  half_->Transform(plan.blocks, plan.begin, eta, previous_eta == 0 ? eta : previous_eta, parameters,
                   gradient);
  previous_eta = eta;
}

uint64_t PushEncoder::EncodedBytes(const SegmentPlan& plan) const {
  return foreshard::EncodedBytes(codec(plan), plan.blocks);
}

void PushEncoder::Encode(const SegmentPlan& plan, const PushPlace& place, const float* gradient,
                         uint8_t* payload) {
  EncodeSegment(codec(plan), plan.blocks, gradient,
                error_.empty() ? nullptr : error_.data() + plan.begin,
                PushKey(options_.seed, plan.id, place), payload);
}

absl::StatusOr<ByteSpan> PushEncoder::Make(const SegmentPlan& plan, const SegmentStep& step,
                                           absl::FunctionRef<uint8_t*(uint64_t)> buffer) {
  Transform(plan, step.ticket, step.clock, step.parameters, step.gradient);
  if (plain(plan)) {
    return ByteSpan(reinterpret_cast<const uint8_t*>(step.gradient), plan.elements * sizeof(float));
  }
  const uint64_t bytes = EncodedBytes(plan);
  uint8_t* const payload = buffer(bytes);
  Encode(plan, step.place, step.gradient, payload);
  return ByteSpan(payload, bytes);
}

absl::Span<const float> PushEncoder::momentum() const {
  if (squeeze_ != nullptr) return squeeze_->momentum();
  return half_ == nullptr ? absl::Span<const float>() : half_->momentum();
}

absl::Status PushEncoder::TakeReply(const SegmentPlan& plan, const RoundReply& reply,
                                    const Payload& payload, const PushPlace& place, ByteSpan sent,
                                    float* parameters) {
  return squeeze_->Take(plan, reply, payload, place, sent, parameters,
                        error_.empty() ? nullptr : error_.data() + plan.begin);
}

double PushEncoder::ErrorRatio(absl::Span<const SegmentPlan> segments, const float* momentum) const {
  if (error_.empty()) return 0;
  double error = 0, size = 0;
  size_t index = 0;
  for (const SegmentPlan& plan : segments) {
    if (plan.kind != TensorKind::kTrainable) continue;
    for (const Block& block : plan.blocks) {
      if (index++ % kRatioStride != 0) continue;
      const uint64_t at = plan.begin + block.offset;
      error += kernels::SumOfSquares(error_.data() + at, block.elements);
      size += kernels::SumOfSquares(momentum + at, block.elements);
    }
  }
  return size > 0 ? std::sqrt(error / size) : 0;
}

void PushEncoder::NoteRepaired(const SegmentPlan& plan, uint64_t ticket) {
  float& previous_eta = previous_eta_[plan.id];
  if (previous_eta != 0) previous_eta = options_.schedule.At(ticket);
}

}  // namespace foreshard
