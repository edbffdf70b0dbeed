// CUDA's words for sources that are compiled as C++ (included by device_code.h): what of the
// language and its built-in functions the kernels here use, on top of machine.h.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/cuda/emulation/machine.h"
#include "kernels/cuda/emulation/streams.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

#define threadIdx (::foreshard::kernels::cuda::emulation::ThreadIndex())
#define blockIdx (::foreshard::kernels::cuda::emulation::BlockIndex())
#define blockDim (::foreshard::kernels::cuda::emulation::BlockSize())
#define gridDim (::foreshard::kernels::cuda::emulation::GridSize())

struct alignas(16) float4 {
  float x, y, z, w;
};

namespace foreshard::kernels::cuda::emulation {

// What p[i] of a Pointer is: each read and write of it is looked at.
template <typename T>
class Reference {
 public:
  Reference(Region* region, T* address) : region_(region), address_(address) {}

  operator std::remove_const_t<T>() const {  // NOLINT: stands for the value
    Access(region_, address_, sizeof(T), alignof(T), AccessKind::kRead);
    return *address_;
  }
  const Reference& operator=(const std::remove_const_t<T>& value) const {
    Access(region_, address_, sizeof(T), alignof(T), AccessKind::kWrite);
    *address_ = value;
    return *this;
  }
  const Reference& operator=(const Reference& other) const {
    return *this = static_cast<std::remove_const_t<T>>(other);
  }
  const Reference& operator|=(const std::remove_const_t<T>& value) const {
    return *this = static_cast<std::remove_const_t<T>>(*this) | value;
  }

 private:
  Region* const region_;
  T* const address_;
};

// A T* that knows the memory it points into.
template <typename T>
class Pointer {
 public:
  Pointer() = default;
  Pointer(T* address)  // NOLINT: kernels' arguments are given as plain pointers
      : region_(address == nullptr ? nullptr : FindRegion(address)), address_(address) {}
  Pointer(Region* region, T* address) : region_(region), address_(address) {}
  template <typename U>
  requires(std::is_same_v<T, const U>) Pointer(const Pointer<U>& other)  // NOLINT: T* is a const T*
      : region_(other.region()), address_(other.address()) {}

  Reference<T> operator[](uint64_t i) const { return {region_, address_ + i}; }
  Reference<T> operator*() const { return {region_, address_}; }
  Pointer operator+(uint64_t i) const { return {region_, address_ + i}; }
  bool operator==(std::nullptr_t) const { return address_ == nullptr; }

  Region* region() const { return region_; }
  T* address() const { return address_; }

 private:
  Region* region_ = nullptr;
  T* address_ = nullptr;
};

template <typename To, typename From>
Pointer<To> CastPointer(const Pointer<From>& pointer) {
  return {pointer.region(), reinterpret_cast<To*>(pointer.address())};
}
template <typename T>
uintptr_t AddressOf(const Pointer<T>& pointer) {
  return reinterpret_cast<uintptr_t>(pointer.address());
}
template <typename T>
std::remove_const_t<T> LoadStreaming(const Pointer<T>& pointer) {
  return *pointer;
}
template <typename T>
void StoreStreaming(const Pointer<T>& pointer, const T& value) {
  *pointer = value;
}

template <typename T>
Pointer<T> MakeShared(const void* site, const char* name, uint64_t count) {
  Region* const region = SharedArray(site, name, count * sizeof(T));
  return {region, static_cast<T*>(region->data())};
}
template <typename T>
Pointer<T> MakeDynamicShared() {
  Region* const region = DynamicShared();
  return {region, static_cast<T*>(region->data())};
}

// The arguments are taken now, the kernel runs in the stream's order.
template <typename... Parameters, typename... Arguments>
absl::Status Launch(const char* name, void (*kernel)(Parameters...), const Grid& grid,
                    CUstream_st* stream, const Arguments&... arguments) {
  return Give(stream, [name, kernel, grid, arguments...] {
    return Run(name, grid, [&] { kernel(arguments...); });
  });
}

template <typename T>
T ShuffleFrom(uint32_t mask, T value, uint32_t source) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  return std::bit_cast<T>(static_cast<Bits>(
      Together(WarpOperation::kShuffle, mask, std::bit_cast<Bits>(value), source)));
}

// The value before, as CUDA's atomics give it.
template <typename T, typename Change>
T Atomically(const Pointer<T>& pointer, const Change& change) {
  Access(pointer.region(), pointer.address(), sizeof(T), alignof(T), AccessKind::kAtomic);
  const T before = *pointer.address();
  *pointer.address() = change(before);
  return before;
}

}  // namespace foreshard::kernels::cuda::emulation

