// A device whose networks work in memory of their own: the emulated GPU with plain loops for its
// libraries, so that a worker's way around a GPU is tested without one.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda/network.h"
#include "kernels/cuda/step_memory.h"
#include "kernels/device.h"
#include "tests/kernels/cuda/plain_library.h"

namespace foreshard {

class EmulatedDevice final : public kernels::Device {
 public:
  const std::string& description() const override { return description_; }
  std::string_view name() const override { return "cuda:0"; }
  bool uses_host_memory() const override { return false; }
  absl::StatusOr<std::unique_ptr<kernels::StepMemory>> MakeStepMemory(uint64_t trainable_elements,
                                                                      uint64_t elements) override {
    return kernels::cuda::CudaStepMemory::Make(stream_.native(), trainable_elements, elements);
  }
  absl::StatusOr<std::unique_ptr<kernels::Buffer>> Allocate(uint64_t) override {
    return absl::UnimplementedError("buffers");
  }
  absl::StatusOr<std::unique_ptr<kernels::Network>> MakeNetwork(
      const kernels::NetworkSpec& spec) override {
    return kernels::cuda::CudaNetwork::Create(&library_, stream_.native(), spec);
  }
  absl::Status MatrixMultiply(uint64_t, uint64_t, uint64_t, const float*, const float*,
                              float*) override {
    return absl::UnimplementedError("products");
  }

  kernels::cuda::NativeStream stream() const { return stream_.native(); }

 private:
  const std::string description_ = "emulated";
  kernels::cuda::PlainLibrary library_{kernels::cuda::Storage::kFp32};
  kernels::cuda::Stream stream_ = kernels::cuda::Stream::Make().value();
};

}  // namespace foreshard
