// StepMemory on a GPU: parameters come in on a stream of their own, in the order in which the
// forward pass asks for them; what is given to the computing stream afterwards waits for them.
#pragma once

#include <memory>

#include "kernels/cuda/memory.h"
#include "kernels/device.h"

namespace FORESHARD_CUDA_NAMESPACE {

class CudaStepMemory final : public StepMemory {
 public:
  // `computing` is the stream that networks run on, of the GPU of this number; it outlives this.
  static absl::StatusOr<std::unique_ptr<CudaStepMemory>> Make(NativeStream computing,
                                                              uint64_t trainable_elements,
                                                              uint64_t elements, int device = 0);

  float* vector() override { return vector_.data(); }
  float* gradient() override { return results_.data(); }
  float* statistics() override { return results_.data() + statistics_begin_; }

  absl::Status Upload(const float* vector, uint64_t begin, uint64_t elements) override;
  absl::Status Download(float* gradient, float* statistics) override;
  absl::StatusOr<std::unique_ptr<StepEncoder>> MakeEncoder(
      const StepEncoderOptions& options) override;
  absl::StatusOr<std::unique_ptr<StepReceiver>> MakeReceiver(
      const StepReceiverOptions& options) override;

 private:
  CudaStepMemory() = default;

  int device_ = 0;
  NativeStream computing_ = nullptr;
  uint64_t trainable_elements_ = 0, elements_ = 0;
  uint64_t statistics_begin_ = 0;  // in results_, aligned
  DeviceArray<float> vector_;
  DeviceArray<float> results_;     // gradient, then statistics
  PinnedArray<float> landing_;     // of results_, on their way back
  const float* pinned_vector_ = nullptr;
  PinnedRange pinned_;             // the host's vector
  Event uploaded_;
  Stream copying_;                 // last, so that it is waited for first
};

}  // namespace FORESHARD_CUDA_NAMESPACE
