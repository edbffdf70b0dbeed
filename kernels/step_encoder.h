// What becomes of a step's gradient before it leaves a device that does not work in host memory:
// norm, clipping, finite check, the rule's worker half, the codec with error feedback. Momentum
// and error stay on the device; only encoded bytes come back, while the device goes on.
//
//   auto encoder = memory->MakeEncoder({.segments = ..., .codec = codec}).value();
//   network->Train(batch, memory->vector(), gate,
//                  {.gradient = memory->gradient(), .statistics = memory->statistics(),
//                   .given = [&] { return encoder->Give(clip_norm, pushes); }});
//   if (encoder->Norm()->finite) send(encoder->Bytes(0)) ...
//
// The bytes are those that the host makes (kernels/worker_half.h, codecs/codec.h) of the same
// gradient, bit for bit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/core/block.h"
#include "kernels/codecs/codec.h"
#include "kernels/worker_half.h"

namespace foreshard::kernels {

struct EncodedSegment {
  uint64_t begin = 0;  // in the gradient
  uint64_t elements = 0;
  std::vector<Block> blocks;  // offsets count from the segment's start
};

struct StepEncoderOptions {
  std::vector<EncodedSegment> segments;  // in the order in which they are to come back
  const Codec* codec = nullptr;          // asked while the encoder is made, not later
  std::string rule;                      // whose worker half is computed, where it has one
  WorkerHalfSettings half;
  // Rules that compress rounds both ways (frozen_adam.h): momentum and denominator that all share
  // are kept on the device too, pushes may be in full precision, and `rule` has no half.
  bool rounds = false;
  float beta1 = 0.9f;
};

// How one segment is pushed.
struct SegmentPush {
  CodecKey key;  // the message's
  // For a worker half, as WorkerHalf::Transform; the parameters are the step memory's.
  float eta = 0;
  float previous_eta = 0;
  // Of rounds. mixed: the gradient becomes MixMomentum's. plain: it goes as fp32. folded, with plain:
  // together with all that was kept back, of which nothing stays.
  bool mixed = false, plain = false, folded = false;
};

struct StepNorm {
  double norm = 0;     // of the gradient, before clipping
  bool finite = true;  // norm, gradient and statistics
};

// Give and ClearGradient are called by the thread that computes steps, with none under way but the
// one that Give belongs to; Norm by it afterwards; Bytes, ReadMomentum and ErrorRatio by any one
// thread between two calls of Give. Errors are the device's (device_failure.h).
class StepEncoder {
 public:
  virtual ~StepEncoder() = default;

  // Gives the device all that follows the step it was given last, and does not wait. Where the
  // gradient turns out not to be finite nothing is encoded, and momentum and error stay as they
  // were. One entry for each segment. Bytes of the call before must not be in use any more.
  virtual absl::Status Give(std::optional<double> clip_norm,
                            absl::Span<const SegmentPush> segments) = 0;
  // Waits for it.
  virtual absl::StatusOr<StepNorm> Norm() = 0;
  // Waits until the segment's bytes are in host memory, where they stay until the next Give. Only
  // of a step that is finite.
  virtual absl::StatusOr<absl::Span<const uint8_t>> Bytes(size_t segment) = 0;

  // Of a worker half.
  virtual bool has_momentum() const = 0;
  // Brings the segment's momentum to host memory [elements].
  virtual absl::Status ReadMomentum(size_t segment, float* momentum) = 0;
  // Whether the codec keeps something back.
  virtual bool has_error() const = 0;
  // ||error|| over ||momentum|| (of rounds the shared one), or over ||gradient|| where there is
  // none; 0 without error.
  virtual absl::StatusOr<double> ErrorRatio() = 0;
  // In place of a step: a gradient of zeros, for what was kept back to go out by itself.
  virtual absl::Status ClearGradient() = 0;
};

}  // namespace foreshard::kernels
