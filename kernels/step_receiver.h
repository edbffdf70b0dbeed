// How parameters get into a step memory's vector from the servers' replies: encoded as they came,
// over pinned memory, decoded on the device beside what it computes.
//
//   auto receiver = memory->MakeReceiver({.segments = ..., .codec = reply_codec}).value();
//   std::memcpy(receiver->Landing(segment).value(), payload, bytes);
//   receiver->Take(segment, /*plain=*/false, key);        // free of faults
//   receiver->Await(segment);                             // before a step that reads it
//
// The values are those that the host decodes (Codec::DecodeBlock), bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/codecs/codec.h"
#include "kernels/frozen_adam.h"
#include "kernels/step_encoder.h"

namespace foreshard::kernels {

struct StepReceiverOptions {
  std::vector<EncodedSegment> segments;  // `begin` counts in the vector
  // Of replies, or of rounds' results; asked while the receiver is made, not later.
  const Codec* codec = nullptr;
  // Rounds: whose error, momentum and denominator results and states go to; made for `rounds`, of the
  // same segments and codec, and outlives the receiver. Else null.
  StepEncoder* encoder = nullptr;
};

// All but Await may be called by one thread while another calls Await, each segment's Await
// after its Take has returned. Errors are the device's (device_failure.h).
class StepReceiver {
 public:
  virtual ~StepReceiver() = default;

  // Room for the segment in fp32, in host memory; waits until what was there last has left.
  virtual absl::StatusOr<uint8_t*> Landing(size_t segment) = 0;
  // Begins to bring what is there into the vector: plain fp32, or a reply in the codec, which is
  // without faults and carries values or differences to what the vector holds. The last step that
  // reads the segment's elements as they were is over, or has sent its bytes
  // (StepEncoder::Bytes), and the next one has not been given yet.
  virtual absl::Status Take(size_t segment, bool plain, const CodecKey& key) = 0;

  // Rounds, under the same conditions. What is in Landing is a round's result in the codec, without
  // faults: TakeResult of kernels/frozen_adam.h, weight decay in decayed blocks only.
  virtual absl::Status TakeResult(size_t segment, const CodecKey& key, const FrozenAdamStep& step) = 0;
  // What is in Landing is the segment's shared momentum or denominator, in fp32.
  virtual absl::Status TakeMomentum(size_t segment) = 0;
  virtual absl::Status TakeDenominator(size_t segment) = 0;
  // What was pushed of the segment last (`plain` and `key` as SegmentPush had them) was not applied:
  // it is kept back again, less `beta1` times the momentum that it counted as meanwhile.
  virtual absl::Status KeepBack(size_t segment, bool plain, const CodecKey& key, float beta1) = 0;
  // What is kept back of the segment is multiplied by this, or, with 0, forgotten.
  virtual absl::Status ScaleError(size_t segment, float factor) = 0;

  // Networks that are asked to run from now on find the segment's elements in the vector.
  virtual absl::Status Await(size_t segment) = 0;
};

}  // namespace foreshard::kernels
