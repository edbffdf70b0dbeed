#include "worker/evaluator.h"

#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/fake_shard.h"
#include "tests/worker/test_model.h"

namespace foreshard {
namespace {

constexpr uint32_t kInputs = 6;

class EvaluatorTest : public ::testing::Test {
 protected:
  EvaluatorTest() : model_(kInputs), train_(95, kInputs), test_(33, kInputs) {}

  Evaluator Make(uint32_t batches) {
    return Evaluator({.seed = 4, .batch_size = 10, .recalibration_batches = batches}, &model_,
                     &train_, &test_);
  }

  RegressionModel model_;
  RampDataset train_, test_;
};

TEST_F(EvaluatorTest, AveragesStatisticsOverTrainingBatches) {
  Evaluator evaluator = Make(1000);  // no more than there are
  std::vector<float> parameters(2 * kInputs, 9.0f);
  ASSERT_TRUE(evaluator.Recalibrate(parameters.data()).ok());
  Batch all;
  std::vector<uint32_t> indices(95);
  for (uint32_t k = 0; k < 95; ++k) indices[k] = k;
  EXPECT_TRUE(train_.Gather(indices, 0, &all).ok());
  for (uint32_t k = 0; k < kInputs; ++k) {
    double mean = 0;
    for (uint32_t e = 0; e < 95; ++e) mean += all.inputs[e * kInputs + k] / 95;
    EXPECT_NEAR(parameters[kInputs + k], mean, 1e-6);
    EXPECT_EQ(parameters[k], 9.0f);
  }
  // Without batches the statistics stay what they were.
  std::vector<float> untouched(2 * kInputs, 9.0f);
  ASSERT_TRUE(Make(0).Recalibrate(untouched.data()).ok());
  EXPECT_EQ(untouched, std::vector<float>(2 * kInputs, 9.0f));
}

TEST_F(EvaluatorTest, CountsLossAndHits) {
  Evaluator evaluator = Make(2);
  std::vector<float> parameters(2 * kInputs, 1.0f);  // output = the sum; label = its floor
  const auto all = evaluator.Evaluate(parameters.data(), 0);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->examples(), 33u);
  double loss = 0;
  int hits = 0;
  for (uint32_t e = 0; e < 33; ++e) {
    Batch one;
    EXPECT_TRUE(test_.Gather({e}, 0, &one).ok());
    float sum = 0;
    for (const float x : one.inputs) sum += x;
    const float difference = sum - std::floor(sum);
    loss += 0.5 * difference * difference;
    hits += difference < 0.5f;
  }
  EXPECT_NEAR(all->loss(), loss / 33, 1e-6);
  EXPECT_NEAR(all->accuracy(), hits / 33.0, 1e-9);
  EXPECT_GT(hits, 0);
  EXPECT_LT(hits, 33);
  EXPECT_EQ(evaluator.Evaluate(parameters.data(), 12)->examples(), 12u);
  EXPECT_EQ(evaluator.Evaluate(parameters.data(), 1000)->examples(), 33u);
}

class RunEvaluatorTest : public EvaluatorTest {
 protected:
  RunEvaluatorTest()
      : plan_(ShardPlan::Create(model_.schema(), {.shards = 1}).value()), server_(plan_, {}) {
    ParameterClientOptions options;
    options.servers = {server_.address()};
    options.schema = model_.schema();
    options.plan = plan_;
    options.rule = "dana_zero";
    options.connect_seconds = 20;
    auto worker = ParameterClient::Connect(options).value();
    std::vector<float> values(model_.schema().elements(), 1.0f);
    EXPECT_TRUE(worker->Initialise(values).ok());
    options.hello.set_reader(true);
    client_ = ParameterClient::Connect(options).value();
    run_.lead = server_.address();
    run_.connect_seconds = 20;
    run_.examples = 20;
  }

  ShardPlan plan_;
  FakeShard server_;
  std::unique_ptr<ParameterClient> client_;
  EvaluatorRun run_;
};

TEST_F(RunEvaluatorTest, EvaluatesTheNewestEpochAndTheEnd) {
  // After the first evaluation, while which epochs 2 to 4 went by: 4, the same
  // again, the end.
  server_.set_epochs_done(1, false);
  server_.SetReportScript({4, 4, 5});
  Evaluator evaluator = Make(2);
  const absl::Status status = RunEvaluator(run_, &evaluator, client_.get());
  ASSERT_TRUE(status.ok()) << status;
  const auto evaluations = server_.evaluations();
  ASSERT_EQ(evaluations.size(), 3u);
  EXPECT_EQ(evaluations[0].epoch(), 1u);
  EXPECT_EQ(evaluations[1].epoch(), 4u);
  EXPECT_EQ(evaluations[2].epoch(), 5u);
  for (int k = 0; k < 3; ++k) {
    EXPECT_EQ(evaluations[k].parameters(), "master");
    EXPECT_EQ(evaluations[k].final(), k == 2);
    EXPECT_EQ(evaluations[k].examples(), k == 2 ? 33u : 20u);
    EXPECT_GT(evaluations[k].accuracy(), 0);
  }
}

TEST_F(RunEvaluatorTest, EvaluatesBothKindsOfParametersWhereTheyDiffer) {
  run_.lookahead = true;
  server_.set_epochs_done(3, true);
  WorkerMetrics metrics("job", "dana_zero", "cpu");
  run_.metrics = &metrics;
  Evaluator evaluator = Make(2);
  ASSERT_TRUE(RunEvaluator(run_, &evaluator, client_.get()).ok());
  const auto evaluations = server_.evaluations();
  ASSERT_EQ(evaluations.size(), 2u);
  EXPECT_EQ(evaluations[0].parameters(), "master");
  EXPECT_EQ(evaluations[1].parameters(), "lookahead");
  EXPECT_TRUE(evaluations[1].final());
  EXPECT_EQ(metrics.eval_accuracy_lookahead->Value(), evaluations[1].accuracy());
  bool asked_master = false, asked_lookahead = false;
  for (const auto& request : server_.requests()) {
    if (request.header().kind() != v1::ExchangeHeader::READ) continue;
    EXPECT_EQ(request.header().incarnation(), 0u);
    (request.header().lookahead() ? asked_lookahead : asked_master) = true;
  }
  EXPECT_TRUE(asked_master && asked_lookahead);
}

TEST_F(RunEvaluatorTest, KeepsToItsInterval) {
  run_.interval_epochs = 3;
  server_.set_epochs_done(3, false);
  server_.SetReportScript({4, 5, 7, 8});
  Evaluator evaluator = Make(2);
  ASSERT_TRUE(RunEvaluator(run_, &evaluator, client_.get()).ok());
  std::vector<uint32_t> epochs;
  for (const auto& evaluation : server_.evaluations()) epochs.push_back(evaluation.epoch());
  EXPECT_EQ(epochs, (std::vector<uint32_t>{3, 7, 8}));
}

TEST_F(RunEvaluatorTest, StopsWhenAsked) {
  std::atomic<bool> stop{true};
  run_.stop = &stop;
  Evaluator evaluator = Make(2);
  EXPECT_EQ(RunEvaluator(run_, &evaluator, client_.get()).code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace foreshard
