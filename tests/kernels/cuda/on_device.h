// What tests of GPU code share. The same bodies run on the emulation (in kernels_tests, in
// several orders of threads) and on a GPU (in kernels_gpu_tests; skipped where there is none).
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "kernels/cuda/memory.h"

#if defined(FORESHARD_CUDA_EMULATION)
#include "kernels/cuda/emulation/machine.h"
#endif

namespace foreshard::kernels::cuda {

#if defined(FORESHARD_CUDA_EMULATION)
constexpr uint64_t kOrders = 3;
using ThreadOrder = emulation::ScopedOrder;
#else
constexpr uint64_t kOrders = 1;
// A GPU takes its own.
struct ThreadOrder {
  explicit ThreadOrder(uint64_t) {}
};
#endif

// Skips the test, with the reason, where no GPU can be used.
class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    const absl::Status status = UseDevice(0);
    if (!status.ok()) GTEST_SKIP() << "no GPU to test on: " << status.message();
  }
};

// Device memory with these elements, `shift` elements behind an address aligned to 256, so that
// any alignment can be had. What lies before them must stay as it was.
template <typename T>
class Uploaded {
 public:
  explicit Uploaded(absl::Span<const T> values, uint64_t shift = 0) : shift_(shift) {
    auto memory = DeviceArray<T>::Allocate(values.size() + shift);
    if (!memory.ok()) {
      ADD_FAILURE() << memory.status();
      return;
    }
    memory_ = *std::move(memory);
    std::vector<T> all(memory_.size());
    if (shift > 0) std::memset(static_cast<void*>(all.data()), kBefore, shift * sizeof(T));
    if (!values.empty())
      std::memcpy(static_cast<void*>(all.data() + shift), values.data(), values.size() * sizeof(T));
    EXPECT_EQ(CopyToDevice(memory_.data(), all.data(), memory_.bytes(), nullptr), absl::OkStatus());
    EXPECT_EQ(WaitFor(nullptr), absl::OkStatus());
  }

  T* data() const { return memory_.data() + shift_; }

  std::vector<T> Download() const {
    EXPECT_EQ(WaitFor(nullptr), absl::OkStatus());
    std::vector<T> all(memory_.size());
    EXPECT_EQ(CopyToHost(all.data(), memory_.data(), memory_.bytes(), nullptr), absl::OkStatus());
    EXPECT_EQ(WaitFor(nullptr), absl::OkStatus());
    for (uint64_t i = 0; i < shift_ * sizeof(T); ++i) {
      EXPECT_EQ(reinterpret_cast<const uint8_t*>(all.data())[i], kBefore)
          << "written before the beginning";
    }
    return {all.begin() + static_cast<int64_t>(shift_), all.end()};
  }

 private:
  static constexpr uint8_t kBefore = 0x5a;

  uint64_t shift_;
  DeviceArray<T> memory_;
};

template <typename T>
Uploaded<T> Upload(const std::vector<T>& values, uint64_t shift = 0) {
  return Uploaded<T>(absl::MakeConstSpan(values), shift);
}

inline std::vector<uint32_t> Bits(absl::Span<const float> values) {
  std::vector<uint32_t> bits(values.size());
  if (!bits.empty()) std::memcpy(bits.data(), values.data(), bits.size() * sizeof(float));
  return bits;
}

}  // namespace foreshard::kernels::cuda
