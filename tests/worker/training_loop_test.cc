#include "worker/training_loop.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
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

  void Start(uint64_t tickets, bool hold_tickets = false) {
    Start(FakeShard::Options{.tickets = tickets, .hold_tickets = hold_tickets});
  }
  void Start(const FakeShard::Options& server) {
    plan_ = ShardPlan::Create(model_.schema(), {.shards = 1}).value();
    server_ = std::make_unique<FakeShard>(plan_, server);
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
      lead_->Completed(push.ticket, push.earlier);
      progress_.Acknowledged(push);
      if (after_push_) after_push_(push.ticket);
    };
    client_ = ParameterClient::Connect(options).value();
    model_.InitialValues(1, client_->parameters());
    first_.assign(client_->parameters(), client_->parameters() + kInputs);
    ASSERT_TRUE(client_->Initialise({client_->parameters(), model_.schema().elements()}).ok());
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

// Elastic averaging by hand, alone with the center: three exchanges of seven steps, and
// one of what is left when the lead has nothing more to deal.
TEST_F(TrainingLoopTest, ElasticStepsOnEveryTicketAndLeavesNoneBehind) {
  Start({.eta = -1, .tickets = 25});
  ElasticOptions elastic;
  elastic.local.momentum = 0.9f;
  elastic.elasticity = 0.25f;
  elastic.local_steps = 7;
  elastic.schedule = {.learning_rate = 0.1, .batches_per_epoch = 10};
  ElasticSteps use(elastic, plan_, model_.schema(), client_.get());
  const absl::Status status = Run({.use = &use});
  ASSERT_TRUE(status.ok()) << status;
  lead_->Leave("finished");
  std::vector<uint64_t> completed = server_->completed();
  std::sort(completed.begin(), completed.end());
  std::vector<uint64_t> all(25);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(completed, all);
  EXPECT_EQ(server_->state(0).applied, 4u);

  RegressionModel model(kInputs);
  GradientComputer computer({.seed = 3, .batch_size = 10}, &model, &data_);
  std::vector<float> x = first_, at = first_, center = first_, v(kInputs);
  at.resize(2 * kInputs);
  OpenGate gate;
  for (uint64_t ticket = 0; ticket < 25; ++ticket) {
    for (uint32_t k = 0; k < kInputs; ++k) at[k] = x[k] - 0.1f * 0.9f * v[k];
    ASSERT_TRUE(computer.Compute(ticket, at.data(), gate).ok());
    for (uint32_t k = 0; k < kInputs; ++k) {
      v[k] = 0.9f * v[k] + computer.gradient()[k];
      x[k] -= 0.1f * v[k];
    }
    if (ticket % 7 != 6 && ticket != 24) continue;
    for (uint32_t k = 0; k < kInputs; ++k) {
      const float e = 0.25f * (x[k] - center[k]);
      center[k] += e;
      x[k] -= e;
    }
  }
  for (uint32_t k = 0; k < kInputs; ++k) {
    EXPECT_EQ(server_->state(0).values[k], center[k]) << k;
  }
  EXPECT_EQ(progress_.Figures({}).steps(), 25u);
}

// Asked to stop, a worker leaves the center what it has.
TEST_F(TrainingLoopTest, AStopExchangesWhatIsLeft) {
  Start({.eta = -1, .tickets = 1'000'000});
  ElasticOptions elastic;
  elastic.local_steps = 1000;
  elastic.schedule = {.learning_rate = 0.1, .batches_per_epoch = 10};
  ElasticSteps use(elastic, plan_, model_.schema(), client_.get());
  int steps = 0;
  EXPECT_EQ(Run({.use = &use,
                 .fenced =
                     [&] {
                       if (++steps == 10) stop_ = true;
                       return absl::OkStatus();
                     }})
                .code(),
            absl::StatusCode::kCancelled);
  lead_->Leave("interrupted");
  EXPECT_EQ(server_->state(0).applied, 1u);
  EXPECT_EQ(server_->completed().size(), progress_.Figures({}).steps());
  EXPECT_GE(server_->completed().size(), 9u);
}

TEST_F(TrainingLoopTest, KeepsToATraceAndWritesDownWhatEachStepTook) {
  const std::string trace = ::testing::TempDir() + std::to_string(getpid()) + ".training_loop_test.trace.csv";
  const std::string record = ::testing::TempDir() + std::to_string(getpid()) + ".training_loop_test.record.csv";
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
  const std::string trace = ::testing::TempDir() + std::to_string(getpid()) + ".training_loop_test.long.csv";
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
  int steps = 0;
  const auto before_step = [&] {
    if (++steps != 2) return absl::OkStatus();
    const absl::Status finished = client_->Finish();
    std::fill(client_->parameters(), client_->parameters() + kInputs,
              std::numeric_limits<float>::infinity());
    return finished;
  };
  ASSERT_TRUE(Run({.fenced = before_step}).ok());
  EXPECT_EQ(server_->state(0).skipped, 1u);
  EXPECT_EQ(server_->state(0).applied, 4u);
  EXPECT_EQ(progress_.Figures({}).skipped_steps(), 1u);
}

// Reads of the first segment so far.
int Reads(const FakeShard& server) {
  int reads = 0;
  for (const v1::ExchangeRequest& request : server.requests()) {
    reads += request.header().kind() == v1::ExchangeHeader::READ && request.header().segment() == 0;
  }
  return reads;
}

