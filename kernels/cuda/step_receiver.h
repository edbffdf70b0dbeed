// StepReceiver on a GPU: copies and decodes on a stream of their own, in the order in which replies
// come, which is that of the forward pass; the computing stream waits segment by segment.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/memory.h"
#include "kernels/cuda/segment_codec.h"
#include "kernels/cuda/step_encoder.h"
#include "kernels/step_receiver.h"

namespace FORESHARD_CUDA_NAMESPACE {

class CudaStepReceiver final : public StepReceiver {
 public:
  // `device` is the GPU's number, `computing` the stream that steps run on, `vector` the whole flat
  // one [elements]; stream and vector outlive this. As StepMemory::MakeReceiver.
  static absl::StatusOr<std::unique_ptr<CudaStepReceiver>> Make(
      int device, NativeStream computing, float* vector, uint64_t elements,
      const StepReceiverOptions& options);

  absl::StatusOr<uint8_t*> Landing(size_t segment) override;
  absl::Status Take(size_t segment, bool plain, const CodecKey& key) override;
  absl::Status TakeResult(size_t segment, const CodecKey& key, const FrozenAdamStep& step) override;
  absl::Status TakeMomentum(size_t segment) override;
  absl::Status TakeDenominator(size_t segment) override;
  absl::Status KeepBack(size_t segment, bool plain, const CodecKey& key, float beta1) override;
  absl::Status ScaleError(size_t segment, float factor) override;
  absl::Status Await(size_t segment) override;

 private:
  struct Segment {
    uint64_t begin = 0, elements = 0;
    SegmentCodec codec;
    SegmentCodec plain;    // rounds
    uint64_t landing = 0;  // of its bytes, in landing_
    uint64_t place = 0;    // the same, in encoded_
    Event taken;           // on the receiving stream
  };

  CudaStepReceiver(int device, NativeStream computing, float* vector, CudaStepEncoder* encoder)
      : device_(device), computing_(computing), vector_(vector), encoder_(encoder) {}

  // Copies what has landed as fp32 to the segment's place in an array of all.
  absl::Status TakePlain(size_t segment, float* all);

  const int device_;
  const NativeStream computing_;
  float* const vector_;
  CudaStepEncoder* const encoder_;  // rounds
  std::vector<Segment> segments_;
  PinnedArray<uint8_t> landing_;
  DeviceArray<uint8_t> encoded_;
  Stream receiving_;  // last, so that it is waited for first
};

}  // namespace FORESHARD_CUDA_NAMESPACE
