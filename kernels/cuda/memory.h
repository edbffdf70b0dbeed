// Memory of the GPU and memory it can reach, streams and events: what a caller of the kernels
// here needs, without CUDA's headers.
//
//   ASSIGN(Stream stream, Stream::Make());
//   ASSIGN(auto gradient, DeviceArray<float>::Allocate(elements));
//   ASSIGN(auto bytes, PinnedArray<uint8_t>::Allocate(codec.encoded_bytes()));
//   ... launch ...
//   CopyToHost(bytes.data(), device_bytes.data(), bytes.bytes(), stream.native());
//   stream.Synchronize();
//
// Errors: RESOURCE_EXHAUSTED says what is needed, what there is and what to lower; UNAVAILABLE
// is a device that is not there or is lost (a worker then ends with kExitDeviceLost);
// INTERNAL anything else that the driver refuses. An error of a kernel shows at the next call
// that waits for it.
//
// Objects may be used from any thread, one call at a time; the memory is that of the device
// that the allocating thread uses (UseDevice; 0 if never called).
#pragma once

#include <cstdint>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/namespace.h"

struct CUstream_st;
struct CUevent_st;

namespace FORESHARD_CUDA_NAMESPACE {

// cudaStream_t; null is the default stream.
using NativeStream = CUstream_st*;

// Makes `number` the device of the calling thread. UNAVAILABLE where it cannot be used, with
// what was found.
absl::Status UseDevice(int number);

struct MemoryInfo {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
};
absl::StatusOr<MemoryInfo> DeviceMemoryInfo();

// What `bytes` more would take beyond what is free, as an error; Ok where it fits. For whole
// plans, before their first allocation.
absl::Status CheckFits(uint64_t bytes);

enum class MemoryKind : uint8_t {
  kDevice,  // on the GPU
  kPinned,  // host memory that the GPU copies from and to by itself
};

// A piece of memory, aligned to 256 bytes on the device and to 64 on the host, zeroed. Freed
// with the object; whoever frees waits first for what still uses it.
class Memory {
 public:
  static absl::StatusOr<Memory> Allocate(MemoryKind kind, uint64_t bytes);

  Memory() = default;
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept;
  ~Memory();

  void* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  MemoryKind kind_ = MemoryKind::kDevice;
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// The same as elements of one trivially copyable type.
template <typename T, MemoryKind kKind>
class Array {
 public:
  static absl::StatusOr<Array> Allocate(uint64_t elements) {
    if (elements > std::numeric_limits<uint64_t>::max() / sizeof(T)) {
      return absl::ResourceExhaustedError("more elements than memory can have addresses");
    }
    absl::StatusOr<Memory> memory = Memory::Allocate(kKind, elements * sizeof(T));
    if (!memory.ok()) return memory.status();
    Array array;
    array.memory_ = *std::move(memory);
    return array;
  }

  // Of device memory an address that only kernels and copies may use.
  T* data() const { return static_cast<T*>(memory_.data()); }
  uint64_t size() const { return memory_.bytes() / sizeof(T); }
  uint64_t bytes() const { return memory_.bytes(); }

 private:
  Memory memory_;
};
template <typename T>
using DeviceArray = Array<T, MemoryKind::kDevice>;
template <typename T>
using PinnedArray = Array<T, MemoryKind::kPinned>;

// Makes memory that is there already pinned for as long as the object lives. INTERNAL where the
// system does not allow it; copies then work too, at the pace of ordinary memory.
class PinnedRange {
 public:
  static absl::StatusOr<PinnedRange> Pin(const void* data, uint64_t bytes);

  PinnedRange() = default;
  PinnedRange(PinnedRange&& other) noexcept { *this = std::move(other); }
  PinnedRange& operator=(PinnedRange&& other) noexcept;
  ~PinnedRange();

 private:
  const void* data_ = nullptr;
};

// What is given to a stream runs in that order, and beside what is given to others.
class Stream {
 public:
  static absl::StatusOr<Stream> Make();

  Stream() = default;
  Stream(Stream&& other) noexcept { *this = std::move(other); }
  Stream& operator=(Stream&& other) noexcept;
  // Waits for all of it.
  ~Stream();

  NativeStream native() const { return stream_; }
  // Waits until all of it has run; the first error of it.
  absl::Status Synchronize() const;

 private:
  NativeStream stream_ = nullptr;
};

// Stream::Synchronize of a stream that is known by its native name only.
absl::Status WaitFor(NativeStream stream);

// A place in a stream, to wait for.
class Event {
 public:
  static absl::StatusOr<Event> Make();

  Event() = default;
  Event(Event&& other) noexcept { *this = std::move(other); }
  Event& operator=(Event&& other) noexcept;
  ~Event();

  // The event is what the stream has been given up to now.
  absl::Status Record(NativeStream stream);
  // The stream runs nothing given to it from now on before the event has happened.
  absl::Status MakeWait(NativeStream stream) const;
  // Whether it has happened; true where it was never recorded.
  absl::StatusOr<bool> Happened() const;
  // Waits on the calling thread.
  absl::Status Synchronize() const;

 private:
  CUevent_st* event_ = nullptr;
};

// Copies and fills in the order of the stream. Of host memory only pinned memory is copied
// while the caller goes on; it stays alive and unchanged until then.
absl::Status CopyToDevice(void* device, const void* host, uint64_t bytes, NativeStream stream);
absl::Status CopyToHost(void* host, const void* device, uint64_t bytes, NativeStream stream);
absl::Status CopyOnDevice(void* to, const void* from, uint64_t bytes, NativeStream stream);
absl::Status FillZero(void* device, uint64_t bytes, NativeStream stream);

}  // namespace FORESHARD_CUDA_NAMESPACE
