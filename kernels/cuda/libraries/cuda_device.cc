#include "kernels/cuda/libraries/cuda_device.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/libraries/nvidia_library.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/network.h"
#include "kernels/cuda/probe.h"
#include "kernels/cuda/step_memory.h"

namespace foreshard::kernels::cuda {
namespace {

class CudaBuffer final : public Buffer {
 public:
  explicit CudaBuffer(Memory memory) : memory_(std::move(memory)) {}

  void* data() override { return memory_.data(); }
  uint64_t bytes() const override { return memory_.bytes(); }
  absl::Status Write(uint64_t offset, const void* host, uint64_t bytes) override {
    if (auto s = CheckRange(offset, bytes); !s.ok()) return s;
    const absl::Status given = CopyToDevice(At(offset), host, bytes, nullptr);
    return given.ok() ? WaitFor(nullptr) : given;
  }
  absl::Status Read(uint64_t offset, void* host, uint64_t bytes) const override {
    if (auto s = CheckRange(offset, bytes); !s.ok()) return s;
    const absl::Status given = CopyToHost(host, At(offset), bytes, nullptr);
    return given.ok() ? WaitFor(nullptr) : given;
  }

 private:
  uint8_t* At(uint64_t offset) const { return static_cast<uint8_t*>(memory_.data()) + offset; }
  absl::Status CheckRange(uint64_t offset, uint64_t bytes) const {
    if (offset <= memory_.bytes() && bytes <= memory_.bytes() - offset) return absl::OkStatus();
    return absl::OutOfRangeError(
        absl::StrCat("bytes ", offset, " to ", offset + bytes, " of a buffer of ", memory_.bytes()));
  }

  Memory memory_;
};

// CUDA's device is the thread's, and a network may be used from any.
class OnThisThread final : public Network {
 public:
  OnThisThread(int number, std::unique_ptr<CudaNetwork> network)
      : number_(number), network_(std::move(network)) {}

  absl::StatusOr<LossSum> Train(const BatchView& batch, const float* vector, Gate gate,
                                const StepOutput& output) override {
    if (auto s = UseDevice(number_); !s.ok()) return s;
    return network_->Train(batch, vector, gate, output);
  }
  absl::Status Statistics(const BatchView& batch, const float* vector,
                          float* statistics) override {
    if (auto s = UseDevice(number_); !s.ok()) return s;
    return network_->Statistics(batch, vector, statistics);
  }
  absl::StatusOr<LossSum> Evaluate(const BatchView& batch, const float* vector) override {
    if (auto s = UseDevice(number_); !s.ok()) return s;
    return network_->Evaluate(batch, vector);
  }
  uint64_t step_bytes() const override { return network_->step_bytes(); }

 private:
  const int number_;
  std::unique_ptr<CudaNetwork> network_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int number, const CudaGpu& gpu, const DeviceOptions& options, Stream stream,
             std::unique_ptr<LayerLibrary> library, std::string_view note)
      : number_(number),
        name_(absl::StrCat("cuda:", number)),
        stream_(std::move(stream)),
        library_(std::move(library)) {
    const std::string_view precision = NameOf(options.precision);
    description_ = absl::StrCat(name_, ": ", gpu.name, " (compute capability ", gpu.major, ".",
                                gpu.minor, ", ", gpu.memory_bytes >> 20, " MiB), ",
                                library_->description(), ", ",
                                absl::string_view(precision.data(), precision.size()));
    if (!note.empty()) description_.append("; ").append(note);
  }

  const std::string& description() const override { return description_; }
  std::string_view name() const override { return name_; }
  bool uses_host_memory() const override { return false; }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(uint64_t bytes) override {
    if (auto s = UseDevice(number_); !s.ok()) return s;
    auto memory = Memory::Allocate(MemoryKind::kDevice, bytes);
    if (!memory.ok()) return memory.status();
    return std::make_unique<CudaBuffer>(*std::move(memory));
  }
  absl::StatusOr<std::unique_ptr<Network>> MakeNetwork(const NetworkSpec& spec) override {
    if (auto s = UseDevice(number_); !s.ok()) return s;
    auto network = CudaNetwork::Create(library_.get(), stream_.native(), spec);
    if (!network.ok()) return network.status();
    return std::make_unique<OnThisThread>(number_, *std::move(network));
  }
  absl::StatusOr<std::unique_ptr<StepMemory>> MakeStepMemory(uint64_t trainable_elements,
                                                             uint64_t elements) override {
    if (auto s = UseDevice(number_); !s.ok()) return s;
    return CudaStepMemory::Make(stream_.native(), trainable_elements, elements, number_);
  }
  absl::Status MatrixMultiply(uint64_t m, uint64_t n, uint64_t k, const float* a, const float* b,
                              float* c) override {
    if (auto s = UseDevice(number_); !s.ok()) return s;
    const absl::Status given = library_->Multiply(m, n, k, a, b, c, stream_.native());
    return given.ok() ? stream_.Synchronize() : given;
  }

 private:
  const int number_;
  const std::string name_;
  std::string description_;
  Stream stream_;
  std::unique_ptr<LayerLibrary> library_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int number, const DeviceOptions& options,
                                                       std::string_view note) {
  if (auto s = UseDevice(number); !s.ok()) return s;
  const CudaProbe probe = ProbeCuda();
  auto library = MakeNvidiaLibrary(options.precision);
  if (!library.ok()) return library.status();
  auto stream = Stream::Make();
  if (!stream.ok()) return stream.status();
  return std::make_unique<CudaDevice>(number, probe.gpus[static_cast<size_t>(number)], options,
                                      *std::move(stream), *std::move(library), note);
}

}  // namespace foreshard::kernels::cuda
