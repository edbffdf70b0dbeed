#include "worker/squeeze_replica.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/frozen_adam.h"

namespace foreshard {
namespace {

constexpr uint32_t kState = kParametersPart | kMomentumPart | kDenominatorPart;

// The runs of a reply's part, wherever gRPC's slices end.
class PartReader {
 public:
  explicit PartReader(const Payload& payload) : reader_(payload) {}

  const uint8_t* Next(uint64_t bytes) { return reader_.Next(bytes, straddle_); }
  const float* NextDecoded(const Codec& codec, const Block& block, const CodecKey& key) {
    const Codec& by = BlockCodec(codec, block);
    return by.DecodeBlock(Next(by.BlockBytes(block.elements)), block.elements, BlockKey(key, block.offset),
                          decoded_);
  }
  void Copy(const Codec& plain, const SegmentPlan& plan, float* to) {
    for (const Block& block : plan.blocks) {
      std::memcpy(to + block.offset, Next(plain.BlockBytes(block.elements)), block.elements * sizeof(float));
    }
  }

 private:
  PayloadReader reader_;
  alignas(64) uint8_t straddle_[kMaxBlockElements * sizeof(float)];
  alignas(64) float decoded_[kMaxBlockElements];
};

}  // namespace

SqueezeReplica::SqueezeReplica(const SqueezeReplicaOptions& options)
    : options_(options), plain_(*FindCodec(CodecId::kNone)), segments_(options.segments) {}

uint64_t SqueezeReplica::ReplyBytes(const SegmentPlan& plan, uint32_t parts) const {
  const uint64_t fp32 = plan.elements * sizeof(float);
  uint64_t bytes = 0;
  if (parts & kResultPart) bytes += EncodedBytes(*options_.codec, plan.blocks);
  for (const uint32_t part : {kParametersPart, kMomentumPart, kDenominatorPart}) {
    if (parts & part) bytes += fp32;
  }
  return bytes;
}

const Codec& SqueezeReplica::codec(const SegmentPlan& plan) const {
  const State& state = segments_[plan.id];
  return state.frozen && !state.fold ? *options_.codec : plain_;
}

void SqueezeReplica::Transform(const SegmentPlan& plan, float* gradient) const {
  if (!frozen(plan) || options_.compress_gradients) return;
  MixMomentum(options_.beta1, plan.elements, momentum_.data() + plan.begin, gradient);
}

absl::Status SqueezeReplica::Check(const SegmentPlan& plan, const RoundReply& reply,
                                   const Payload& payload) const {
  const State& state = segments_[plan.id];
  const uint32_t parts = reply.parts;
  if ((parts & ~(kState | kResultPart)) != 0 || payload.bytes != ReplyBytes(plan, parts)) {
    return absl::DataLossError(
        absl::StrCat(payload.bytes, " bytes where the parts ", parts, " are ", ReplyBytes(plan, parts)));
  }
  if ((parts & kResultPart) != 0 && !state.frozen) {
    return absl::DataLossError("a compressed result for a segment whose variance this worker does not hold");
  }
  if (!reply.frozen && (parts & (kMomentumPart | kDenominatorPart)) != 0) {
    return absl::DataLossError("momentum and denominator of a variance that is not frozen");
  }
  if (reply.frozen && (reply.members == 0 || !std::isfinite(reply.eta))) {
    return absl::DataLossError(
        absl::StrCat("a round of ", reply.members, " members at the rate ", reply.eta));
  }
  if (reply.frozen && !state.frozen && (parts & kState) != kState) {
    return absl::DataLossError("the variance is frozen, but the reply does not bring it");
  }
  if (parts & kResultPart) {
    // Looked at first: nothing may change where the reply is damaged.
    PartReader check(payload);
    for (const Block& block : plan.blocks) {
      const Codec& codec = BlockCodec(*options_.codec, block);
      const std::string_view fault = codec.Fault(check.Next(codec.BlockBytes(block.elements)), block.elements);
      if (!fault.empty()) {
        return absl::DataLossError(absl::StrCat("the round's result has ", std::string(fault)));
      }
    }
  }
  return absl::OkStatus();
}

float SqueezeReplica::Note(const SegmentPlan& plan, const RoundReply& reply) {
  State& state = segments_[plan.id];
  float factor = 1;
  if (reply.frozen != state.frozen) {
    // At the freeze there is no error, and a return to full precision has taken it all in.
    factor = 0;
  } else if (state.frozen && reply.members != state.members && state.members > 0) {
    factor = static_cast<float>(reply.members) / static_cast<float>(state.members);
  }
  state = {.frozen = reply.frozen, .fold = reply.fold, .round = reply.round, .members = reply.members};
  return factor;
}

absl::Status SqueezeReplica::Take(const SegmentPlan& plan, const RoundReply& reply,
                                  const Payload& payload, const PushPlace& place, ByteSpan sent,
                                  float* parameters, float* error) {
  if (const absl::Status checked = Check(plan, reply, payload); !checked.ok()) return checked;
  const State& state = segments_[plan.id];
  const uint32_t parts = reply.parts;
  PartReader reader(payload);
  // A skip that came too late had nothing to lose.
  if (reply.late && state.frozen && error != nullptr && !sent.empty()) {
    const ByteSpan piece = sent;
    PartReader mine({absl::MakeConstSpan(&piece, 1), piece.size()});
    const Codec& codec = this->codec(plan);
    const CodecKey key = PushKey(options_.seed, plan.id, place);
    for (const Block& block : plan.blocks) {
      float* const e = error + block.offset;
      const float* const decoded = mine.NextDecoded(codec, block, key);
      if (block.dead) continue;  // nothing of it is kept back, also of a fold
      kernels::Add(e, decoded, block.elements);
      if (!options_.compress_gradients) {
        AddScaled(block.elements, -options_.beta1, momentum_.data() + plan.begin + block.offset, e);
      }
    }
  }
  if (reply.frozen && momentum_.empty()) {
    momentum_.resize(options_.trainable_elements);
    denominator_.resize(options_.trainable_elements);
  }
  float* const momentum = momentum_.data() + plan.begin;
  float* const denominator = denominator_.data() + plan.begin;
  if (parts & kResultPart) {
    const CodecKey key = ResultKey(options_.seed, plan.id, reply.version);
    for (const Block& block : plan.blocks) {
      const FrozenAdamStep step = {.eta = reply.eta,
                                   .beta1 = options_.beta1,
                                   .weight_decay = block.decayed ? options_.weight_decay : 0,
                                   .of_gradients = options_.compress_gradients};
      TakeResult(step, block.elements, reader.NextDecoded(*options_.codec, block, key),
                 momentum + block.offset, denominator + block.offset, parameters + block.offset);
    }
  }
  if (parts & kParametersPart) reader.Copy(plain_, plan, parameters);
  if (parts & kMomentumPart) reader.Copy(plain_, plan, momentum);
  if (parts & kDenominatorPart) reader.Copy(plain_, plan, denominator);
  const float factor = Note(plan, reply);
  if (error != nullptr && factor == 0) {
    std::fill_n(error, plan.elements, 0.0f);
  } else if (error != nullptr && factor != 1) {
    kernels::Scale(error, factor, plan.elements);
  }
  return absl::OkStatus();
}

}  // namespace foreshard
