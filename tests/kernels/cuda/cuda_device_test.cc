// The device cuda:n, as far as it needs no GPU.
#if !defined(FORESHARD_CUDA_EMULATION)
#include "kernels/cuda/libraries/cuda_device.h"

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "kernels/cuda/libraries/cudnn_functions.h"
#include "kernels/cuda/probe.h"
#include "kernels/device_failure.h"

namespace foreshard::kernels::cuda {
namespace {

TEST(CudaDeviceTest, OldCardsComputeInFp32) {
  for (const Precision asked : {Precision::kFp32, Precision::kTf32, Precision::kBf16}) {
    EXPECT_EQ(PrecisionOn(8, asked).value(), asked);
    EXPECT_EQ(PrecisionOn(12, asked).value(), asked);
  }
  EXPECT_EQ(PrecisionOn(7, Precision::kTf32).value(), Precision::kFp32);
  EXPECT_EQ(PrecisionOn(7, Precision::kFp32).value(), Precision::kFp32);
  const absl::Status refused = PrecisionOn(7, Precision::kBf16).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(refused.message(), "8.0")) << refused;
}

TEST(CudaDeviceTest, ALibrarysFailureIsTheDevicesWhereThatIsLost) {
  const absl::Status failed = LibraryFailure("a convolution: it failed");
  EXPECT_TRUE(absl::StartsWith(failed.message(), "a convolution: it failed")) << failed;
  const bool there = !ProbeCuda().gpus.empty();
  EXPECT_EQ(failed.code(), there ? absl::StatusCode::kInternal : absl::StatusCode::kUnavailable) << failed;
  EXPECT_EQ(IsDeviceFailure(failed), !there);
}

TEST(CudaDeviceTest, ANumberBeyondTheGpusIsABadArgument) {
  CudaProbe probe;
  probe.error = "no NVIDIA driver is loaded";
  EXPECT_EQ(CheckGpu(probe, 0), absl::UnavailableError(probe.error));
  EXPECT_EQ(CheckGpu(probe, 7), absl::UnavailableError(probe.error));
  probe = {.gpus = {{.name = "one"}, {.name = "another"}}};
  EXPECT_EQ(CheckGpu(probe, 1), absl::OkStatus());
  const absl::Status beyond = CheckGpu(probe, 2);
  EXPECT_EQ(beyond.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(beyond.message(), "no cuda:2, the driver shows 2 GPUs")) << beyond;
}

}  // namespace
}  // namespace foreshard::kernels::cuda
#endif
