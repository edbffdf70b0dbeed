// The payloads of segment_exchange.h: what is pushed, where the gradient lies, and what becomes of
// replies that do not go to the host's vector alone.
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/segment_exchange.h"

namespace foreshard {

absl::Status SegmentExchange::Prepare(const StepGradient& coming,
                                      std::optional<double> clip_norm) {
  if (device_ == nullptr) return absl::OkStatus();
  aliases_.Wait();  // messages of the last push lie where the new bytes will
  absl::MutexLock lock(&mutex_);
  if (coming.fold) encoder_->FoldNext();
  std::vector<SegmentStep> steps;
  for (const SegmentState& segment : segments_) {
    if (!IsTrainable(segment)) continue;
    SegmentStep& step = steps.emplace_back();
    step.place = {.worker = options_.hello.worker(), .sequence = segment.sequence + 1};
    if (options_.synchronous) step.place.round = coming.round;
    step.ticket = coming.ticket;
    step.clock = segment.clock;
    if (options_.step_receiver == nullptr) continue;
    // A step without a forward pass has not waited for what replies have done.
    const absl::Status there = options_.step_receiver->Await(segment.plan->id);
    if (!there.ok()) return there;
  }
  return device_->Prepare(options_.plan.segments(), steps, clip_norm);
}

// The gradient is final by now: what is encoded here is committed, and every
// retry sends the same bytes with the same sequence number.
absl::StatusOr<grpc::Slice> SegmentExchange::MakePayload(SegmentState& segment) {
  const SegmentPlan& plan = *segment.plan;
  const uint64_t plain_bytes = plan.elements * sizeof(float);
  if (operation_.kind == v1::ExchangeHeader::INITIALISE) {
    return aliases_.Alias(operation_.values + plan.begin, plain_bytes);
  }
  if (operation_.kind == v1::ExchangeHeader::REPAIR) {
    const absl::StatusOr<const float*> momentum = encoder_->Momentum(plan);
    if (!momentum.ok()) return momentum.status();
    return aliases_.Alias(*momentum, plain_bytes);
  }
  if (!IsTrainable(segment)) {
    const uint64_t place = plan.begin - options_.schema.trainable_elements();
    return aliases_.Alias(operation_.statistics + place, plain_bytes);
  }
  SegmentStep step = {
      .place = Place(segment), .ticket = operation_.ticket, .clock = segment.clock};
  if (device_ == nullptr) {
    step.parameters = parameters_.data() + plan.begin;
    step.gradient = operation_.gradient + plan.begin;
  }
  std::optional<BufferPool::Buffer> buffer;
  const absl::StatusOr<ByteSpan> made = encoder_->Make(plan, step, [&](uint64_t bytes) {
    buffer = pool_.Take(bytes);
    return buffer->data;
  });
  if (!made.ok()) return made.status();
  if (!buffer.has_value()) {
    segment.sent = *made;
    return aliases_.Alias(made->data(), made->size());
  }
  grpc::Slice slice = pool_.Share(*buffer);
  if (encoder_->squeezes()) {
    segment.sent_slice = slice;
    segment.sent = ByteSpan(slice.begin(), slice.size());
  }
  return slice;
}

absl::Status SegmentExchange::ReadRound(SegmentState& segment, const v1::ReplyHeader& header,
                                        const Payload& payload) {
  if (payload.bytes > 0 && Checksum(payload) != header.checksum()) {
    return absl::DataLossError("its checksum is wrong");
  }
  const RoundReply reply = {.parts = header.parts(),
                            .late = header.result() == v1::ReplyHeader::LATE,
                            .version = header.version(),
                            .round = header.round(),
                            .members = header.members(),
                            .frozen = header.frozen(),
                            .fold = header.fold(),
                            .eta = header.learning_rate()};
  const absl::Status taken = encoder_->TakeReply(*segment.plan, reply, payload, Place(segment), segment.sent,
                                                parameters_.data() + segment.plan->begin);
  if (!taken.ok()) return taken;
  segment.sent = {};
  segment.sent_slice = {};
  segment.held_version = header.version();
  segment.clock = std::max(segment.clock, header.clock());
  return absl::OkStatus();
}

absl::Status SegmentExchange::ReadToDevice(const SegmentState& segment, const Codec& codec,
                                           const CodecKey& key, const Payload& payload) {
  const bool plain = codec.id() == CodecId::kNone;
  if (!plain && codec.id() != reply_codec_->id()) {
    return absl::DataLossError(
        absl::StrCat("its codec is ", std::string(codec.name()), ", which was not asked for"));
  }
  const absl::Status checked = reader_.Check(*segment.plan, codec, payload);
  if (!checked.ok()) return checked;
  const uint32_t id = segment.plan->id;
  const absl::StatusOr<uint8_t*> landing = options_.step_receiver->Landing(id);
  if (!landing.ok()) return landing.status();
  uint8_t* to = *landing;
  for (const ByteSpan& piece : payload.pieces) {
    if (!piece.empty()) std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
  return options_.step_receiver->Take(id, plain, key);
}

}  // namespace foreshard
