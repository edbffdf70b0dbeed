// ParameterClient::Repair: what is said to servers where the learning rate jumps.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/fake_shard.h"
#include "worker/parameter_client.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kTrainable = 600;

// Two servers, trainable segments of up to 200; the rate falls from 0.1 to 0.01 at
// ticket 10.
class RepairTest : public ::testing::Test {
 protected:
  RepairTest()
      : schema_(Schema::Create({{"w", {600}, TensorKind::kTrainable, false},
                                {"mean", {8}, TensorKind::kStatistic, false}})
                    .value()),
        plan_(ShardPlan::Create(schema_, {.shards = 2, .segment_elements = 200, .block_elements = 50})
                  .value()) {}

  void Connect(FakeShard::Options server, const std::string& rule = "dana_slim",
               double connect_seconds = 20) {
    for (uint32_t shard = 0; shard < 2; ++shard) {
      server.shard = shard;
      servers_.push_back(std::make_unique<FakeShard>(plan_, server));
      options_.servers.push_back(servers_.back()->address());
    }
    options_.schema = schema_;
    options_.plan = plan_;
    options_.rule = rule;
    options_.half.momentum = 0.5f;
    options_.schedule = {.learning_rate = 0.1, .decay = Decay::kStep, .decay_epochs = {1},
                         .decay_factor = 0.1, .batches_per_epoch = 10};
    options_.hello.set_worker(2);
    options_.hello.set_incarnation(9);
    options_.connect_seconds = connect_seconds;
    options_.stop = &stop_;
    client_ = ParameterClient::Connect(options_).value();
    std::vector<float> first(schema_.elements(), 1.0f);
    ASSERT_TRUE(client_->Initialise(first).ok());
    ASSERT_TRUE(client_->Pull(Parameters::kAsSent).ok());
  }

  void Push(uint64_t ticket, float value) {
    std::vector<float> gradient(kTrainable, value);
    ASSERT_TRUE(client_->Push({.ticket = ticket, .gradient = gradient.data()}).ok());
    ASSERT_TRUE(client_->Finish().ok());
  }

  size_t TrainableSegments() const {
    return std::count_if(plan_.segments().begin(), plan_.segments().end(), [](const auto& segment) {
      return segment.kind == TensorKind::kTrainable;
    });
  }

  // All that was sent of one kind.
  std::vector<v1::ExchangeRequest> Sent(v1::ExchangeHeader::Kind kind) const {
    std::vector<v1::ExchangeRequest> sent;
    for (const auto& server : servers_) {
      for (const v1::ExchangeRequest& request : server->requests()) {
        if (request.header().kind() == kind) sent.push_back(request);
      }
    }
    return sent;
  }
  static float FirstValue(const v1::ExchangeRequest& request) {
    float value = 0;
    if (request.payload().size() >= sizeof value) {
      std::memcpy(&value, request.payload().data(), sizeof value);
    }
    return value;
  }

  const Schema schema_;
  const ShardPlan plan_;
  std::atomic<bool> stop_{false};
  std::vector<std::unique_ptr<FakeShard>> servers_;
  ParameterClientOptions options_;
  std::unique_ptr<ParameterClient> client_;
};

TEST_F(RepairTest, BringsTheMomentumOnceAndAsksUntilAllAreThere) {
  Connect({.pending_repairs = 2});
  Push(0, 1);
  Push(1, 1);
  ASSERT_TRUE(client_->Repair(9).ok());  // before the step
  EXPECT_TRUE(Sent(v1::ExchangeHeader::REPAIR).empty());
  ASSERT_TRUE(client_->Repair(17).ok());
  std::vector<v1::ExchangeRequest> sent = Sent(v1::ExchangeHeader::REPAIR);
  ASSERT_EQ(sent.size(), 3 * TrainableSegments());
  uint64_t with_payload = 0;
  for (const v1::ExchangeRequest& request : sent) {
    EXPECT_EQ(request.header().ticket(), 10u);
    EXPECT_EQ(request.header().codec(), 0u);
    if (request.payload().empty()) continue;
    ++with_payload;
    EXPECT_EQ(request.payload().size(),
              plan_.segments()[request.header().segment()].elements * sizeof(float));
    EXPECT_EQ(FirstValue(request), 1.5f);  // 0.5 * 1 + 1
  }
  EXPECT_EQ(with_payload, TrainableSegments());
  EXPECT_GT(client_->TakeWaitSeconds(), 0);
  // The step is behind it, and the push that follows needs no correction of its own.
  ASSERT_TRUE(client_->Repair(18).ok());
  EXPECT_EQ(Sent(v1::ExchangeHeader::REPAIR).size(), sent.size());
  Push(10, 1);
  EXPECT_EQ(FirstValue(Sent(v1::ExchangeHeader::PUSH).back()), 0.5f * (0.5f * 1.5f + 1) + 1);
}

