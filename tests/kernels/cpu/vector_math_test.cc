#include "kernels/cpu/vector_math.h"

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "common/core/random.h"
#include "gtest/gtest.h"
#include "kernels/cpu/isa.h"

namespace foreshard::kernels {
namespace {

std::vector<float> Numbers(uint64_t seed, uint64_t n) {
  std::vector<float> values(n);
  for (uint64_t i = 0; i < n; ++i) {
    values[i] = static_cast<float>((RandomUniform(seed, 0, i) - 0.5) *
                                   std::pow(10.0, 6 * RandomUniform(seed, 1, i) - 3));
  }
  return values;
}

double LaneSum(const std::vector<double>& terms) {
  double lanes[8] = {};
  for (size_t i = 0; i < terms.size(); ++i) lanes[i % 8] += terms[i];
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

class VectorMathTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (GetParam() > BestIsa()) GTEST_SKIP() << "this machine has no " << IsaName(GetParam());
    forced_.emplace(GetParam());
  }

 private:
  std::optional<ScopedIsa> forced_;
};

INSTANTIATE_TEST_SUITE_P(Isas, VectorMathTest,
                         testing::Values(Isa::kBaseline, Isa::kAvx2, Isa::kAvx512),
                         [](const auto& info) { return IsaName(info.param); });

TEST_P(VectorMathTest, SumsAreThoseOfEightLanes) {
  for (uint64_t n = 0; n < 200; n += n < 40 ? 1 : 17) {
    const std::vector<float> a = Numbers(1, n);
    const std::vector<float> b = Numbers(2, n);
    std::vector<double> squares, differences;
    for (uint64_t i = 0; i < n; ++i) {
      squares.push_back(static_cast<double>(a[i]) * a[i]);
      const float difference = a[i] - b[i];
      differences.push_back(static_cast<double>(difference) * difference);
    }
    EXPECT_EQ(SumOfSquares(a.data(), n), LaneSum(squares)) << n;
    EXPECT_EQ(SumOfSquaredDifferences(a.data(), b.data(), n), LaneSum(differences)) << n;
  }
}

TEST_P(VectorMathTest, FiniteOrNot) {
  for (const uint64_t n : {0, 1, 7, 16, 33, 100, 5000}) {
    std::vector<float> values = Numbers(3, n);
    EXPECT_TRUE(AllFinite(values.data(), n)) << n;
    for (uint64_t at = 0; at < n; at += n > 100 ? 997 : 1) {
      const float kept = values[at];
      for (const float bad : {std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
        values[at] = bad;
        EXPECT_FALSE(AllFinite(values.data(), n)) << n << " at " << at;
      }
      values[at] = kept;
    }
    if (n > 0) {
      values[n - 1] = std::numeric_limits<float>::max();
      EXPECT_TRUE(AllFinite(values.data(), n)) << n;
      values[n - 1] = std::numeric_limits<float>::denorm_min();
      EXPECT_TRUE(AllFinite(values.data(), n)) << n;
    }
  }
}

TEST_P(VectorMathTest, ScaleAndAdd) {
  for (const uint64_t n : {0, 1, 3, 16, 65, 1000}) {
    const std::vector<float> a = Numbers(4, n);
    const std::vector<float> b = Numbers(5, n);
    std::vector<float> scaled = a;
    std::vector<float> sum = a;
    std::vector<float> doubled = a;
    Scale(scaled.data(), 0.3f, n);
    Add(sum.data(), b.data(), n);
    Add(doubled.data(), doubled.data(), n);
    for (uint64_t i = 0; i < n; ++i) {
      EXPECT_EQ(scaled[i], a[i] * 0.3f);
      EXPECT_EQ(sum[i], a[i] + b[i]);
      EXPECT_EQ(doubled[i], 2 * a[i]);
    }
  }
}

TEST_P(VectorMathTest, DenormalsAreKept) {
  std::vector<float> values(32, std::numeric_limits<float>::denorm_min());
  Scale(values.data(), 3, values.size());
  EXPECT_EQ(values[0], 3 * 0x1p-149f);
  Add(values.data(), values.data(), values.size());
  EXPECT_EQ(values[31], 6 * 0x1p-149f);
  EXPECT_EQ(SumOfSquares(values.data(), 1), 36 * 0x1p-298);
}

}  // namespace
}  // namespace foreshard::kernels
