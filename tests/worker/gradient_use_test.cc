#include "worker/gradient_use.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/fake_shard.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Kinds = std::vector<v1::ExchangeHeader::Kind>;

// One worker of elastic averaging and a server that adds what is pushed to the center.
class ElasticStepsTest : public ::testing::Test {
 protected:
  ElasticStepsTest()
      : schema_(Schema::Create({{"w", {3}, TensorKind::kTrainable, false},
                                {"mean", {2}, TensorKind::kStatistic, false}})
                    .value()),
        plan_(ShardPlan::Create(schema_, {.shards = 1}).value()) {}

  void Start(bool synchronous, uint64_t synchronous_steps = 0) {
    server_ = std::make_unique<FakeShard>(
        plan_, FakeShard::Options{.eta = -1, .synchronous = synchronous});
    ParameterClientOptions options;
    options.servers = {server_->address()};
    options.schema = schema_;
    options.plan = plan_;
    options.rule = "easgd";
    options.synchronous = synchronous;
    options.statistics_interval_steps = 2;
    options.hello.set_worker(2);
    options.hello.set_incarnation(1);
    options.connect_seconds = 20;
    options.acknowledged = [this](const PushFigures& push) {
      std::vector<uint64_t> tickets = push.earlier;
      tickets.push_back(push.ticket);
      absl::MutexLock lock(&mutex_);
      acknowledged_.push_back(tickets);
    };
    client_ = ParameterClient::Connect(options).value();
    const std::vector<float> first = {4, 4, 4, 0, 0};
    ASSERT_TRUE(client_->Initialise(first).ok());
    ElasticOptions elastic;
    elastic.elasticity = 0.5f;
    elastic.local_steps = 2;
    elastic.schedule = {.learning_rate = 1, .batches_per_epoch = 1000};
    elastic.synchronous_steps = synchronous_steps;
    use_ = std::make_unique<ElasticSteps>(elastic, plan_, schema_, client_.get());
  }

  absl::Status Take(uint64_t ticket, float gradient, bool finite = true, uint64_t round = 0) {
    gradient_.assign(3, gradient);
    if (const auto at = use_->PlaceOf({.number = ticket}); !at.ok()) return at.status();
    if (absl::Status ready = use_->Ready(); !ready.ok()) return ready;
    return use_->Take({.ticket = ticket,
                       .round = round,
                       .gradient = gradient_.data(),
                       .statistics = statistics_.data(),
                       .finite = finite});
  }
  float Own(uint64_t ticket) {
    const auto at = use_->PlaceOf({.number = ticket, .waited = true});
    EXPECT_TRUE(at.ok() && at->gate->WaitFor(0, 3).ok()) << at.status();
    return at->parameters[2];
  }
  float Center() const { return server_->state(0).values[2]; }
  Kinds Said() const {
    Kinds kinds;
    for (const auto& request : server_->requests()) {
      if (request.header().segment() == 0) kinds.push_back(request.header().kind());
    }
    return kinds;
  }
  std::vector<std::vector<uint64_t>> acknowledged() {
    absl::MutexLock lock(&mutex_);
    return acknowledged_;
  }

  const Schema schema_;
  const ShardPlan plan_;
  std::unique_ptr<FakeShard> server_;
  absl::Mutex mutex_;
  std::vector<std::vector<uint64_t>> acknowledged_;
  std::atomic<bool> let_through_{false};
  std::vector<float> gradient_, statistics_ = {1, 2};
  std::unique_ptr<GradientUse> use_;
  std::unique_ptr<ParameterClient> client_;
};

TEST_F(ElasticStepsTest, StepsAloneThenMovesWithTheCenter) {
  Start(false);
  EXPECT_EQ(Own(5), 4);
  ASSERT_TRUE(Take(5, 1).ok());
  EXPECT_EQ(Own(3), 3);
  EXPECT_THAT(Said(), ElementsAre(v1::ExchangeHeader::INITIALISE, v1::ExchangeHeader::READ));
  ASSERT_TRUE(Take(3, 1).ok());  // x = 2, center 4: e = -1
  EXPECT_EQ(Own(6), 3);
  ASSERT_TRUE(client_->Finish().ok());
  EXPECT_EQ(Center(), 3);
  EXPECT_THAT(Said(), ElementsAre(v1::ExchangeHeader::INITIALISE, v1::ExchangeHeader::READ,
                                  v1::ExchangeHeader::READ, v1::ExchangeHeader::PUSH));
  EXPECT_EQ(server_->requests().back().header().ticket(), 5u);  // the highest
  EXPECT_THAT(acknowledged(), ElementsAre(ElementsAre(3, 5)));
  // Both steps' statistics went with it.
  EXPECT_EQ(server_->state(1).values[1], 2);

  ASSERT_TRUE(Take(6, 0).ok());
  ASSERT_TRUE(use_->Flush().ok());  // one step; e = 0
  ASSERT_TRUE(use_->Flush().ok());  // nothing is left
  ASSERT_TRUE(client_->Finish().ok());
  EXPECT_EQ(Center(), 3);
  EXPECT_THAT(acknowledged(), ElementsAre(ElementsAre(3, 5), ElementsAre(6)));
  EXPECT_EQ(server_->state(0).applied, 2u);
}

