// A worker's share in APMSqueeze (arXiv 2008.11343): what it knows of each segment's phase,
// the momentum and denominator that all share, and what it does with a gradient before
// it leaves and with a round's result when it comes. Knows no network.
//
//   SqueezeReplica replica(options);
//   replica.Take(plan, reply, payload, parameters);         // after every reply
//   replica.Transform(plan, gradient);                      // gradient becomes m_i
//   EncodeSegment(replica.codec(plan), plan.blocks, gradient, error, out);
//
// Before the freeze a contribution is the gradient, in full precision, and a reply the
// parameters. After it, per element, C the codec, e the error of the worker:
//
//   push C(c), c = m_i + e;  e = c - C(c)           m_i = beta1 * m + (1 - beta1) * g, or g
//   reply r: the momentum or gradient all take (kernels/frozen_adam.h)
//
// In a fold round C is the identity, so that e is nothing afterwards. Where the number of
// members changes from n to n', e is scaled by n'/n, so that (1/n) sum(e) stays what it was.
// A contribution that came too late was not applied: the worker keeps it back, with nothing
// of what it counted as meanwhile:
//
//   e += C(c) - beta1 * m         m as of the contribution; e += C(c) for gradients
//
// Of dead tensors nothing is sent in either direction, and e stays 0.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/core/bytes.h"
#include "common/core/reply_part.h"
#include "common/core/shard_plan.h"
#include "kernels/codecs/codec.h"

namespace foreshard {

struct SqueezeReplicaOptions {
  const Codec* codec = nullptr;  // of contributions and results; outlives the replica
  uint64_t seed = 0;             // the job's, for codecs that choose at random
  float beta1 = 0.9f;
  float weight_decay = 0;
  bool compress_gradients = false;  // instead of momenta
  uint64_t trainable_elements = 0;
  size_t segments = 0;
};

// What a reply's header says.
struct RoundReply {
  uint32_t parts = 0;  // ReplyParts
  bool late = false;   // the contribution was not applied
  uint64_t version = 0;
  // How the next contribution must be.
  uint64_t round = 0;
  uint32_t members = 0;
  bool frozen = false;
  bool fold = false;
  float eta = 0;       // of the result
};

// Thread-compatible. Only trainable segments are given to it.
class SqueezeReplica {
 public:
  explicit SqueezeReplica(const SqueezeReplicaOptions& options);

  // Bytes of a reply with these parts.
  uint64_t ReplyBytes(const SegmentPlan& plan, uint32_t parts) const;

  // What Take refuses, before anything changes.
  absl::Status Check(const SegmentPlan& plan, const RoundReply& reply, const Payload& payload) const;
  // Where the numbers are on a device: what Take does besides them. What the error is to be
  // multiplied by: 1, n'/n, or 0 where the phase has changed.
  float Note(const SegmentPlan& plan, const RoundReply& reply);

  // Takes a reply; `payload` is ReplyBytes(plan, reply.parts) long, `parameters` and `error`
  // are the segment's own. Where the reply is late, `error` holds what the last Encode left,
  // `sent` its bytes, and `place` what it was told with. DATA_LOSS, with nothing changed: parts that cannot be, a frozen
  // phase without what it needs, values that are not finite.
  absl::Status Take(const SegmentPlan& plan, const RoundReply& reply, const Payload& payload,
                    const PushPlace& place, ByteSpan sent, float* parameters, float* error);

  // Of the next contribution.
  const Codec& codec(const SegmentPlan& plan) const;
  bool frozen(const SegmentPlan& plan) const { return segments_[plan.id].frozen; }
  // The open round of the segment as its server last said.
  uint64_t round(const SegmentPlan& plan) const { return segments_[plan.id].round; }

  // What is compressed, in place of the gradient (the segment's own).
  void Transform(const SegmentPlan& plan, float* gradient) const;

  // [trainable_elements]; empty before the first freeze.
  absl::Span<const float> momentum() const { return momentum_; }
  absl::Span<const float> denominator() const { return denominator_; }

 private:
  struct State {
    bool frozen = false;
    bool fold = false;
    uint64_t round = 0;
    uint32_t members = 0;
  };

  const SqueezeReplicaOptions options_;
  const Codec& plain_;
  std::vector<State> segments_;
  std::vector<float> momentum_, denominator_;
};

}  // namespace foreshard
