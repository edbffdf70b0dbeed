#include "worker/gradient.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/worker/test_model.h"

namespace foreshard {
namespace {

constexpr uint32_t kInputs = 6;

GradientStep Step(const GradientOptions& options, uint64_t ticket, std::vector<float>* gradient,
                  std::vector<float>* statistics, uint64_t* largest = nullptr) {
  RegressionModel model(kInputs);
  const RampDataset data(100, kInputs);
  GradientComputer computer(options, &model, &data);
  std::vector<float> parameters(model.schema().elements());
  model.InitialValues(1, parameters.data());
  OpenGate gate;
  const auto step = computer.Compute(ticket, parameters.data(), gate);
  EXPECT_TRUE(step.ok()) << step.status();
  gradient->assign(computer.gradient(), computer.gradient() + kInputs);
  statistics->assign(computer.statistics(), computer.statistics() + kInputs);
  if (largest != nullptr) *largest = model.largest_batch();
  return *step;
}

class MicroBatches : public ::testing::TestWithParam<uint32_t> {};

TEST_P(MicroBatches, AddUpToTheBatch) {
  GradientOptions options{.seed = 3, .batch_size = 24};
  for (const uint64_t ticket : {0, 1, 4}) {  // ticket 4 has 4 examples only
    std::vector<float> whole, parts, whole_statistics, part_statistics;
    options.micro_batches = 1;
    const GradientStep one = Step(options, ticket, &whole, &whole_statistics);
    options.micro_batches = GetParam();
    uint64_t largest = 0;
    const GradientStep many = Step(options, ticket, &parts, &part_statistics, &largest);
    EXPECT_EQ(one.examples, ticket == 4 ? 4u : 24u);
    EXPECT_EQ(many.examples, one.examples);
    EXPECT_EQ(many.correct, one.correct);
    EXPECT_NEAR(many.loss, one.loss, 1e-6);
    EXPECT_NEAR(many.norm, one.norm, 1e-6 * one.norm);
    EXPECT_LE(largest, (one.examples + GetParam() - 1) / GetParam());
    for (uint32_t k = 0; k < kInputs; ++k) {
      EXPECT_NEAR(parts[k], whole[k], 1e-6) << k;
      EXPECT_NEAR(part_statistics[k], whole_statistics[k], 1e-6) << k;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Some, MicroBatches, ::testing::Values(2, 3, 5, 24, 100));

TEST(Gradient, IsOfTheTicketsBatch) {
  std::vector<float> first, again, other, statistics;
  Step({.seed = 3, .batch_size = 10}, 2, &first, &statistics);
  Step({.seed = 3, .batch_size = 10}, 2, &again, &statistics);
  Step({.seed = 3, .batch_size = 10}, 3, &other, &statistics);
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
}

TEST(Gradient, IsClippedByItsGlobalNorm) {
  std::vector<float> free, clipped, statistics;
  const GradientStep before = Step({.seed = 3, .batch_size = 10}, 0, &free, &statistics);
  const GradientStep after =
      Step({.seed = 3, .batch_size = 10, .clip_norm = before.norm / 4}, 0, &clipped, &statistics);
  EXPECT_DOUBLE_EQ(after.norm, before.norm);
  for (uint32_t k = 0; k < kInputs; ++k) EXPECT_NEAR(clipped[k], free[k] / 4, 1e-6);
  Step({.seed = 3, .batch_size = 10, .clip_norm = before.norm * 4}, 0, &clipped, &statistics);
  EXPECT_EQ(clipped, free);
}

TEST(Gradient, ClippingSeesTheWholeVector) {
  std::vector<float> long_vector(40'000, 1.0f);
  EXPECT_DOUBLE_EQ(ClipGlobalNorm(absl::MakeSpan(long_vector), 2.0), 200.0);
  EXPECT_FLOAT_EQ(long_vector.front(), 0.01f);
  EXPECT_FLOAT_EQ(long_vector.back(), 0.01f);
  // Squares that overflow fp32 are no infinity.
  std::vector<float> large(3, std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isfinite(ClipGlobalNorm(absl::MakeSpan(large), std::nullopt)));
  EXPECT_EQ(ClipGlobalNorm(absl::Span<float>(), 1.0), 0.0);
}

class BadModel : public RegressionModel {
 public:
  BadModel(float gradient, float statistic)
      : RegressionModel(kInputs), gradient_(gradient), statistic_(statistic) {}
  absl::StatusOr<StepResult> ForwardBackward(const Batch& batch, const float* vector,
                                             ParameterGate& gate, float weight, bool accumulate,
                                             float* gradient, float* statistics) override {
    auto result = RegressionModel::ForwardBackward(batch, vector, gate, weight, accumulate,
                                                   gradient, statistics);
    gradient[3] += gradient_;
    statistics[2] += statistic_;
    return result;
  }

 private:
  float gradient_, statistic_;
};

TEST(Gradient, SaysWhenAValueIsNotFinite) {
  const RampDataset data(100, kInputs);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const auto& [gradient, statistic, finite] :
       std::vector<std::tuple<float, float, bool>>{
           {0, 0, true}, {nan, 0, false}, {-infinity, 0, false}, {0, nan, false},
           {0, infinity, false}}) {
    BadModel model(gradient, statistic);
    GradientComputer computer({.batch_size = 10, .clip_norm = 0.1}, &model, &data);
    std::vector<float> parameters(model.schema().elements(), 0.5f);
    OpenGate gate;
    const auto step = computer.Compute(0, parameters.data(), gate);
    ASSERT_TRUE(step.ok());
    EXPECT_EQ(step->finite, finite) << gradient << " " << statistic;
  }
}

class ShutGate : public ParameterGate {
 public:
  absl::Status WaitFor(uint64_t, uint64_t) override { return absl::UnavailableError("gone"); }
};

TEST(Gradient, PassesOnTheGatesError) {
  RegressionModel model(kInputs);
  const RampDataset data(100, kInputs);
  GradientComputer computer({.batch_size = 10}, &model, &data);
  std::vector<float> parameters(model.schema().elements());
  ShutGate gate;
  EXPECT_EQ(computer.Compute(0, parameters.data(), gate).status().message(), "gone");
}

}  // namespace
}  // namespace foreshard