// The next steps go on while the push is under way, and the next exchange waits for it.
TEST_F(ElasticStepsTest, ComputesWhileThePushIsUnderWay) {
  Start(false);
  ASSERT_TRUE(Take(0, 1).ok());
  ASSERT_TRUE(use_->Flush().ok());  // warms up: x = 3.5, center 3.5
  ASSERT_TRUE(client_->Finish().ok());
  ASSERT_TRUE(Take(1, 1).ok());
  server_->SetFault([&](const v1::ExchangeHeader& header, bool applied) {
    if (!applied && header.kind() == v1::ExchangeHeader::PUSH && header.segment() == 0 &&
        header.ticket() == 2 && !let_through_) {
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "not yet");
    }
    return grpc::Status::OK;
  });
  ASSERT_TRUE(Take(2, 1).ok());  // x = 1.5, e = -1
  EXPECT_EQ(Own(3), 2.5f);
  ASSERT_TRUE(Take(3, 1).ok());
  EXPECT_EQ(Own(4), 1.5f);
  EXPECT_EQ(Center(), 3.5f);  // still under way
  let_through_ = true;
  ASSERT_TRUE(Take(4, 1).ok());  // x = 0.5, center 2.5: e = -1
  ASSERT_TRUE(client_->Finish().ok());
  EXPECT_EQ(Center(), 1.5f);
  EXPECT_EQ(Own(5), 1.5f);
}

TEST_F(ElasticStepsTest, SkipsAStepWhoseGradientIsNotFinite) {
  Start(false);
  ASSERT_TRUE(Take(0, std::numeric_limits<float>::quiet_NaN(), false).ok());
  EXPECT_EQ(Own(1), 4);
  ASSERT_TRUE(Take(1, 2).ok());
  ASSERT_TRUE(client_->Finish().ok());
  EXPECT_EQ(Center(), 3);
  EXPECT_EQ(Own(2), 3);
  EXPECT_EQ(server_->state(0).skipped, 0u);
  EXPECT_EQ(server_->state(1).applied, 0u);  // one step's statistics are not enough
  EXPECT_THAT(acknowledged(), ElementsAre(ElementsAre(0, 1)));
}

TEST_F(ElasticStepsTest, PushesNothingWhenItRanAway) {
  Start(false);
  ASSERT_TRUE(Take(0, std::numeric_limits<float>::max()).ok());
  ASSERT_TRUE(Take(1, std::numeric_limits<float>::max()).ok());
  ASSERT_TRUE(client_->Finish().ok());
  EXPECT_EQ(Center(), 4);
  EXPECT_EQ(Own(2), 4);
  EXPECT_EQ(server_->state(0).skipped, 1u);
  EXPECT_EQ(server_->state(0).applied, 0u);
  EXPECT_THAT(acknowledged(), ElementsAre(ElementsAre(0, 1)));
}

TEST_F(ElasticStepsTest, RoundsNeedNoPullAndNoFlush) {
  Start(true, 3);
  ASSERT_TRUE(Take(0, 1, true, 0).ok());
  ASSERT_TRUE(use_->Flush().ok());
  EXPECT_THAT(acknowledged(), IsEmpty());
  ASSERT_TRUE(Take(2, 1, true, 1).ok());  // x = 2: e = -1
  ASSERT_TRUE(Take(4, 1, true, 2).ok());  // the last: x = 2, center 3: e = -0.5
  ASSERT_TRUE(client_->Finish().ok());
  EXPECT_EQ(Center(), 2.5f);
  EXPECT_THAT(acknowledged(), ElementsAre(ElementsAre(0, 2), ElementsAre(4)));
  std::vector<uint64_t> rounds;
  for (const auto& request : server_->requests()) {
    if (request.header().kind() == v1::ExchangeHeader::PUSH && request.header().segment() == 0) {
      rounds.push_back(request.header().round());
    }
  }
  EXPECT_THAT(rounds, ElementsAre(0, 1));
  const Kinds said = Said();
  EXPECT_EQ(std::count(said.begin(), said.end(), v1::ExchangeHeader::READ), 1);
}

}  // namespace
}  // namespace foreshard