// One array for each place in the source.
#define FORESHARD_SHARED(type, name, count)                         \
  static const char name##_site = 0;                                \
  const ::foreshard::kernels::cuda::emulation::Pointer<type> name = \
      ::foreshard::kernels::cuda::emulation::MakeShared<type>(&name##_site, #name, count)
#define FORESHARD_DYNAMIC_SHARED(type, name)                        \
  const ::foreshard::kernels::cuda::emulation::Pointer<type> name = \
      ::foreshard::kernels::cuda::emulation::MakeDynamicShared<type>()

inline void __syncthreads() { ::foreshard::kernels::cuda::emulation::Barrier(); }
inline void __syncwarp(uint32_t mask = 0xffffffff) {
  using namespace ::foreshard::kernels::cuda::emulation;
  Together(WarpOperation::kSync, mask, 0);
}
template <typename T>
T __shfl_sync(uint32_t mask, T value, uint32_t lane) {
  return ::foreshard::kernels::cuda::emulation::ShuffleFrom(mask, value, lane % 32);
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, uint32_t bits) {
  using namespace ::foreshard::kernels::cuda::emulation;
  return ShuffleFrom(mask, value, Lane() ^ bits);
}
// Lanes for which there is no other get their own value back.
template <typename T>
T __shfl_down_sync(uint32_t mask, T value, uint32_t lanes) {
  using namespace ::foreshard::kernels::cuda::emulation;
  return ShuffleFrom(mask, value, Lane() + lanes < kWarpThreads ? Lane() + lanes : Lane());
}
template <typename T>
T __shfl_up_sync(uint32_t mask, T value, uint32_t lanes) {
  using namespace ::foreshard::kernels::cuda::emulation;
  return ShuffleFrom(mask, value, Lane() >= lanes ? Lane() - lanes : Lane());
}
inline uint32_t __ballot_sync(uint32_t mask, bool predicate) {
  using namespace ::foreshard::kernels::cuda::emulation;
  return static_cast<uint32_t>(Together(WarpOperation::kBallot, mask, predicate));
}
inline uint32_t __reduce_add_sync(uint32_t mask, uint32_t value) {
  using namespace ::foreshard::kernels::cuda::emulation;
  return static_cast<uint32_t>(Together(WarpOperation::kAdd, mask, value));
}
inline uint32_t __reduce_min_sync(uint32_t mask, uint32_t value) {
  using namespace ::foreshard::kernels::cuda::emulation;
  return static_cast<uint32_t>(Together(WarpOperation::kMinimum, mask, value));
}
inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t value) {
  using namespace ::foreshard::kernels::cuda::emulation;
  return static_cast<uint32_t>(Together(WarpOperation::kMaximum, mask, value));
}
inline uint32_t __reduce_or_sync(uint32_t mask, uint32_t value) {
  using namespace ::foreshard::kernels::cuda::emulation;
  return static_cast<uint32_t>(Together(WarpOperation::kOr, mask, value));
}
inline uint32_t __reduce_and_sync(uint32_t mask, uint32_t value) {
  using namespace ::foreshard::kernels::cuda::emulation;
  return static_cast<uint32_t>(Together(WarpOperation::kAnd, mask, value));
}

template <typename T>
T atomicAdd(const ::foreshard::kernels::cuda::emulation::Pointer<T>& at,
            std::type_identity_t<T> value) {
  return Atomically(at, [&](T before) { return static_cast<T>(before + value); });
}
template <typename T>
T atomicOr(const ::foreshard::kernels::cuda::emulation::Pointer<T>& at,
           std::type_identity_t<T> value) {
  return Atomically(at, [&](T before) { return static_cast<T>(before | value); });
}
template <typename T>
T atomicMax(const ::foreshard::kernels::cuda::emulation::Pointer<T>& at,
            std::type_identity_t<T> value) {
  return Atomically(at, [&](T before) { return before < value ? value : before; });
}

inline int __popc(uint32_t word) { return std::popcount(word); }
inline int __ffs(int word) {
  return word == 0 ? 0 : std::countr_zero(static_cast<uint32_t>(word)) + 1;
}
inline int __clz(int word) { return std::countl_zero(static_cast<uint32_t>(word)); }
inline uint32_t __float_as_uint(float value) { return std::bit_cast<uint32_t>(value); }
inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(uint64_t{a} * b >> 32);
}
