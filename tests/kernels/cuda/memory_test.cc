#include "kernels/cuda/memory.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/kernels/cuda/on_device.h"

namespace foreshard::kernels::cuda {
namespace {

using testing::HasSubstr;
using CudaMemoryTest = OnDevice;

TEST_F(CudaMemoryTest, IsZeroedAlignedAndFreed) {
  const uint64_t free_before = DeviceMemoryInfo()->free_bytes;
  {
    auto device = DeviceArray<float>::Allocate(100000);
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_EQ(device->size(), 100000u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(device->data()) % 256, 0u);
    std::vector<float> values(100000, 1.0f);
    ASSERT_EQ(CopyToHost(values.data(), device->data(), device->bytes(), nullptr),
              absl::OkStatus());
    ASSERT_EQ(WaitFor(nullptr), absl::OkStatus());
    EXPECT_EQ(values, std::vector<float>(100000));
    EXPECT_LE(DeviceMemoryInfo()->free_bytes, free_before);
    DeviceArray<float> moved = *std::move(device);
    EXPECT_EQ(moved.size(), 100000u);
  }
#if defined(FORESHARD_CUDA_EMULATION)
  EXPECT_EQ(DeviceMemoryInfo()->free_bytes, free_before);  // a GPU has other users
#endif
  EXPECT_GE(DeviceMemoryInfo()->total_bytes, free_before);
}

TEST_F(CudaMemoryTest, CopiesFromPinnedMemoryThroughAStream) {
  auto stream = Stream::Make();
  ASSERT_TRUE(stream.ok()) << stream.status();
  auto pinned = PinnedArray<uint8_t>::Allocate(1000);
  auto device = DeviceArray<uint8_t>::Allocate(1000), other = DeviceArray<uint8_t>::Allocate(1000);
  ASSERT_TRUE(pinned.ok() && device.ok() && other.ok());
  for (uint32_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(pinned->data()[i], 0);
    pinned->data()[i] = static_cast<uint8_t>(i);
  }
  auto event = Event::Make();
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_TRUE(event->Happened().value());
  const NativeStream native = stream->native();
  ASSERT_EQ(CopyToDevice(device->data(), pinned->data(), 1000, native), absl::OkStatus());
  ASSERT_EQ(CopyOnDevice(other->data() + 10, device->data(), 990, native), absl::OkStatus());
  ASSERT_EQ(FillZero(other->data() + 500, 100, native), absl::OkStatus());
  ASSERT_EQ(event->Record(native), absl::OkStatus());
  auto second = Stream::Make();
  ASSERT_TRUE(second.ok()) << second.status();
  ASSERT_EQ(event->MakeWait(second->native()), absl::OkStatus());
  auto back = PinnedArray<uint8_t>::Allocate(1000);
  ASSERT_TRUE(back.ok()) << back.status();
  ASSERT_EQ(CopyToHost(back->data(), other->data(), 1000, second->native()), absl::OkStatus());
  ASSERT_EQ(second->Synchronize(), absl::OkStatus());
  EXPECT_TRUE(event->Happened().value());
  EXPECT_EQ(event->Synchronize(), absl::OkStatus());
  ASSERT_EQ(stream->Synchronize(), absl::OkStatus());
  for (uint32_t i = 0; i < 1000; ++i) {
    const uint32_t expected = i < 10 || (i >= 500 && i < 600) ? 0 : i - 10;
    ASSERT_EQ(back->data()[i], static_cast<uint8_t>(expected)) << i;
  }
}

TEST_F(CudaMemoryTest, TooMuchSaysWhatThereIs) {
  const MemoryInfo info = DeviceMemoryInfo().value();
  for (const absl::Status& status :
       {Memory::Allocate(MemoryKind::kDevice, info.total_bytes + (uint64_t{1} << 40)).status(),
        CheckFits(info.total_bytes + 1)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("needed"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("free"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("batch_size"));
  }
  EXPECT_EQ(DeviceArray<float>::Allocate(~uint64_t{0} / 2).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CheckFits(0), absl::OkStatus());
  // It goes on after a refusal.
  EXPECT_TRUE(DeviceArray<float>::Allocate(10).ok());
}

TEST_F(CudaMemoryTest, NothingNeedsNoMemory) {
  auto device = DeviceArray<float>::Allocate(0);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(device->data(), nullptr);
  EXPECT_EQ(CopyToDevice(device->data(), nullptr, 0, nullptr), absl::OkStatus());
  EXPECT_EQ(CopyToHost(nullptr, device->data(), 0, nullptr), absl::OkStatus());
  EXPECT_EQ(CopyOnDevice(nullptr, nullptr, 0, nullptr), absl::OkStatus());
  EXPECT_EQ(FillZero(nullptr, 0, nullptr), absl::OkStatus());
}

TEST_F(CudaMemoryTest, ADeviceThatIsNotThere) {
  for (const int number : {-1, 4711}) {
    const absl::Status status = UseDevice(number);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(number)));
  }
}

}  // namespace
}  // namespace foreshard::kernels::cuda
