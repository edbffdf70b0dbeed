// Reads the parameters of a reply to where the worker keeps them. The simulator's
// workers read theirs with it too, so that both hold the same bits.
//
//   ReplyReader reader;
//   const CodecKey key = ReplyKey(seed, plan.id, worker, version);
//   RETURN_IF_ERROR(reader.Read(plan, codec, key, payload, parameters + plan.begin));
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "common/core/bytes.h"
#include "common/core/shard_plan.h"
#include "kernels/codecs/codec.h"

namespace foreshard {

// Thread-compatible.
class ReplyReader {
 public:
  ReplyReader();
  ~ReplyReader();

  // What Read refuses, before it does anything.
  absl::Status Check(const SegmentPlan& plan, const Codec& codec, const Payload& payload);

  // `values` [plan.elements] take the payload's parameters, or, in a codec whose replies
  // carry differences, these are added to them: exactly what the server does to its copy.
  // `key` is the reply's. DATA_LOSS: another length than the segment has in this codec, or
  // a difference that no server can have sent; then nothing has changed.
  absl::Status Read(const SegmentPlan& plan, const Codec& codec, const CodecKey& key,
                    const Payload& payload, float* values);

 private:
  struct Scratch;
  const std::unique_ptr<Scratch> scratch_;
};

}  // namespace foreshard
