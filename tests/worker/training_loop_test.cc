#include "worker/training_loop.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/fake_shard.h"
#include "tests/worker/test_model.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kInputs = 6;

// One worker, one fake server, the regression model.
class TrainingLoopTest : public ::testing::Test {
 protected:
  TrainingLoopTest() : model_(kInputs), data_(100, kInputs) {}

  void Start(uint64_t tickets) {
    plan_ = ShardPlan::Create(model_.schema(), {.shards = 1}).value();
    server_ = std::make_unique<FakeShard>(plan_, FakeShard::Options{.tickets = tickets});
    lead_ = LeadClient::Register({.address = server_->address(), .stop = &stop_}).value();
    ParameterClientOptions options;
    options.servers = {server_->address()};
    options.schema = model_.schema();
    options.plan = plan_;
    options.rule = "asgd";
    options.hello.set_worker(2);
    options.hello.set_incarnation(1);
    options.stop = &stop_;
    options.connect_seconds = 20;
    options.acknowledged = [this](const PushFigures& push) {
      lead_->Completed(push.ticket);
      progress_.Acknowledged(push);
      if (after_push_) after_push_(push.ticket);
    };
    client_ = ParameterClient::Connect(options).value();
    model_.InitialValues(1, client_->parameters());
    first_.assign(client_->parameters(), client_->parameters() + kInputs);
    ASSERT_TRUE(client_->Initialise({client_->parameters(), model_.schema().elements()}).ok());
    ASSERT_TRUE(client_->Pull(Parameters::kAsSent).ok());
    computer_ = std::make_unique<GradientComputer>(GradientOptions{.seed = 3, .batch_size = 10},
                                                   &model_, &data_);
  }

  absl::Status Run(TrainingLoopOptions options = {}) {
    options.stop = &stop_;
    TrainingLoop loop(options, computer_.get(), client_.get(), lead_.get(), &progress_);
    return loop.Run();
  }

  RegressionModel model_;
  RampDataset data_;
  ShardPlan plan_;
  std::unique_ptr<FakeShard> server_;
  std::atomic<bool> stop_{false};
  Progress progress_{nullptr, ""};
  std::unique_ptr<LeadClient> lead_;
  std::function<void(uint64_t)> after_push_;
  std::unique_ptr<ParameterClient> client_;
  std::unique_ptr<GradientComputer> computer_;
  std::vector<float> first_;
};

TEST_F(TrainingLoopTest, TrainsOnEveryTicketAsOneProcessWould) {
  Start(40);
  const absl::Status status = Run();
  ASSERT_TRUE(status.ok()) << status;
  std::vector<uint64_t> completed = server_->completed();
  std::sort(completed.begin(), completed.end());
  std::vector<uint64_t> all(40);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(completed, all);

  // The same by hand: plain SGD over the same batches.
  RegressionModel model(kInputs);
  GradientComputer computer({.seed = 3, .batch_size = 10}, &model, &data_);
  std::vector<float> theta = first_;
  theta.resize(2 * kInputs);
  OpenGate gate;
  double loss = 0;
  for (uint64_t ticket = 0; ticket < 40; ++ticket) {
    const auto step = computer.Compute(ticket, theta.data(), gate);
    ASSERT_TRUE(step.ok());
    loss = ticket == 0 ? step->loss : loss + 0.05 * (step->loss - loss);
    for (uint32_t k = 0; k < kInputs; ++k) theta[k] -= 0.1f * computer.gradient()[k];
  }
  for (uint32_t k = 0; k < kInputs; ++k) EXPECT_EQ(client_->parameters()[k], theta[k]) << k;

  const v1::WorkerFigures figures = progress_.Figures(client_->traffic());
  EXPECT_EQ(figures.steps(), 40u);
  EXPECT_EQ(figures.examples(), 400u);
  EXPECT_EQ(figures.skipped_steps(), 0u);
  EXPECT_NEAR(figures.loss(), loss, 1e-5);
  EXPECT_EQ(figures.push_uncompressed_bytes(), 40 * kInputs * 4);
}