TEST_F(TrainingLoopTest, FetchesNoParametersBeforeItsFirstTicketComes) {
  Start(3, true);
  int reads_before = -1;
  std::thread release([&] {
    while (server_->waits() < 3) absl::SleepFor(absl::Milliseconds(1));
    reads_before = Reads(*server_);
    server_->HoldTicketsBack(false);
  });
  ASSERT_TRUE(Run().ok());
  release.join();
  EXPECT_EQ(reads_before, 0);
  EXPECT_EQ(Reads(*server_), 1);
}

TEST_F(TrainingLoopTest, FetchesNewParametersForATicketThatWasWaitedFor) {
  Start(1000);
  std::thread release;
  uint64_t held_back_at = 0;
  after_push_ = [&](uint64_t ticket) {
    if (ticket != 20) return;
    server_->HoldTicketsBack(true);
    release = std::thread([this] {
      while (server_->tickets_out() > 0) absl::SleepFor(absl::Milliseconds(1));
      server_->HoldTicketsBack(false);
    });
  };
  const auto until_read = [&] {
    if (held_back_at == 0 && Reads(*server_) == 2) held_back_at = server_->state(0).applied;
    if (held_back_at > 0 && server_->state(0).applied > held_back_at + 20) stop_ = true;
    return absl::OkStatus();
  };
  EXPECT_EQ(Run({.fenced = until_read}).code(), absl::StatusCode::kCancelled);
  release.join();
  EXPECT_EQ(Reads(*server_), 2);
  EXPECT_GE(held_back_at, 20u);
}

// A server of rounds as a worker sees it that was given up for lost: round `late_round` is open
// for long and not its any more.
class LateClient final : public ParameterClient {
 public:
  LateClient(uint32_t elements, uint64_t late_round) : late_round_(late_round), parameters_(elements, 0.5f) {}

  absl::Status Push(const StepGradient& step) override {
    if (step.round > open_) {
      return absl::FailedPreconditionError(
          absl::StrCat("is at round ", step.round, "; round ", open_, " is still open"));
    }
    late_ = step.round == late_round_;
    if (!late_) ++open_;
    pushed.push_back(step.round);
    gradients.emplace_back(step.gradient, step.gradient + kInputs);
    if (after_push) after_push(step.ticket);
    return absl::OkStatus();
  }
  absl::StatusOr<Entered> EnterRound(uint64_t round) override {
    entered.push_back(round);
    late_ = false;
    const bool renewed = round > open_;
    open_ = std::max(open_, round);
    // What the others have come to.
    if (renewed) std::fill(parameters_.begin(), parameters_.end(), kLater);
    return Entered{.round = open_, .renewed = renewed};
  }
  bool late() const override { return late_; }
  float* parameters() override { return parameters_.data(); }
  absl::Span<const float> error() const override { return error_; }

  bool keeps_error() const override { return true; }

  absl::Status Prepare(const StepGradient&, std::optional<double>) override { return absl::OkStatus(); }
  absl::Status Initialise(absl::Span<const float>) override { return absl::OkStatus(); }
  absl::Status AwaitInitialised() override { return absl::OkStatus(); }
  void NoteStatistics(const float*) override {}
  absl::Status Pull(Parameters) override { return absl::OkStatus(); }
  absl::Status WaitFor(uint64_t, uint64_t) override { return absl::OkStatus(); }
  absl::Status Finish() override { return absl::OkStatus(); }
  absl::Status Repair(uint64_t) override { return absl::OkStatus(); }
  absl::Status ChangeView(const v1::View&) override { return absl::OkStatus(); }
  uint64_t clock(uint32_t) const override { return 0; }
  double TakeWaitSeconds() override { return 0; }
  double ErrorFeedbackRatio(const float*) const override { return 0; }
  Traffic traffic() const override { return {}; }
  std::shared_ptr<grpc::Channel> channel(uint32_t) const override { return nullptr; }

  static constexpr float kLater = 2.0f;
  std::vector<uint64_t> pushed, entered;
  std::vector<std::vector<float>> gradients;
  std::function<void(uint64_t)> after_push;

 private:
  const uint64_t late_round_;
  uint64_t open_ = 0;
  bool late_ = false;
  std::vector<float> parameters_;
  const std::vector<float> error_ = std::vector<float>(kInputs);
};

// It waits for the end of that round, and computes at what it is then given.
TEST_F(TrainingLoopTest, WhoWasLateForARoundThatIsStillOpenWaitsForItsEnd) {
  Start({.tickets = 6, .rounds = true});
  LateClient client(2 * kInputs, 3);
  TrainingLoop loop({.views = true, .stop = &stop_}, computer_.get(), &client, lead_.get(), &progress_);
  client.after_push = [this](uint64_t ticket) { lead_->Completed(ticket); };
  const absl::Status status = loop.Run();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(client.pushed, (std::vector<uint64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(client.entered, (std::vector<uint64_t>{0, 4}));
  const std::vector<float> later(2 * kInputs, LateClient::kLater);
  OpenGate gate;
  ASSERT_TRUE(computer_->Compute(4, later.data(), gate).ok());
  EXPECT_EQ(client.gradients[4], std::vector<float>(computer_->gradient(), computer_->gradient() + kInputs));
}

// The same where it is to hand in what it has kept back.
TEST_F(TrainingLoopTest, WhoWasLateForARoundThatIsStillOpenFoldsInTheNextOne) {
  Start({.tickets = 6, .rounds = true});
  LateClient client(2 * kInputs, 3);
  client.after_push = [this](uint64_t ticket) { stop_ = ticket == 3; };
  TrainingLoop loop({.views = true, .stop = &stop_}, computer_.get(), &client, lead_.get(), &progress_);
  const absl::Status status = loop.Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_EQ(client.pushed, (std::vector<uint64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(client.entered, (std::vector<uint64_t>{0, 4}));
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