TEST_F(RepairTest, ANewWorkerAsksWithoutMomentum) {
  Connect({.pending_repairs = 1});
  ASSERT_TRUE(client_->Repair(10).ok());
  const std::vector<v1::ExchangeRequest> sent = Sent(v1::ExchangeHeader::REPAIR);
  EXPECT_EQ(sent.size(), 2 * TrainableSegments());
  for (const v1::ExchangeRequest& request : sent) EXPECT_TRUE(request.payload().empty());
}

// The servers passed the step without it: its push was applied at the new rate, as the
// reply says, and the next one makes up for what it holds at the old one.
TEST_F(RepairTest, WhatWasPushedBeyondTheStepIsLeftToTheNextPush) {
  Connect({});
  Push(0, 1);
  for (const auto& server : servers_) {
    server->SetReplyFault([](v1::ExchangeReply* reply) { reply->mutable_header()->set_clock(12); });
  }
  Push(1, 1);
  ASSERT_TRUE(client_->Repair(12).ok());
  EXPECT_TRUE(Sent(v1::ExchangeHeader::REPAIR).empty());
  Push(13, 1);
  const float v = 0.5f * 1.5f + 1;
  EXPECT_NEAR(FirstValue(Sent(v1::ExchangeHeader::PUSH).back()),
              0.5f * v + 1 + 0.5f * (0.01f - 0.1f) / 0.01f * 1.5f, 1e-5);
}

TEST_F(RepairTest, ALostAnswerIsAskedForWithTheSameBytes) {
  Connect({});
  Push(0, 1);
  int lost = 0;
  servers_[0]->SetFault([&lost](const v1::ExchangeHeader& header, bool applied) {
    if (applied && header.kind() == v1::ExchangeHeader::REPAIR && lost++ == 0) {
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the answer is lost");
    }
    return grpc::Status::OK;
  });
  ASSERT_TRUE(client_->Repair(10).ok());
  const std::vector<v1::ExchangeRequest> sent = Sent(v1::ExchangeHeader::REPAIR);
  EXPECT_EQ(sent.size(), TrainableSegments() + 1);
  for (const v1::ExchangeRequest& request : sent) EXPECT_EQ(FirstValue(request), 1.0f);
}

TEST_F(RepairTest, RulesWithoutMomentumAtTheWorkerHaveNothingToRepair) {
  Connect({}, "asgd");
  EXPECT_FALSE(RepairsSteps(options_));
  Push(0, 1);
  ASSERT_TRUE(client_->Repair(100).ok());
  EXPECT_TRUE(Sent(v1::ExchangeHeader::REPAIR).empty());
}

TEST_F(RepairTest, NamesWhoIsMissingWhenItGivesUp) {
  Connect({.pending_repairs = 1'000'000}, "dana_slim", 0.3);
  EXPECT_TRUE(RepairsSteps(options_));
  Push(0, 1);
  const absl::Status status = client_->Repair(10);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("momentum of workers 5"), HasSubstr("ticket 10"),
                    HasSubstr("timeouts.connect_seconds")));
}

TEST_F(RepairTest, AStopEndsTheWait) {
  Connect({.pending_repairs = 1'000'000});
  Push(0, 1);
  servers_[0]->SetFault([this](const v1::ExchangeHeader& header, bool) {
    if (header.kind() == v1::ExchangeHeader::REPAIR) stop_ = true;
    return grpc::Status::OK;
  });
  EXPECT_EQ(client_->Repair(10).code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace foreshard
