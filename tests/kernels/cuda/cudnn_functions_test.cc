// The libraries have all that is asked of them, also on a machine without a GPU.
#if !defined(FORESHARD_CUDA_EMULATION)
#include "kernels/cuda/libraries/cudnn_functions.h"

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace foreshard::kernels::cuda {
namespace {

// Only where the library is not there at all.
bool IsMissing(const absl::Status& status) {
  return absl::StrContains(status.message(), "cannot be loaded");
}

TEST(CudnnFunctionsTest, CudnnHasThemAll) {
  const auto functions = LoadCudnn();
  if (IsMissing(functions.status())) GTEST_SKIP() << functions.status().message();
  ASSERT_TRUE(functions.ok()) << functions.status();
  EXPECT_EQ(functions->cudnnGetVersion() / 10000, static_cast<size_t>(CUDNN_MAJOR));
}

TEST(CudnnFunctionsTest, CublasLtHasThemAll) {
  const auto functions = LoadCublasLt();
  if (IsMissing(functions.status())) GTEST_SKIP() << functions.status().message();
  ASSERT_TRUE(functions.ok()) << functions.status();
  EXPECT_GT(functions->cublasLtGetVersion(), 0u);
}

}  // namespace
}  // namespace foreshard::kernels::cuda
#endif
