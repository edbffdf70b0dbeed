// memory.h over the host's memory; streams as late as CUDA allows (streams.h). Copies and fills look
// at their bounds, as a GPU would not.
#include "kernels/cuda/memory.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/emulation/regions.h"
#include "kernels/cuda/emulation/streams.h"

struct CUevent_st {
  foreshard::kernels::cuda::emulation::StreamPlace place;
};

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

using emulation::AddRegion;
using emulation::FindRegion;
using emulation::Region;
using emulation::RemoveRegion;

// Small, so that a test can run out of it.
constexpr uint64_t kTotalBytes = uint64_t{256} << 20;
std::atomic<uint64_t> used_bytes{0};

absl::Status DoesNotFit(uint64_t bytes) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "out of GPU memory: ", bytes, " bytes more needed, ", kTotalBytes - used_bytes, " of ",
      kTotalBytes, " free; lower training.batch_size or raise training.micro_batches"));
}

absl::Status CheckDevice(const void* device, uint64_t bytes) {
  const Region* const region = FindRegion(device);
  if (region == nullptr || !region->Contains(reinterpret_cast<uintptr_t>(device), bytes)) {
    return absl::InternalError(
        absl::StrCat("a copy or fill of ", bytes, " bytes that are not all memory of the GPU"));
  }
  return absl::OkStatus();
}

absl::Status Copy(void* to, const void* from, uint64_t bytes, const void* device) {
  if (bytes == 0) return absl::OkStatus();
  const absl::Status status = CheckDevice(device, bytes);
  if (status.ok()) std::memcpy(to, from, bytes);
  return status;
}

}  // namespace

absl::Status UseDevice(int number) {
  if (number == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("GPU ", number, " is not there: 1 found, counted from 0"));
}

absl::StatusOr<MemoryInfo> DeviceMemoryInfo() {
  return MemoryInfo{kTotalBytes - used_bytes, kTotalBytes};
}

absl::Status CheckFits(uint64_t bytes) {
  return bytes <= kTotalBytes - used_bytes ? absl::OkStatus() : DoesNotFit(bytes);
}

absl::StatusOr<Memory> Memory::Allocate(MemoryKind kind, uint64_t bytes) {
  Memory memory;
  memory.kind_ = kind;
  if (bytes == 0) return memory;
  const absl::Status status = CheckFits(bytes);
  if (!status.ok()) return status;
  auto region =
      std::make_shared<Region>(absl::StrCat(kind == MemoryKind::kDevice ? "device" : "pinned",
                                            " memory of ", bytes, " bytes"),
                               bytes, 0);
  memory.data_ = region->data();
  memory.bytes_ = bytes;
  used_bytes += bytes;
  AddRegion(std::move(region));
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
  emulation::RunAll();  // as cudaFree
  used_bytes -= bytes_;
  RemoveRegion(data_);
}

absl::StatusOr<Stream> Stream::Make() {
  Stream stream;
  stream.stream_ = emulation::MakeStream();
  return stream;
}
Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(stream_, other.stream_);
  return *this;
}
Stream::~Stream() {
  if (stream_ != nullptr) emulation::EndStream(stream_);
}
absl::Status Stream::Synchronize() const { return WaitFor(stream_); }
absl::Status WaitFor(NativeStream stream) { return emulation::RunTo(emulation::PlaceIn(stream)); }

absl::StatusOr<Event> Event::Make() {
  Event event;
  event.event_ = new CUevent_st;
  return event;
}
Event& Event::operator=(Event&& other) noexcept {
  std::swap(event_, other.event_);
  return *this;
}
Event::~Event() { delete event_; }
absl::Status Event::Record(NativeStream stream) {
  event_->place = emulation::PlaceIn(stream);
  return absl::OkStatus();
}
absl::Status Event::MakeWait(NativeStream stream) const {
  return emulation::Give(stream, [place = event_->place] { return emulation::RunTo(place); });
}
absl::StatusOr<bool> Event::Happened() const { return emulation::Reached(event_->place); }
absl::Status Event::Synchronize() const { return emulation::RunTo(event_->place); }

absl::Status CopyToDevice(void* device, const void* host, uint64_t bytes, NativeStream stream) {
  return emulation::Give(stream, [=] { return Copy(device, host, bytes, device); });
}

absl::Status CopyToHost(void* host, const void* device, uint64_t bytes, NativeStream stream) {
  return emulation::Give(stream, [=] { return Copy(host, device, bytes, device); });
}

absl::Status CopyOnDevice(void* to, const void* from, uint64_t bytes, NativeStream stream) {
  return emulation::Give(stream, [=]() -> absl::Status {
    if (bytes == 0) return absl::OkStatus();
    const absl::Status status = CheckDevice(to, bytes);
    return status.ok() ? Copy(to, from, bytes, from) : status;
  });
}

absl::Status FillZero(void* device, uint64_t bytes, NativeStream stream) {
  return emulation::Give(stream, [=]() -> absl::Status {
    if (bytes == 0) return absl::OkStatus();
    const absl::Status status = CheckDevice(device, bytes);
    if (status.ok()) std::memset(device, 0, bytes);
    return status;
  });
}

}  // namespace FORESHARD_CUDA_NAMESPACE
