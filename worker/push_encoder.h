// What a worker does to the gradient of a segment before it leaves: the rule's worker
// half, then the codec with error feedback. Keeps the momentum and the error of
// compression; knows no network, so that the simulator's workers are the same.
//
//   PushEncoder encoder(options);
//   encoder.Transform(plan, ticket, clock, parameters, gradient);
//   encoder.Encode(plan, {.worker = 2, .sequence = 7}, gradient, payload);  // EncodedBytes(plan)
//
// Where the rate changes, what servers hold of this worker's momentum is repaired: a little
// in every push while it changes smoothly, by the momentum itself, brought before the first
// push at the new rate, where it jumps:
//
//   if (encoder.has_momentum()) ... send momentum() of the segment, wait ...
//   encoder.NoteRepaired(plan, step);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/core/schedule.h"
#include "common/core/shard_plan.h"
#include "kernels/codecs/codec.h"
#include "kernels/worker_half.h"
#include "worker/push_encoding.h"
#include "worker/squeeze_replica.h"

namespace foreshard {

struct PushEncoderOptions {
  std::string rule;
  WorkerHalfSettings half;
  std::string codec = "none";  // of trainable segments
  CodecSettings codec_settings;
  uint64_t seed = 0;  // the job's, for codecs that choose at random
  Schedule schedule;  // the rate at which the server will apply a push
  uint64_t trainable_elements = 0;
  size_t segments = 0;
  // Rules that compress rounds both ways; its codec, elements and segments are those above.
  std::optional<SqueezeReplicaOptions> squeeze;
};

// Thread-compatible. Only trainable segments are given to it.
class PushEncoder final : public PushEncoding {
 public:
  // options.codec is one of CodecNames().
  explicit PushEncoder(const PushEncoderOptions& options);

  // The worker half in place; nothing where the rule has none. `clock` is the highest
  // ticket that the server has said of the segment; `parameters` and `gradient` are
  // the segment's own.
  void Transform(const SegmentPlan& plan, uint64_t ticket, uint64_t clock,
                 const float* parameters, float* gradient);

  // True where the payload is the gradient as Transform left it in memory, so that Encode is
  // not needed.
  bool plain(const SegmentPlan& plan) const { return codec(plan).id() == CodecId::kNone; }
  uint64_t EncodedBytes(const SegmentPlan& plan) const;
  // What is encoded is committed: the error keeps what it lost, and a retry sends the
  // same bytes. `place` is what the server will be told with it.
  void Encode(const SegmentPlan& plan, const PushPlace& place, const float* gradient,
              uint8_t* payload);

  // Transform, then what Encode makes, or the gradient itself where that is the payload.
  absl::StatusOr<ByteSpan> Make(const SegmentPlan& plan, const SegmentStep& step,
                                absl::FunctionRef<uint8_t*(uint64_t)> buffer) override;

  const Codec& codec(const SegmentPlan& plan) const override {
    if (squeeze_ == nullptr) return *codec_;
    return fold_next_ ? *FindCodec(CodecId::kNone) : squeeze_->codec(plan);
  }
  // Rules that compress rounds both ways: takes the reply to a push of the segment, which
  // was sent from `place` as the bytes `sent`, or to a read. DATA_LOSS as
  // SqueezeReplica::Take.
  bool squeezes() const override { return squeeze_ != nullptr; }
  absl::Status TakeReply(const SegmentPlan& plan, const RoundReply& reply, const Payload& payload,
                         const PushPlace& place, ByteSpan sent, float* parameters) override;
  // By position in the flat trainable vector; empty where nothing is lost.
  absl::Span<const float> error() const override { return error_; }
  bool keeps_error() const override { return !error_.empty(); }
  // ||error|| over ||momentum||, `momentum` being of the flat trainable vector; 0 without
  // compression. One block in 16 is looked at.
  double ErrorRatio(absl::Span<const SegmentPlan> segments, const float* momentum) const;
  // The same with momentum() where there is one.
  double ErrorFeedbackRatio(absl::Span<const SegmentPlan> segments, const float* gradient) override {
    return ErrorRatio(segments, momentum().empty() ? gradient : momentum().data());
  }
  // The half's momentum, or what the workers of a compressed round share, by position in
  // the flat trainable vector; empty where the rule has none.
  absl::Span<const float> momentum() const;
  // The next Transform of every segment makes it a fold, whatever the round asks for.
  void FoldNext() override { fold_next_ = true; }
  bool has_momentum() const override { return half_ != nullptr; }
  absl::StatusOr<const float*> Momentum(const SegmentPlan& plan) override {
    return half_->momentum().data() + plan.begin;
  }
  void NoteRepaired(const SegmentPlan& plan, uint64_t ticket) override;

 private:
  const PushEncoderOptions options_;
  CodecSet codecs_;
  const Codec* const codec_;
  std::unique_ptr<WorkerHalf> half_;
  std::unique_ptr<SqueezeReplica> squeeze_;
  bool fold_next_ = false;
  std::vector<float> error_;
  // By segment: of the last push, or repaired to; 0: nothing pushed yet.
  std::vector<float> previous_eta_;
};

}  // namespace foreshard