TEST_F(TrainingLoopTest, KeepsToATraceAndWritesDownWhatEachStepTook) {
  const std::string trace = ::testing::TempDir() + "training_loop_test.trace.csv";
  const std::string record = ::testing::TempDir() + "training_loop_test.record.csv";
  const BatchTrace pace = {{1}, {1}, {0.03, 0.01}};
  std::ofstream(trace) << PrintTrace(pace);
  auto times = BatchTimes::Open({.record = record, .pace = trace});
  ASSERT_TRUE(times.ok()) << times.status();
  ASSERT_TRUE((*times)->SetWorker(2).ok());
  Start(5);
  ASSERT_TRUE(Run({.slowdown = 1.5, .times = times->get()}).ok());
  times->reset();
  std::ifstream recorded(record);
  std::string line;
  std::getline(recorded, line);
  for (int step = 0; step < 5; ++step) {
    ASSERT_TRUE(std::getline(recorded, line)) << step;
    const std::vector<std::string> fields = absl::StrSplit(line, ',');
    ASSERT_EQ(fields.size(), 3u) << line;
    EXPECT_EQ(fields[0], "2");
    EXPECT_EQ(fields[1], absl::StrCat(step));
    EXPECT_GE(std::stod(fields[2]), pace[2][step % 2] * (1 - 1e-6));
  }
  EXPECT_FALSE(std::getline(recorded, line));
  std::remove(trace.c_str());
  std::remove(record.c_str());
}

TEST_F(TrainingLoopTest, AStopEndsAPause) {
  const std::string trace = ::testing::TempDir() + "training_loop_test.long.csv";
  std::ofstream(trace) << PrintTrace({{1e6}, {1e6}, {1e-6, 1e6}});
  auto times = BatchTimes::Open({.pace = trace});
  ASSERT_TRUE(times.ok()) << times.status();
  ASSERT_TRUE((*times)->SetWorker(2).ok());
  Start(100);
  after_push_ = [this](uint64_t) { stop_ = true; };
  EXPECT_EQ(Run({.times = times->get()}).code(), absl::StatusCode::kCancelled);
  std::remove(trace.c_str());
}

TEST_F(TrainingLoopTest, AStopFinishesWhatWasStarted) {
  Start(1'000'000);
  after_push_ = [this](uint64_t ticket) {
    if (ticket == 20) stop_ = true;
  };
  EXPECT_EQ(Run().code(), absl::StatusCode::kCancelled);
  lead_->Leave("interrupted");
  EXPECT_EQ(server_->completed().size(), server_->state(0).applied);
  EXPECT_GE(server_->state(0).applied, 21u);
}

TEST_F(TrainingLoopTest, AFencedWorkerEnds) {
  Start(1'000'000);
  EXPECT_EQ(Run({.fenced = [] { return absl::AbortedError("newer"); }}).code(),
            absl::StatusCode::kAborted);
  after_push_ = [this](uint64_t ticket) {
    if (ticket == 5) server_->Fence();
  };
  EXPECT_EQ(Run().code(), absl::StatusCode::kAborted);
}

TEST_F(TrainingLoopTest, AnErrorOfAServerEndsTheRun) {
  Start(1'000'000);
  server_->SetFault([pushes = 0](const v1::ExchangeHeader& header, bool applied) mutable {
    if (!applied && header.kind() == v1::ExchangeHeader::PUSH && ++pushes > 10) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "worker 2 is beyond the slots");
    }
    return grpc::Status::OK;
  });
  const absl::Status status = Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("beyond the slots"));
}

TEST_F(TrainingLoopTest, NotesStepsThatAreSkipped) {
  Start(5);
  // Whoever holds parameters that are not finite computes no finite gradient.
  std::fill(client_->parameters(), client_->parameters() + kInputs,
            std::numeric_limits<float>::infinity());
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(server_->state(0).skipped, 1u);
  EXPECT_EQ(server_->state(0).applied, 4u);
  EXPECT_EQ(progress_.Figures({}).skipped_steps(), 1u);
}

TEST(RoundOfTicket, CountsStepsOverEpochs) {
  // 10 batches an epoch, 3 workers: 3 rounds an epoch, one batch left out.
  EXPECT_EQ(RoundOfTicket(0, 10, 3), 0u);
  EXPECT_EQ(RoundOfTicket(2, 10, 3), 0u);
  EXPECT_EQ(RoundOfTicket(3, 10, 3), 1u);
  EXPECT_EQ(RoundOfTicket(8, 10, 3), 2u);
  EXPECT_EQ(RoundOfTicket(10, 10, 3), 3u);
  EXPECT_EQ(RoundOfTicket(12, 10, 3), 3u);
  EXPECT_EQ(RoundOfTicket(13, 10, 3), 4u);
  EXPECT_EQ(RoundOfTicket(25, 10, 3), 7u);
}

}  // namespace
}  // namespace foreshard
