#include "kernels/cuda/gradient_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/vector_math.h"
#include "tests/kernels/cuda/on_device.h"
#include "tests/kernels/numbers.h"

namespace foreshard::kernels::cuda {
namespace {

using CudaGradientNormTest = OnDevice;

constexpr uint64_t kPiece = 1 << 14;

double NormOnCpu(const std::vector<float>& values) {
  double squares = 0;
  for (uint64_t at = 0; at < values.size(); at += kPiece) {
    squares += SumOfSquares(values.data() + at, std::min<uint64_t>(kPiece, values.size() - at));
  }
  return std::sqrt(squares);
}

struct Result {
  GradientNorm norm;
  std::vector<float> gradient;
};

Result NormOf(const std::vector<float>& gradient, const std::vector<float>& statistics,
              double clip_norm, uint64_t shift = 0) {
  const auto device_gradient = Upload(gradient, shift),
             device_statistics = Upload(statistics, shift);
  const auto partial = Upload(std::vector<double>(GradientNormPartials(gradient.size())));
  const auto result =
      Upload(std::vector<GradientNorm>{{.norm = -1, .factor = -1, .not_finite = 7}});
  const GradientNormArguments arguments = {.gradient = device_gradient.data(),
                                           .elements = gradient.size(),
                                           .statistics = device_statistics.data(),
                                           .statistic_elements = statistics.size(),
                                           .clip_norm = clip_norm};
  EXPECT_EQ(GradientNormOnDevice(arguments, partial.data(), result.data(), nullptr),
            absl::OkStatus());
  return {result.Download()[0], device_gradient.Download()};
}

TEST_F(CudaGradientNormTest, IsTheCpusToTheBit) {
  uint64_t turn = 0;
  for (const uint64_t n : std::vector<uint64_t>{1, 7, 8, 9, 4097, kPiece, kPiece + 1,
                                                5 * kPiece + 13, 33 * kPiece + 1}) {
    const ThreadOrder scoped(turn++ % kOrders);
    std::vector<float> gradient = Numbers(n, n);
    const double norm = NormOnCpu(gradient);
    Result result = NormOf(gradient, {}, 0, n % 2);
    EXPECT_EQ(result.norm.norm, norm) << n;
    EXPECT_EQ(result.norm.factor, 1) << n;
    EXPECT_EQ(result.norm.not_finite, 0u) << n;
    EXPECT_EQ(Bits(result.gradient), Bits(gradient)) << n;
    // Clipped to half of it, and not clipped by a limit above it.
    result = NormOf(gradient, {}, 2 * norm, n % 3);
    EXPECT_EQ(Bits(result.gradient), Bits(gradient)) << n;
    result = NormOf(gradient, {}, norm / 2, n % 3);
    kernels::Scale(gradient.data(), static_cast<float>(norm / 2 / norm), n);
    EXPECT_EQ(result.norm.norm, norm) << n;
    EXPECT_EQ(Bits(result.gradient), Bits(gradient)) << n;
  }
}

TEST_F(CudaGradientNormTest, WhatIsNotFiniteIsFound) {
  constexpr uint64_t kElements = 2 * kPiece + 5;
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const uint64_t at : {uint64_t{0}, kPiece, kElements - 1}) {
      const ThreadOrder scoped(at % kOrders);
      std::vector<float> gradient = Numbers(1, kElements);
      gradient[at] = bad;
      const Result result = NormOf(gradient, {}, 0.1);
      EXPECT_EQ(result.norm.not_finite, 1u) << at;
      EXPECT_EQ(Bits(result.gradient), Bits(gradient)) << at;  // nothing to clip by
    }
    std::vector<float> statistics = Numbers(2, 9000);
    EXPECT_EQ(NormOf(Numbers(1, 10), statistics, 0).norm.not_finite, 0u);
    for (const uint64_t at : {0, 4096, 8999}) {
      std::vector<float> damaged = statistics;
      damaged[at] = bad;
      EXPECT_EQ(NormOf(Numbers(1, 10), damaged, 0).norm.not_finite, 1u) << at;
    }
  }
}

TEST_F(CudaGradientNormTest, OfNothingIsZero) {
  const Result result = NormOf({}, {}, 1);
  EXPECT_EQ(result.norm.norm, 0);
  EXPECT_EQ(result.norm.factor, 1);
  EXPECT_EQ(result.norm.not_finite, 0u);
}

TEST_F(CudaGradientNormTest, LargeAndSmallValues) {
  for (const float scale : {std::numeric_limits<float>::max(), 0x1p-149f}) {
    std::vector<float> gradient(5000, scale);
    gradient[17] = -scale;
    EXPECT_EQ(NormOf(gradient, {}, 0).norm.norm, NormOnCpu(gradient));
  }
}

}  // namespace
}  // namespace foreshard::kernels::cuda
