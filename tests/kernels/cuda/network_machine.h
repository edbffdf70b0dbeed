// A network on the GPU with what a device's worker has beside it: in the emulation above plain loops
// (plain_library.h), on a GPU above cuDNN and cuBLASLt, in fp32 or bf16.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/network.h"
#include "kernels/cuda/step_memory.h"
#include "tests/kernels/cuda/on_device.h"
#if defined(FORESHARD_CUDA_EMULATION)
#include "tests/kernels/cuda/plain_library.h"
#else
#include "kernels/cuda/libraries/nvidia_library.h"
#endif

namespace foreshard::kernels::cuda {

// What a device's worker has, on one stream.
class Machine {
 public:
  Machine(const NetworkSpec& spec, Storage storage = Storage::kFp32) {
#if defined(FORESHARD_CUDA_EMULATION)
    library_ = std::make_unique<PlainLibrary>(storage);
#else
    library_ = MakeNvidiaLibrary(storage == Storage::kBf16 ? Precision::kBf16 : Precision::kFp32).value();
#endif
    stream_ = Stream::Make().value();
    memory_ = CudaStepMemory::Make(stream_.native(), spec.trainable_elements, spec.elements).value();
    network_ = CudaNetwork::Create(library_.get(), stream_.native(), spec).value();
  }

  CudaNetwork& network() { return *network_; }
#if defined(FORESHARD_CUDA_EMULATION)
  PlainLibrary& library() { return static_cast<PlainLibrary&>(*library_); }
#endif
  CudaStepMemory& memory() { return *memory_; }

  // A step with parameters from the host and results to it. `Case` has a spec and a vector.
  template <typename Case>
  LossSum Train(const Case& c, const BatchView& batch, float weight = 1, bool accumulate = false) {
    gradient.assign(c.spec.trainable_elements, 0);
    statistics.assign(c.spec.elements - c.spec.trainable_elements, 0);
    const auto gate = [&](uint64_t begin, uint64_t elements) {
      asked.push_back({begin, elements});
      return memory_->Upload(c.vector.data(), begin, elements);
    };
    const auto loss = network_->Train(
        batch, memory_->vector(), gate,
        {weight, accumulate, memory_->gradient(), memory_->statistics()});
    EXPECT_TRUE(loss.ok()) << loss.status();
    EXPECT_EQ(memory_->Download(gradient.data(), statistics.data()), absl::OkStatus());
    return loss.value_or(LossSum{});
  }

  std::vector<float> gradient, statistics;
  std::vector<std::pair<uint64_t, uint64_t>> asked;

 private:
  std::unique_ptr<LayerLibrary> library_;
  Stream stream_;
  std::unique_ptr<CudaStepMemory> memory_;
  std::unique_ptr<CudaNetwork> network_;
};

inline double Distance(absl::Span<const float> a, absl::Span<const double> b, double scale = 1) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(a[i] - scale * b[i], 2);
    size += std::pow(scale * b[i], 2);
  }
  return std::sqrt(difference / std::max(size, 1e-20));
}

}  // namespace foreshard::kernels::cuda
