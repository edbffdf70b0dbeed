// StepEncoder on a GPU. Everything of a step is given to the computing stream behind it: norm, and
// segment by segment half and encode, in the order of the list. Each segment's bytes leave on a
// stream of their own as soon as they are made, through pinned memory, while the next is encoded.
// `GradientNorm::not_finite` stays on the device and stops what must leave no trace.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/gradient_norm.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/segment_codec.h"
#include "kernels/step_encoder.h"

namespace FORESHARD_CUDA_NAMESPACE {

// A step's vectors, in device memory.
struct StepVectors {
  const float* vector = nullptr;
  float* gradient = nullptr;
  uint64_t trainable_elements = 0;
  const float* statistics = nullptr;
  uint64_t statistic_elements = 0;
  int device = 0;  // the GPU's number
};

class CudaStepEncoder final : public StepEncoder {
 public:
  // `computing` is the stream that steps run on; it and the vectors outlive this. As
  // StepMemory::MakeEncoder.
  static absl::StatusOr<std::unique_ptr<CudaStepEncoder>> Make(NativeStream computing,
                                                               const StepVectors& vectors,
                                                               const StepEncoderOptions& options);

  absl::Status Give(std::optional<double> clip_norm,
                    absl::Span<const SegmentPush> segments) override;
  absl::StatusOr<StepNorm> Norm() override;
  absl::StatusOr<absl::Span<const uint8_t>> Bytes(size_t segment) override;
  bool has_momentum() const override { return has_momentum_; }
  absl::Status ReadMomentum(size_t segment, float* momentum) override;
  bool has_error() const override { return has_error_; }
  absl::StatusOr<double> ErrorRatio() override;
  absl::Status ClearGradient() override;

  // For the receiver of rounds: by position in the trainable vector, and the last push's bytes on the
  // device.
  float* momentum() const { return momentum_.data(); }
  float* denominator() const { return denominator_.data(); }
  float* error() const { return error_.data(); }
  const uint8_t* encoded(size_t segment) const { return encoded_.data() + segments_[segment].place; }

 private:
  struct Segment {
    uint64_t begin = 0, elements = 0;
    SegmentCodec codec;
    SegmentCodec plain;  // rounds
    uint64_t bytes = 0;  // of the last push
    uint64_t place = 0;  // of its bytes, in encoded_ and bytes_
    Event encoded;       // on the computing stream
    Event copied;        // on the copying stream
  };

  CudaStepEncoder(NativeStream computing, const StepVectors& vectors)
      : computing_(computing), vectors_(vectors) {}

  absl::Status GiveNorm(std::optional<double> clip_norm);
  absl::Status GiveSegment(Segment& segment, const SegmentPush& push);
  // What becomes of the gradient before it is encoded.
  absl::Status GiveHalf(const Segment& segment, const SegmentPush& push);
  // The norm of trainable_elements as the last Give leaves them, waited for.
  absl::StatusOr<double> NormOf(float* values);

  const NativeStream computing_;
  const StepVectors vectors_;
  WorkerHalfSettings half_;
  bool has_momentum_ = false, has_error_ = false;
  bool rounds_ = false;
  float beta1_ = 0;
  std::vector<Segment> segments_;
  DeviceArray<float> momentum_, denominator_, error_;
  DeviceArray<uint8_t> encoded_;  // without a codec that loses something the gradient goes as it is
  PinnedArray<uint8_t> bytes_;
  DeviceArray<double> partial_, ratio_partial_;
  DeviceArray<GradientNorm> norm_;       // of the step; of something else
  PinnedArray<GradientNorm> norm_read_;  // the same
  Event norm_copied_;
  Event given_;  // all of the last Give
  Stream copying_;  // last, so that it is waited for first
};

}  // namespace FORESHARD_CUDA_NAMESPACE
