#include "kernels/cuda/step_memory.h"

#include <cstring>
#include <utility>

#include "kernels/cuda/step_encoder.h"
#include "kernels/cuda/step_receiver.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

constexpr uint64_t kAlignedElements = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<CudaStepMemory>> CudaStepMemory::Make(NativeStream computing,
                                                                     uint64_t trainable_elements,
                                                                     uint64_t elements,
                                                                     int device) {
  std::unique_ptr<CudaStepMemory> made(new CudaStepMemory());
  made->device_ = device;
  made->computing_ = computing;
  made->trainable_elements_ = trainable_elements;
  made->elements_ = elements;
  made->statistics_begin_ =
      (trainable_elements + kAlignedElements - 1) / kAlignedElements * kAlignedElements;
  const uint64_t results = made->statistics_begin_ + (elements - trainable_elements);
  auto vector = DeviceArray<float>::Allocate(elements);
  if (!vector.ok()) return vector.status();
  made->vector_ = *std::move(vector);
  auto result = DeviceArray<float>::Allocate(results);
  if (!result.ok()) return result.status();
  made->results_ = *std::move(result);
  auto landing = PinnedArray<float>::Allocate(results);
  if (!landing.ok()) return landing.status();
  made->landing_ = *std::move(landing);
  auto event = Event::Make();
  if (!event.ok()) return event.status();
  made->uploaded_ = *std::move(event);
  auto stream = Stream::Make();
  if (!stream.ok()) return stream.status();
  made->copying_ = *std::move(stream);
  return made;
}

absl::Status CudaStepMemory::Upload(const float* vector, uint64_t begin, uint64_t elements) {
  if (const absl::Status used = UseDevice(device_); !used.ok()) return used;
  if (vector != pinned_vector_) {
    // Where the system does not allow it the copies below are slower, and right.
    if (const absl::Status waited = copying_.Synchronize(); !waited.ok()) return waited;
    auto pinned = PinnedRange::Pin(vector, elements_ * sizeof(float));
    pinned_ = pinned.ok() ? *std::move(pinned) : PinnedRange();
    pinned_vector_ = vector;
  }
  absl::Status status = CopyToDevice(vector_.data() + begin, vector + begin,
                                     elements * sizeof(float), copying_.native());
  if (status.ok()) status = uploaded_.Record(copying_.native());
  return status.ok() ? uploaded_.MakeWait(computing_) : status;
}

absl::Status CudaStepMemory::Download(float* gradient, float* statistics) {
  if (const absl::Status used = UseDevice(device_); !used.ok()) return used;
  const uint64_t statistic_elements = elements_ - trainable_elements_;
  absl::Status status;
  if (gradient != nullptr) {
    status = CopyToHost(landing_.data(), results_.data(), trainable_elements_ * sizeof(float),
                        computing_);
  }
  if (status.ok() && statistics != nullptr && statistic_elements > 0) {
    status = CopyToHost(landing_.data() + statistics_begin_, results_.data() + statistics_begin_,
                        statistic_elements * sizeof(float), computing_);
  }
  if (status.ok()) status = WaitFor(computing_);
  if (!status.ok()) return status;
  if (gradient != nullptr) {
    std::memcpy(gradient, landing_.data(), trainable_elements_ * sizeof(float));
  }
  if (statistics != nullptr && statistic_elements > 0) {
    std::memcpy(statistics, landing_.data() + statistics_begin_,
                statistic_elements * sizeof(float));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StepEncoder>> CudaStepMemory::MakeEncoder(
    const StepEncoderOptions& options) {
  if (const absl::Status used = UseDevice(device_); !used.ok()) return used;
  return CudaStepEncoder::Make(computing_,
                               {.vector = vector_.data(),
                                .gradient = gradient(),
                                .trainable_elements = trainable_elements_,
                                .statistics = statistics(),
                                .statistic_elements = elements_ - trainable_elements_,
                                .device = device_},
                               options);
}

absl::StatusOr<std::unique_ptr<StepReceiver>> CudaStepMemory::MakeReceiver(
    const StepReceiverOptions& options) {
  if (const absl::Status used = UseDevice(device_); !used.ok()) return used;
  return CudaStepReceiver::Make(device_, computing_, vector_.data(), elements_, options);
}

}  // namespace FORESHARD_CUDA_NAMESPACE
