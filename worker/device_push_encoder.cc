#include "worker/device_push_encoder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/core/bytes.h"
#include "common/core/reply_part.h"
#include "glog/logging.h"

namespace foreshard {

kernels::StepEncoderOptions MakeStepEncoderOptions(const PushEncoderOptions& options,
                                                   const ShardPlan& plan, const CodecSet& codecs) {
  kernels::StepEncoderOptions made = {
      .codec = codecs.Find(options.codec), .rule = options.rule, .half = options.half};
  made.rounds = options.squeeze.has_value();
  if (made.rounds) made.beta1 = options.squeeze->beta1;
  for (const SegmentPlan& segment : plan.segments()) {
    if (segment.kind != TensorKind::kTrainable) continue;
    made.segments.push_back(
        {.begin = segment.begin, .elements = segment.elements, .blocks = segment.blocks});
  }
  return made;
}

DevicePushEncoder::DevicePushEncoder(const PushEncoderOptions& options,
                                     kernels::StepEncoder* encoder,
                                     kernels::StepReceiver* receiver)
    : options_(options),
      codecs_(options.codec_settings),
      codec_(codecs_.Find(options.codec)),
      encoder_(encoder),
      receiver_(receiver),
      previous_eta_(options.segments) {
  if (!options.squeeze.has_value()) return;
  SqueezeReplicaOptions squeeze = *options.squeeze;
  squeeze.codec = codec_;
  squeeze.seed = options.seed;
  squeeze.trainable_elements = options.trainable_elements;
  squeeze.segments = options.segments;
  squeeze_ = std::make_unique<SqueezeReplica>(squeeze);
}

const Codec& DevicePushEncoder::codec(const SegmentPlan& plan) const {
  if (squeeze_ == nullptr) return *codec_;
  return fold_next_ ? *FindCodec(CodecId::kNone) : squeeze_->codec(plan);
}

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
    if (squeeze_ != nullptr) {
      const bool frozen = squeeze_->frozen(plan);
      push.mixed = frozen && !options_.squeeze->compress_gradients;
      push.plain = codec(plan).id() == CodecId::kNone;
      push.folded = frozen && push.plain;
    }
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

absl::Status DevicePushEncoder::Land(const SegmentPlan& plan, uint64_t bytes,
                                     PayloadReader& reader) {
  const absl::StatusOr<uint8_t*> landing = receiver_->Landing(plan.id);
  if (!landing.ok()) return landing.status();
  const uint8_t* const from = reader.Next(bytes, *landing);
  if (from != *landing) std::memcpy(*landing, from, bytes);
  return absl::OkStatus();
}

// As SqueezeReplica::Take, step by step, on the device's vectors.
absl::Status DevicePushEncoder::TakeReply(const SegmentPlan& plan, const RoundReply& reply,
                                          const Payload& payload, const PushPlace& place,
                                          ByteSpan sent, float*) {
  if (const absl::Status checked = squeeze_->Check(plan, reply, payload); !checked.ok()) return checked;
  const SqueezeReplicaOptions& squeeze = *options_.squeeze;
  const uint32_t id = plan.id;
  absl::Status status;
  if (reply.late && squeeze_->frozen(plan) && keeps_error() && !sent.empty()) {
    status = receiver_->KeepBack(id, squeeze_->codec(plan).id() == CodecId::kNone,
                                 PushKey(options_.seed, id, place),
                                 squeeze.compress_gradients ? 0 : squeeze.beta1);
  }
  PayloadReader reader(payload);
  if (status.ok() && (reply.parts & kResultPart)) {
    status = Land(plan, foreshard::EncodedBytes(*codec_, plan.blocks), reader);
    if (status.ok()) {
      status = receiver_->TakeResult(id, ResultKey(options_.seed, id, reply.version),
                                     {.eta = reply.eta,
                                      .beta1 = squeeze.beta1,
                                      .weight_decay = squeeze.weight_decay,
                                      .of_gradients = squeeze.compress_gradients});
    }
  }
  const uint64_t plain_bytes = plan.elements * sizeof(float);
  if (status.ok() && (reply.parts & kParametersPart)) {
    status = Land(plan, plain_bytes, reader);
    if (status.ok()) status = receiver_->Take(id, true, {});
  }
  if (status.ok() && (reply.parts & kMomentumPart)) {
    status = Land(plan, plain_bytes, reader);
    if (status.ok()) status = receiver_->TakeMomentum(id);
  }
  if (status.ok() && (reply.parts & kDenominatorPart)) {
    status = Land(plan, plain_bytes, reader);
    if (status.ok()) status = receiver_->TakeDenominator(id);
  }
  if (!status.ok()) return status;
  const float factor = squeeze_->Note(plan, reply);
  return keeps_error() && factor != 1 ? receiver_->ScaleError(id, factor) : absl::OkStatus();
}

double DevicePushEncoder::ErrorFeedbackRatio(absl::Span<const SegmentPlan> segments, const float*) {
  if (squeeze_ != nullptr) {
    // What replies have done to error and momentum is over once the next could land.
    for (const SegmentPlan& plan : segments) {
      if (plan.kind != TensorKind::kTrainable) continue;
      if (!receiver_->Landing(plan.id).ok()) break;  // then ErrorRatio says it
    }
  }
  const absl::StatusOr<double> ratio = encoder_->ErrorRatio();
  if (ratio.ok()) return *ratio;
  // A lost device ends the next step; a figure need not.
  LOG(WARNING) << "the error feedback cannot be measured: " << ratio.status().message();
  return 0;
}

}  // namespace foreshard
