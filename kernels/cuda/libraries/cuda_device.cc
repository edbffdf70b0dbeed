#include "kernels/cuda/libraries/cuda_device.h"

#include <mutex>
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

// CUDA's device is the thread's, and a network may be used from any. Networks of a device share its
// stream, which may be being captured, and the libraries' handles: one runs at a time.
class OnThisThread final : public Network {
 public:
  OnThisThread(int number, std::mutex* one, std::unique_ptr<CudaNetwork> network)
      : number_(number), one_(*one), network_(std::move(network)) {}

  absl::StatusOr<LossSum> Train(const BatchView& batch, const float* vector, Gate gate,
                                const StepOutput& output) override {
    const std::lock_guard<std::mutex> lock(one_);
    if (auto s = UseDevice(number_); !s.ok()) return s;
    return network_->Train(batch, vector, gate, output);
  }
  absl::Status Statistics(const BatchView& batch, const float* vector,
                          float* statistics) override {
    const std::lock_guard<std::mutex> lock(one_);
    if (auto s = UseDevice(number_); !s.ok()) return s;
    return network_->Statistics(batch, vector, statistics);
  }
  absl::StatusOr<LossSum> Evaluate(const BatchView& batch, const float* vector) override {
    const std::lock_guard<std::mutex> lock(one_);
    if (auto s = UseDevice(number_); !s.ok()) return s;
    return network_->Evaluate(batch, vector);
  }
  uint64_t step_bytes() const override { return network_->step_bytes(); }

 private:
  const int number_;
  std::mutex& one_;
  std::unique_ptr<CudaNetwork> network_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int number, const CudaGpu& gpu, Precision asked, Precision precision, Stream stream,
             std::unique_ptr<LayerLibrary> library, std::string_view note)
      : number_(number),
        name_(absl::StrCat("cuda:", number)),
        stream_(std::move(stream)),
        library_(std::move(library)) {
    const std::string_view name = NameOf(precision);
    description_ = absl::StrCat(name_, ": ", gpu.name, " (compute capability ", gpu.major, ".",
                                gpu.minor, ", ", gpu.memory_bytes >> 20, " MiB), ",
                                library_->description(), ", ",
                                absl::string_view(name.data(), name.size()));
    if (precision != asked) description_.append(", since this GPU has no tf32");
    // Attention's products use what came with 8.0.
    if (const int compiled = CompiledFor(); gpu.major >= 8 && compiled > 0 && compiled < 80) {
      absl::StrAppend(&description_, "; this program was compiled for compute capability ", compiled / 10, ".",
                      compiled % 10, ", attention is slow: configure it with -DCMAKE_CUDA_ARCHITECTURES=", gpu.major,
                      gpu.minor);
    }
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
    const std::lock_guard<std::mutex> lock(one_);
    if (auto s = UseDevice(number_); !s.ok()) return s;
    auto network = CudaNetwork::Create(library_.get(), stream_.native(), spec);
    if (!network.ok()) return network.status();
    return std::make_unique<OnThisThread>(number_, &one_, *std::move(network));
  }
  absl::StatusOr<std::unique_ptr<StepMemory>> MakeStepMemory(uint64_t trainable_elements,
                                                             uint64_t elements) override {
    if (auto s = UseDevice(number_); !s.ok()) return s;
    return CudaStepMemory::Make(stream_.native(), trainable_elements, elements, number_);
  }
  absl::Status MatrixMultiply(uint64_t m, uint64_t n, uint64_t k, const float* a, const float* b,
                              float* c) override {
    const std::lock_guard<std::mutex> lock(one_);
    if (auto s = UseDevice(number_); !s.ok()) return s;
    const absl::Status given = library_->Multiply(m, n, k, a, b, c, stream_.native());
    return given.ok() ? stream_.Synchronize() : given;
  }

 private:
  const int number_;
  const std::string name_;
  std::string description_;
  std::mutex one_;  // who uses stream and library
  Stream stream_;
  std::unique_ptr<LayerLibrary> library_;
};

}  // namespace

absl::StatusOr<Precision> PrecisionOn(int major, Precision asked) {
  if (major >= 8) return asked;
  if (asked == Precision::kBf16) {
    return absl::InvalidArgumentError(
        absl::StrCat("bf16 begins with compute capability 8.0, this GPU has ", major,
                     ".x: choose the precision tf32 or fp32"));
  }
  return Precision::kFp32;
}

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int number, const DeviceOptions& options,
                                                       std::string_view note) {
  if (auto s = UseDevice(number); !s.ok()) return s;
  const CudaProbe probe = ProbeCuda();
  const CudaGpu& gpu = probe.gpus[static_cast<size_t>(number)];
  const auto precision = PrecisionOn(gpu.major, options.precision);
  if (!precision.ok()) return precision.status();
  auto library = MakeNvidiaLibrary(*precision);
  if (!library.ok()) return library.status();
  auto stream = Stream::Make();
  if (!stream.ok()) return stream.status();
  return std::make_unique<CudaDevice>(number, gpu, options.precision, *precision, *std::move(stream),
                                      *std::move(library), note);
}

}  // namespace foreshard::kernels::cuda
