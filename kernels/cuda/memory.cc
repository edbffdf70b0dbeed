#include "kernels/cuda/memory.h"

#include <cuda_runtime.h>

#include <cstring>
#include <string>

#include "kernels/cuda/errors.h"
#include "kernels/cuda/probe.h"

namespace foreshard::kernels::cuda {
namespace {

constexpr double kMiB = 1 << 20;

std::string MiB(uint64_t bytes) { return absl::StrCat(static_cast<double>(bytes) / kMiB, " MiB"); }

absl::Status DoesNotFit(uint64_t bytes, const MemoryInfo& info) {
  return DeviceFailure(absl::ResourceExhaustedError(absl::StrCat(
      "out of GPU memory: ", MiB(bytes), " more needed, ", MiB(info.free_bytes), " of ",
      MiB(info.total_bytes),
      " free; lower training.batch_size or raise training.micro_batches, or end what else uses "
      "this GPU")));
}

}  // namespace

absl::Status UseDevice(int number) {
  // Asked before every step; what the driver shows costs more than the rest.
  thread_local int used = -1;
  if (number == used) return absl::OkStatus();
  const CudaProbe probe = ProbeCuda();
  if (number < 0 || static_cast<size_t>(number) >= probe.gpus.size()) {
    return DeviceFailure(absl::UnavailableError(absl::StrCat(
        "GPU ", number, " is not there: ",
        probe.gpus.empty() ? probe.error
                           : absl::StrCat(probe.gpus.size(), " found, counted from 0"))));
  }
  const absl::Status status =
      CudaStatus(cudaSetDevice(number), absl::StrCat("using GPU ", number));
  if (status.ok()) used = number;
  return status;
}

absl::StatusOr<MemoryInfo> DeviceMemoryInfo() {
  size_t free = 0, total = 0;
  const absl::Status status = CudaStatus(cudaMemGetInfo(&free, &total), "asking for GPU memory");
  if (!status.ok()) return status;
  return MemoryInfo{free, total};
}

absl::Status CheckFits(uint64_t bytes) {
  const absl::StatusOr<MemoryInfo> info = DeviceMemoryInfo();
  if (!info.ok()) return info.status();
  return bytes <= info->free_bytes ? absl::OkStatus() : DoesNotFit(bytes, *info);
}

absl::StatusOr<Memory> Memory::Allocate(MemoryKind kind, uint64_t bytes) {
  Memory memory;
  memory.kind_ = kind;
  if (bytes == 0) return memory;
  const bool device = kind == MemoryKind::kDevice;
  const cudaError_t error = device ? cudaMalloc(&memory.data_, bytes)
                                   : cudaHostAlloc(&memory.data_, bytes, cudaHostAllocDefault);
  if (error == cudaErrorMemoryAllocation && device) {
    cudaGetLastError();
    const absl::StatusOr<MemoryInfo> info = DeviceMemoryInfo();
    return info.ok() ? DoesNotFit(bytes, *info) : info.status();
  }
  absl::Status status = CudaStatus(
      error,
      absl::StrCat("allocating ", MiB(bytes), device ? " of GPU memory" : " of pinned memory"));
  if (!status.ok()) {
    memory.data_ = nullptr;
    return status;
  }
  memory.bytes_ = bytes;
  if (device) {
    status = CudaStatus(cudaMemset(memory.data_, 0, bytes), "zeroing GPU memory");
    // The default stream's fill is over before streams that do not wait for it begin.
    if (status.ok()) status = CudaStatus(cudaStreamSynchronize(nullptr), "zeroing GPU memory");
    if (!status.ok()) return status;
  } else {
    std::memset(memory.data_, 0, bytes);
  }
  return memory;
}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(kind_, other.kind_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Memory::~Memory() {
  if (data_ == nullptr) return;
  if (kind_ == MemoryKind::kDevice) {
    cudaFree(data_);
  } else {
    cudaFreeHost(data_);
  }
}

absl::StatusOr<PinnedRange> PinnedRange::Pin(const void* data, uint64_t bytes) {
  PinnedRange range;
  if (bytes == 0) return range;
  const absl::Status status =
      CudaStatus(cudaHostRegister(const_cast<void*>(data), bytes, cudaHostRegisterDefault),
                 absl::StrCat("pinning ", MiB(bytes)));
  if (!status.ok()) return status;
  range.data_ = data;
  return range;
}
PinnedRange& PinnedRange::operator=(PinnedRange&& other) noexcept {
  std::swap(data_, other.data_);
  return *this;
}
PinnedRange::~PinnedRange() {
  if (data_ != nullptr) cudaHostUnregister(const_cast<void*>(data_));
}

absl::StatusOr<Stream> Stream::Make() {
  Stream stream;
  const absl::Status status = CudaStatus(
      cudaStreamCreateWithFlags(&stream.stream_, cudaStreamNonBlocking), "making a stream");
  if (!status.ok()) return status;
  return stream;
}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(stream_, other.stream_);
  return *this;
}

Stream::~Stream() {
  if (stream_ == nullptr) return;
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

absl::Status Stream::Synchronize() const { return WaitFor(stream_); }

absl::Status WaitFor(NativeStream stream) {
  return CudaStatus(cudaStreamSynchronize(stream), "waiting for a stream");
}

absl::StatusOr<Event> Event::Make() {
  Event event;
  const absl::Status status = CudaStatus(
      cudaEventCreateWithFlags(&event.event_, cudaEventDisableTiming), "making an event");
  if (!status.ok()) return status;
  return event;
}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(event_, other.event_);
  return *this;
}

Event::~Event() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

absl::Status Event::Record(NativeStream stream) {
  return CudaStatus(cudaEventRecord(event_, stream), "recording an event");
}

absl::Status Event::MakeWait(NativeStream stream) const {
  return CudaStatus(cudaStreamWaitEvent(stream, event_, 0), "making a stream wait for an event");
}

absl::StatusOr<bool> Event::Happened() const {
  const cudaError_t error = cudaEventQuery(event_);
  if (error == cudaErrorNotReady) {
    cudaGetLastError();  // else the next launch would take it for its own
    return false;
  }
  const absl::Status status = CudaStatus(error, "asking for an event");
  if (!status.ok()) return status;
  return true;
}

absl::Status Event::Synchronize() const {
  return CudaStatus(cudaEventSynchronize(event_), "waiting for an event");
}

absl::Status CopyToDevice(void* device, const void* host, uint64_t bytes, NativeStream stream) {
  if (bytes == 0) return absl::OkStatus();
  return CudaStatus(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream),
                    "copying to the GPU");
}

absl::Status CopyToHost(void* host, const void* device, uint64_t bytes, NativeStream stream) {
  if (bytes == 0) return absl::OkStatus();
  return CudaStatus(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream),
                    "copying from the GPU");
}

absl::Status CopyOnDevice(void* to, const void* from, uint64_t bytes, NativeStream stream) {
  if (bytes == 0) return absl::OkStatus();
  return CudaStatus(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream),
                    "copying on the GPU");
}

absl::Status FillZero(void* device, uint64_t bytes, NativeStream stream) {
  if (bytes == 0) return absl::OkStatus();
  return CudaStatus(cudaMemsetAsync(device, 0, bytes, stream), "zeroing GPU memory");
}

}  // namespace foreshard::kernels::cuda
