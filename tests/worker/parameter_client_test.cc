#include "worker/parameter_client.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/fake_shard.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kTrainable = 2500;
constexpr uint64_t kStatistics = 8;

Schema TestSchema() {
  return Schema::Create({{"a.weight", {40, 50}, TensorKind::kTrainable, true},
                         {"b.weight", {500}, TensorKind::kTrainable, false},
                         {"bn.mean", {8}, TensorKind::kStatistic, false}})
      .value();
}

// Two servers, segments of 256 elements, blocks of 64.
class ParameterClientTest : public ::testing::Test {
 protected:
  ParameterClientTest()
      : schema_(TestSchema()),
        plan_(ShardPlan::Create(schema_, {.shards = 2, .segment_elements = 256,
                                          .block_elements = 64})
                  .value()) {}

  void StartServers(FakeShard::Options options = {}) {
    for (uint32_t shard = 0; shard < 2; ++shard) {
      options.shard = shard;
      servers_.push_back(std::make_unique<FakeShard>(plan_, options));
    }
  }

  ParameterClientOptions Options() {
    ParameterClientOptions options;
    for (const auto& server : servers_) options.servers.push_back(server->address());
    options.schema = schema_;
    options.plan = plan_;
    options.hello.set_worker(2);
    options.hello.set_incarnation(9);
    options.rule = "asgd";
    options.statistics_interval_steps = 3;
    options.connect_seconds = 20;
    options.acknowledged = [this](const PushFigures& push) {
      absl::MutexLock lock(&mutex_);
      acknowledged_.push_back(push);
    };
    return options;
  }

  std::vector<float> FirstValues() const {
    std::vector<float> values(schema_.elements());
    for (size_t k = 0; k < values.size(); ++k) values[k] = 0.01f * static_cast<float>(k % 97);
    return values;
  }

  std::unique_ptr<ParameterClient> Connected(const ParameterClientOptions& options) {
    auto client = ParameterClient::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    EXPECT_TRUE((*client)->Initialise(FirstValues()).ok());
    EXPECT_TRUE((*client)->Pull(Parameters::kAsSent).ok());
    return *std::move(client);
  }

  // A gradient that differs from step to step.
  static std::vector<float> Gradient(uint64_t step) {
    std::vector<float> gradient(kTrainable);
    for (size_t k = 0; k < gradient.size(); ++k) {
      gradient[k] = std::sin(static_cast<float>(k * 7 + step * 13));
    }
    return gradient;
  }

  FakeShard& ServerOf(uint32_t segment) { return *servers_[plan_.segments()[segment].shard]; }
  uint32_t TrainableSegments() const {
    uint32_t count = 0;
    for (const auto& segment : plan_.segments()) count += segment.kind == TensorKind::kTrainable;
    return count;
  }
  std::vector<PushFigures> acknowledged() {
    absl::MutexLock lock(&mutex_);
    return acknowledged_;
  }

  const Schema schema_;
  const ShardPlan plan_;
  std::vector<std::unique_ptr<FakeShard>> servers_;
  absl::Mutex mutex_;
  std::vector<PushFigures> acknowledged_;
};

TEST_F(ParameterClientTest, BringsFirstValuesAndPullsThem) {
  StartServers();
  auto client = Connected(Options());
  const std::vector<float> first = FirstValues();
  for (size_t k = 0; k < first.size(); ++k) ASSERT_EQ(client->parameters()[k], first[k]) << k;
  // A second worker finds nothing missing, and does not overwrite.
  std::vector<float> other(schema_.elements(), 5.0f);
  auto second = ParameterClient::Connect(Options()).value();
  ASSERT_TRUE(second->Initialise(other).ok());
  ASSERT_TRUE(second->Pull(Parameters::kAsSent).ok());
  EXPECT_EQ(second->parameters()[3], first[3]);
}

TEST_F(ParameterClientTest, ExchangesGradientForParameters) {
  StartServers();
  auto client = Connected(Options());
  std::vector<float> expected = FirstValues();
  for (uint64_t step = 0; step < 20; ++step) {
    std::vector<float> gradient = Gradient(step);
    for (size_t k = 0; k < kTrainable; ++k) expected[k] -= 0.1f * gradient[k];
    ASSERT_TRUE(client->Push({.ticket = step, .gradient = gradient.data()}).ok());
    ASSERT_TRUE(client->Finish().ok());
    for (size_t k = 0; k < kTrainable; ++k) ASSERT_EQ(client->parameters()[k], expected[k]) << k;
  }
  const auto figures = acknowledged();
  ASSERT_EQ(figures.size(), 20u);
  for (uint64_t step = 0; step < 20; ++step) {
    EXPECT_EQ(figures[step].ticket, step);
    EXPECT_FALSE(figures[step].skipped);
    EXPECT_EQ(figures[step].max_lag_updates, 0u);
    EXPECT_DOUBLE_EQ(figures[step].gap, 2.0);
    EXPECT_DOUBLE_EQ(figures[step].surprise, 1.0);
  }
}

// A reply that is lost after the push was applied: the retry carries the same
// bytes and sequence, the server knows it, nothing is applied twice.
TEST_F(ParameterClientTest, AppliesEachPushOnceThoughRepliesAreLost) {
  StartServers();
  auto options = Options();
  options.push_codec = "one_bit";
  auto client = Connected(options);
  for (auto& server : servers_) {
    server->SetFault([requests = 0, replies = 0](const v1::ExchangeHeader& header,
                                                 bool applied) mutable {
      if (header.kind() != v1::ExchangeHeader::PUSH) return grpc::Status::OK;
      if (!applied && ++requests % 7 == 0) {
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "request lost");
      }
      if (applied && ++replies % 5 == 0) {
        return grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "reply lost");
      }
      return grpc::Status::OK;
    });
  }
  constexpr uint64_t kSteps = 30;
  std::vector<std::vector<float>> gradients;
  for (uint64_t step = 0; step < kSteps; ++step) {
    gradients.push_back(Gradient(step));
    ASSERT_TRUE(client->Push({.ticket = step, .gradient = gradients.back().data()}).ok());
    ASSERT_TRUE(client->Finish().ok());
  }
  uint64_t duplicates = 0;
  for (const SegmentPlan& segment : plan_.segments()) {
    if (segment.kind != TensorKind::kTrainable) continue;
    const FakeShard::State state = ServerOf(segment.id).state(segment.id);
    EXPECT_EQ(state.applied, kSteps) << segment.id;
    EXPECT_EQ(state.sequence, kSteps) << segment.id;
    duplicates += state.duplicates;
    for (uint64_t k = 0; k < segment.elements; ++k) {
      ASSERT_EQ(client->parameters()[segment.begin + k], state.values[k]);
    }
  }
  // An answer to a duplicate may be lost as well.
  uint64_t counted = 0;
  for (const PushFigures& push : acknowledged()) counted += push.duplicates;
  EXPECT_GT(counted, 0u);
  EXPECT_LE(counted, duplicates);
  // Every request of one sequence number of a segment carries the same bytes.
  std::map<std::pair<uint32_t, uint64_t>, std::string> first;
  for (auto& server : servers_) {
    for (const auto& request : server->requests()) {
      if (request.header().kind() != v1::ExchangeHeader::PUSH) continue;
      const auto [at, is_new] =
          first.try_emplace({request.header().segment(), request.header().sequence()},
                            request.payload());
      EXPECT_EQ(at->second, request.payload());
    }
  }
}

// What was pushed and what compression kept back add up to the gradients.
TEST_F(ParameterClientTest, ErrorFeedbackLosesNothing) {
  StartServers();
  auto options = Options();
  options.push_codec = "one_bit_mean";
  auto client = Connected(options);
  std::vector<double> sum(kTrainable);
  for (uint64_t step = 0; step < 10; ++step) {
    std::vector<float> gradient = Gradient(step);
    for (size_t k = 0; k < kTrainable; ++k) sum[k] += gradient[k];
    ASSERT_TRUE(client->Push({.ticket = step, .gradient = gradient.data()}).ok());
    ASSERT_TRUE(client->Finish().ok());
  }
  ASSERT_EQ(client->error().size(), kTrainable);
  const std::vector<float> first = FirstValues();
  double largest = 0;
  for (size_t k = 0; k < kTrainable; ++k) {
    const double pushed = (first[k] - client->parameters()[k]) / 0.1;
    EXPECT_NEAR(pushed + client->error()[k], sum[k], 1e-4) << k;
    largest = std::max(largest, std::abs(double{client->error()[k]}));
  }
  EXPECT_GT(largest, 0.1);
  EXPECT_GT(client->ErrorFeedbackRatio(Gradient(9).data()), 0.1);
  EXPECT_LT(client->traffic().push_bytes, client->traffic().push_uncompressed_bytes / 3);
}

TEST_F(ParameterClientTest, SkipsGradientsThatAreNotFinite) {
  StartServers();
  auto options = Options();
  options.push_codec = "one_bit";
  auto client = Connected(options);
  std::vector<float> gradient = Gradient(0);
  ASSERT_TRUE(client->Push({.ticket = 0, .gradient = gradient.data()}).ok());
  ASSERT_TRUE(client->Finish().ok());
  const std::vector<float> error(client->error().begin(), client->error().end());
  const std::vector<float> before(client->parameters(), client->parameters() + kTrainable);

  gradient = Gradient(1);
  gradient[700] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> statistics(kStatistics, 1.0f);
  ASSERT_TRUE(client->Push({.ticket = 1, .gradient = gradient.data(),
                            .statistics = statistics.data(), .finite = false})
                  .ok());
  ASSERT_TRUE(client->Finish().ok());
  EXPECT_EQ(error, std::vector<float>(client->error().begin(), client->error().end()));
  EXPECT_EQ(before, std::vector<float>(client->parameters(), client->parameters() + kTrainable));
  for (uint32_t id = 0; id < TrainableSegments(); ++id) {
    EXPECT_EQ(ServerOf(id).state(id).skipped, 1u) << id;
    EXPECT_EQ(ServerOf(id).state(id).applied, 1u) << id;
    EXPECT_EQ(ServerOf(id).state(id).clock, 1u) << id;
  }
  EXPECT_TRUE(acknowledged().back().skipped);
  // And training goes on.
  gradient = Gradient(2);
  ASSERT_TRUE(client->Push({.ticket = 2, .gradient = gradient.data()}).ok());
  ASSERT_TRUE(client->Finish().ok());
  EXPECT_EQ(ServerOf(0).state(0).applied, 2u);
}

TEST_F(ParameterClientTest, GateOpensSegmentBySegment) {
  StartServers();
  auto client = Connected(Options());
  std::set<uint32_t> later;
  for (uint32_t id = 1; id < plan_.segments().size(); ++id) later.insert(id);
  for (auto& server : servers_) server->Hold(later);
  std::vector<float> gradient = Gradient(0);
  ASSERT_TRUE(client->Push({.ticket = 0, .gradient = gradient.data()}).ok());
  // The first segment's reply comes through while all others are held back.
  const SegmentPlan& first = plan_.segments()[0];
  ASSERT_TRUE(client->WaitFor(first.begin, first.elements).ok());
  EXPECT_EQ(client->parameters()[0], FirstValues()[0] - 0.1f * Gradient(0)[0]);
  EXPECT_TRUE(acknowledged().empty());
  absl::Notification through;
  std::thread waiter([&] {
    EXPECT_TRUE(client->WaitFor(0, kTrainable).ok());
    EXPECT_EQ(acknowledged().size(), 1u);
    through.Notify();
  });
  EXPECT_FALSE(through.HasBeenNotified());
  for (auto& server : servers_) server->Hold({});
  waiter.join();
  ASSERT_TRUE(client->Finish().ok());
  EXPECT_GT(client->TakeWaitSeconds(), 0);
  EXPECT_EQ(client->TakeWaitSeconds(), 0);
}

TEST_F(ParameterClientTest, SendsInTheOrderOfTheForwardPassWithinTheWindow) {
  StartServers();
  auto options = Options();
  options.window = 1;
  auto client = Connected(options);
  std::vector<float> gradient = Gradient(0);
  ASSERT_TRUE(client->Push({.ticket = 0, .gradient = gradient.data()}).ok());
  ASSERT_TRUE(client->Finish().ok());
  for (auto& server : servers_) {
    std::vector<uint32_t> pushed;
    for (const auto& request : server->requests()) {
      if (request.header().kind() == v1::ExchangeHeader::PUSH) {
        pushed.push_back(request.header().segment());
      }
    }
    EXPECT_GT(pushed.size(), 2u);
    EXPECT_TRUE(std::is_sorted(pushed.begin(), pushed.end()));
    EXPECT_EQ(server->most_at_once(), 1);
  }
}

TEST_F(ParameterClientTest, KeepsToItsWindow) {
  StartServers();
  auto options = Options();
  options.window = 3;
  auto client = Connected(options);
  for (uint64_t step = 0; step < 20; ++step) {
    std::vector<float> gradient = Gradient(step);
    ASSERT_TRUE(client->Push({.ticket = step, .gradient = gradient.data()}).ok());
    ASSERT_TRUE(client->Finish().ok());
  }
  for (auto& server : servers_) EXPECT_LE(server->most_at_once(), 3);
}

TEST_F(ParameterClientTest, NamesTheServerThatIsMissing) {
  StartServers();
  auto options = Options();
  options.servers[1] = "127.0.0.1:1";
  options.connect_seconds = 0.3;
  const auto client = ParameterClient::Connect(options);
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(client.status().message(),
              AllOf(HasSubstr("server 1 at 127.0.0.1:1"), HasSubstr("timeouts.connect_seconds")));
}

TEST_F(ParameterClientTest, NamesTheServerThatDiesInTheMiddle) {
  StartServers();
  auto options = Options();
  options.connect_seconds = 0.5;
  auto client = Connected(options);
  servers_[1]->Stop();
  std::vector<float> gradient = Gradient(0);
  ASSERT_TRUE(client->Push({.ticket = 0, .gradient = gradient.data()}).ok());
  const absl::Status status = client->WaitFor(0, kTrainable);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("server 1 at " + options.servers[1]));
  EXPECT_EQ(client->Finish(), status);
  EXPECT_EQ(client->Push({.ticket = 1, .gradient = gradient.data()}), status);
}

TEST_F(ParameterClientTest, AStopEndsTheWaitForAServer) {
  StartServers();
  std::atomic<bool> stop{false};
  auto options = Options();
  options.stop = &stop;
  auto client = Connected(options);
  servers_[0]->Stop();
  std::vector<float> gradient = Gradient(0);
  ASSERT_TRUE(client->Push({.ticket = 0, .gradient = gradient.data()}).ok());
  stop = true;
  EXPECT_EQ(client->Finish().code(), absl::StatusCode::kCancelled);
}

TEST_F(ParameterClientTest, RefusesServersInTheWrongOrder) {
  StartServers();
  auto options = Options();
  std::swap(options.servers[0], options.servers[1]);
  const auto client = ParameterClient::Connect(options);
  EXPECT_EQ(client.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(client.status().message(), HasSubstr("serves shard 1, not 0"));
}

TEST_F(ParameterClientTest, ChecksItsOptions) {
  StartServers();
  auto options = Options();
  options.servers.pop_back();
  EXPECT_EQ(ParameterClient::Connect(options).status().code(), absl::StatusCode::kInvalidArgument);
  options = Options();
  options.push_codec = "morse";
  EXPECT_THAT(ParameterClient::Connect(options).status().message(), HasSubstr("'morse'"));
  options = Options();
  options.reply_codec = "one_bit";
  options.synchronous = true;
  EXPECT_THAT(ParameterClient::Connect(options).status().message(),
              HasSubstr("codec 'one_bit' carries differences to what one worker holds"));
  options = Options();
  options.window = 0;
  EXPECT_EQ(ParameterClient::Connect(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ParameterClientTest, AsksAgainWhenAReplyIsDamaged) {
  StartServers();
  auto client = Connected(Options());
  servers_[0]->SetReplyFault([count = 0](v1::ExchangeReply* reply) mutable {
    if (count++ % 4 != 0) return;
    std::string& payload = *reply->mutable_payload();
    if (!payload.empty()) payload[payload.size() / 2] ^= 0x10;
  });
  for (uint64_t step = 0; step < 4; ++step) {
    std::vector<float> gradient = Gradient(step);
    ASSERT_TRUE(client->Push({.ticket = step, .gradient = gradient.data()}).ok());
    ASSERT_TRUE(client->Finish().ok());
  }
  for (const SegmentPlan& segment : plan_.segments()) {
    if (segment.kind != TensorKind::kTrainable) continue;
    const FakeShard::State state = ServerOf(segment.id).state(segment.id);
    EXPECT_EQ(state.applied, 4u);
    for (uint64_t k = 0; k < segment.elements; ++k) {
      ASSERT_EQ(client->parameters()[segment.begin + k], state.values[k]);
    }
  }
}

TEST_F(ParameterClientTest, ComesAgainNoSoonerThanAServerWithoutRoomHasSaid) {
  constexpr absl::Duration kAsked = absl::Milliseconds(300);
  FakeShard::Options options;
  options.retry_after = kAsked;
  StartServers(options);
  auto client = Connected(Options());
  absl::Time refused, again;
  servers_[0]->SetFault([&](const v1::ExchangeHeader& header, bool applied) {
    if (applied || header.kind() != v1::ExchangeHeader::PUSH || header.segment() != 0) return grpc::Status::OK;
    if (refused == absl::Time()) {
      refused = absl::Now();
      return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "no room");
    }
    again = absl::Now();
    return grpc::Status::OK;
  });
  std::vector<float> gradient = Gradient(0);
  ASSERT_TRUE(client->Push({.ticket = 0, .gradient = gradient.data()}).ok());
  ASSERT_TRUE(client->Finish().ok());
  // A wait may be longer, never shorter.
  EXPECT_GE(again - refused, kAsked);
  EXPECT_EQ(servers_[0]->state(0).applied, 1u);
}

TEST_F(ParameterClientTest, SendsAgainWhatWasDamagedOnItsWay) {
  StartServers();
  auto client = Connected(Options());
  for (auto& server : servers_) {
    server->SetFault([left = 2](const v1::ExchangeHeader& header, bool applied) mutable {
      if (!applied && header.kind() == v1::ExchangeHeader::PUSH && left-- > 0) {
        return grpc::Status(grpc::StatusCode::DATA_LOSS, "wrong checksum");
      }
      return grpc::Status::OK;
    });
  }
  std::vector<float> gradient = Gradient(0);
  ASSERT_TRUE(client->Push({.ticket = 0, .gradient = gradient.data()}).ok());
  ASSERT_TRUE(client->Finish().ok());
  for (uint32_t id = 0; id < TrainableSegments(); ++id) {
    EXPECT_EQ(ServerOf(id).state(id).applied, 1u);
  }
}

TEST_F(ParameterClientTest, GivesUpOnRepliesThatStayDamaged) {
  StartServers();
  auto client = Connected(Options());
  for (const auto& damage : std::vector<std::function<void(v1::ExchangeReply*)>>{
           [](v1::ExchangeReply* reply) { (*reply->mutable_payload())[5] ^= 1; },
           [](v1::ExchangeReply* reply) { reply->mutable_payload()->pop_back(); },
           [](v1::ExchangeReply* reply) { reply->mutable_header()->set_codec(3); },
           [](v1::ExchangeReply* reply) { reply->mutable_header()->set_codec(99); }}) {
    auto victim = Connected(Options());
    servers_[1]->SetReplyFault(damage);
    const absl::Status status = victim->Pull(Parameters::kAsSent);
    servers_[1]->SetReplyFault(nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("server 1 at"), HasSubstr("is damaged")));
  }
}

TEST_F(ParameterClientTest, SaysThatAServerWasRestarted) {
  StartServers();
  auto client = Connected(Options());
  servers_[1]->set_incarnation(78);
  std::vector<float> gradient = Gradient(0);
  ASSERT_TRUE(client->Push({.ticket = 0, .gradient = gradient.data()}).ok());
  const absl::Status status = client->Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("server 1 at"), HasSubstr("started again")));
}

// One that was started again knows no worker and refuses; the reason it gives is
// not the one the user needs.
TEST_F(ParameterClientTest, SaysThatARefusingServerWasRestarted) {
  StartServers();
  auto client = Connected(Options());
  servers_[0]->set_incarnation(78);
  servers_[0]->SetFault([](const v1::ExchangeHeader&, bool) {
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "no values yet");
  });
  std::vector<float> gradient = Gradient(0);
  ASSERT_TRUE(client->Push({.ticket = 0, .gradient = gradient.data()}).ok());
  EXPECT_THAT(std::string(client->Finish().message()), HasSubstr("started again"));
}

TEST_F(ParameterClientTest, GoesOnWithAServerThatWasRestartedAndHasItsState) {
  StartServers();
  auto client = Connected(Options());
  for (uint64_t step = 0; step < 6; ++step) {
    if (step == 2) servers_[1]->Restart(78);
    if (step == 4) {
      // This one does not know the worker any more until it has said hello.
      servers_[0]->Restart(79);
      servers_[0]->SetFault([this, before = servers_[0]->hellos()](const v1::ExchangeHeader&, bool) {
        return servers_[0]->hellos() > before
                   ? grpc::Status::OK
                   : grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "say Hello first");
      });
    }
    std::vector<float> gradient = Gradient(step);
    ASSERT_TRUE(client->Push({.ticket = step, .gradient = gradient.data()}).ok());
    const absl::Status done = client->Finish();
    ASSERT_TRUE(done.ok()) << step << ": " << done;
  }
  EXPECT_GE(servers_[0]->hellos(), 2);
  EXPECT_GE(servers_[1]->hellos(), 2);
}

// It refuses, and does not say who it is: what others answer is read all the same.
TEST_F(ParameterClientTest, OneServerThatDoesNotSayHelloHoldsNobodyElseUp) {
  StartServers();
  auto client = Connected(Options());
  servers_[1]->HoldHellos(true);
  servers_[1]->Restart(78);
  // Replies of the other server come only when the refusal has been heard, and been asked about.
  std::set<uint32_t> held;
  for (const SegmentPlan& segment : plan_.segments()) {
    if (segment.shard == 0) held.insert(segment.id);
  }
  servers_[0]->Hold(held);
  std::atomic<bool> read{false}, read_before_hello{false};
  std::thread others([&] {
    while (servers_[1]->requests().empty()) absl::SleepFor(absl::Milliseconds(5));
    absl::SleepFor(absl::Milliseconds(300));
    servers_[0]->Hold({});
    for (int k = 0; k < 2000 && !read; ++k) absl::SleepFor(absl::Milliseconds(5));
    read_before_hello = read.load();
    servers_[1]->HoldHellos(false);
  });
  std::vector<float> gradient = Gradient(0);
  ASSERT_TRUE(client->Push({.ticket = 0, .gradient = gradient.data()}).ok());
  for (const SegmentPlan& segment : plan_.segments()) {
    if (segment.shard != 0 || segment.kind == TensorKind::kStatistic) continue;
    const absl::Status ready = client->WaitFor(segment.begin, segment.elements);
    EXPECT_TRUE(ready.ok()) << ready;
  }
  read = true;
  others.join();
  EXPECT_TRUE(read_before_hello);
  EXPECT_TRUE(client->Finish().ok());
}

// Without a journal: what it was told since is gone, and so is what was computed from it. The
// worker takes its parameters and goes on, also where replies are differences to what it holds.
TEST_F(ParameterClientTest, GoesOnWithAServerThatCameBackFromACheckpoint) {
  for (const char* reply_codec : {"none", "one_bit"}) {
    servers_.clear();
    StartServers();
    ParameterClientOptions options = Options();
    options.reply_codec = reply_codec;
    std::vector<SegmentAnswer> answers;
    options.answered = [&](const SegmentAnswer& answer) { answers.push_back(answer); };
    auto client = Connected(options);
    std::map<uint32_t, FakeShard::State> checkpoint;
    const auto push = [&](uint64_t step) {
      std::vector<float> gradient = Gradient(step);
      const absl::Status begun = client->Push({.ticket = step, .gradient = gradient.data()});
      const absl::Status done = begun.ok() ? client->Finish() : begun;
      EXPECT_TRUE(done.ok()) << step << ": " << done;
    };
    for (uint64_t step = 0; step < 7; ++step) {
      if (step == 2) checkpoint = servers_[1]->Checkpoint();
      if (step == 4) servers_[1]->GoOnFrom(checkpoint, 78);
      answers.clear();
      push(step);
      for (const SegmentPlan& segment : plan_.segments()) {
        if (segment.kind == TensorKind::kStatistic) continue;
        const FakeShard::State state = ServerOf(segment.id).state(segment.id);
        EXPECT_EQ(state.applied, segment.shard == 0 || step < 4 ? step + 1 : step - 2) << segment.id;
        const bool told = std::any_of(answers.begin(), answers.end(),
                                      [&](const auto& answer) { return answer.segment == segment.id; });
        EXPECT_EQ(told, segment.shard == 0 || step != 4) << segment.id;
        if (std::string(reply_codec) != "none" && step != 4) continue;
        if (std::string(reply_codec) != "none" && segment.shard == 0) continue;
        EXPECT_EQ(std::vector<float>(client->parameters() + segment.begin,
                                     client->parameters() + segment.begin + segment.elements),
                  state.values)
            << segment.id;
      }
    }
    EXPECT_GE(servers_[1]->hellos(), 2);
  }
}

// Nobody may be left who would close it.
TEST_F(ParameterClientTest, WhoWaitsForARoundHearsThatTheJobIsOver) {
  StartServers({.synchronous = true, .pending_fetches = 1'000'000'000});
  ParameterClientOptions options = Options();
  options.synchronous = true;
  options.views = true;
  std::atomic<int> asked{0};
  options.over = [&] { return ++asked > 20; };
  auto client = Connected(options);
  const auto entered = client->EnterRound(3);
  EXPECT_EQ(entered.status().code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(std::string(entered.status().message()), HasSubstr("the job ended before round"));
}

TEST_F(ParameterClientTest, RoundsDoNotGoOnWithAServerThatHasLostSomething) {
  StartServers({.synchronous = true});
  ParameterClientOptions options = Options();
  options.synchronous = true;
  auto client = Connected(options);
  const auto checkpoint = servers_[1]->Checkpoint();
  std::vector<float> gradient = Gradient(0);
  ASSERT_TRUE(client->Push({.ticket = 0, .gradient = gradient.data()}).ok());
  ASSERT_TRUE(client->Finish().ok());
  servers_[1]->GoOnFrom(checkpoint, 78);
  ASSERT_TRUE(client->Push({.ticket = 1, .round = 1, .gradient = gradient.data()}).ok());
  const absl::Status status = client->Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("server 1 at"), HasSubstr("start the workers again")));
}

TEST_F(ParameterClientTest, PassesOnWhyAServerRefuses) {
  StartServers();
  for (const auto& [given, expected] :
       std::vector<std::pair<grpc::StatusCode, absl::StatusCode>>{
           {grpc::StatusCode::ABORTED, absl::StatusCode::kAborted},
           {grpc::StatusCode::INVALID_ARGUMENT, absl::StatusCode::kInvalidArgument},
           {grpc::StatusCode::FAILED_PRECONDITION, absl::StatusCode::kFailedPrecondition}}) {
    servers_[0]->SetFault(nullptr);
    auto client = Connected(Options());
    servers_[0]->SetFault([code = given](const v1::ExchangeHeader&, bool) {
      return grpc::Status(code, "because");
    });
    const absl::Status status = client->Pull(Parameters::kAsSent);
    EXPECT_EQ(status.code(), expected);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("server 0 at"), HasSubstr("because")));
  }
}

TEST_F(ParameterClientTest, PushesTheAverageOfTheStatisticsEveryFewSteps) {
  StartServers();
  auto client = Connected(Options());  // every third step
  const uint32_t segment = TrainableSegments();
  ASSERT_EQ(plan_.segments()[segment].kind, TensorKind::kStatistic);
  for (uint64_t step = 0; step < 7; ++step) {
    std::vector<float> gradient = Gradient(step);
    std::vector<float> statistics(kStatistics);
    for (size_t k = 0; k < kStatistics; ++k) statistics[k] = static_cast<float>(step * 10 + k);
    ASSERT_TRUE(client->Push({.ticket = step, .gradient = gradient.data(),
                              .statistics = statistics.data()})
                    .ok());
    ASSERT_TRUE(client->Finish().ok());
    const FakeShard::State state = ServerOf(segment).state(segment);
    EXPECT_EQ(state.applied, (step + 1) / 3) << step;
    if (state.applied > 0) {
      // Mean of the steps of the last full interval.
      const auto last = static_cast<float>((state.applied * 3 - 2) * 10);
      for (size_t k = 0; k < kStatistics; ++k) {
        EXPECT_FLOAT_EQ(state.values[k], last + static_cast<float>(k));
      }
      EXPECT_EQ(client->parameters()[kTrainable], state.values[0]);
    }
  }
  EXPECT_GT(client->traffic().statistics_push_bytes, 0u);
}

// Local steps of elastic rules: noted one by one, also while a push is under way.
TEST_F(ParameterClientTest, StatisticsOfStepsBetweenPushesGoWithTheNext) {
  StartServers();
  auto client = Connected(Options());  // every third step
  const uint32_t segment = TrainableSegments();
  std::vector<float> gradient = Gradient(0), statistics(kStatistics);
  const auto note = [&](float value) {
    std::fill(statistics.begin(), statistics.end(), value);
    client->NoteStatistics(statistics.data());
  };
  for (const float value : {1.0f, 2.0f, 3.0f, 6.0f}) note(value);
  ServerOf(segment).Hold({segment});
  ASSERT_TRUE(client->Push({.ticket = 4, .gradient = gradient.data()}).ok());
  for (const float value : {9.0f, 9.0f}) note(value);
  ServerOf(segment).Hold({});
  ASSERT_TRUE(client->Finish().ok());
  EXPECT_EQ(ServerOf(segment).state(segment).applied, 1u);
  EXPECT_FLOAT_EQ(ServerOf(segment).state(segment).values[0], 3);
  ASSERT_TRUE(client->Push({.ticket = 6, .gradient = gradient.data()}).ok());
  ASSERT_TRUE(client->Finish().ok());
  EXPECT_EQ(ServerOf(segment).state(segment).applied, 1u);  // two are not enough
  note(3);
  ASSERT_TRUE(client->Push({.ticket = 7, .gradient = gradient.data(), .finite = false}).ok());
  ASSERT_TRUE(client->Push({.ticket = 8, .gradient = gradient.data()}).ok());
  ASSERT_TRUE(client->Finish().ok());
  EXPECT_EQ(ServerOf(segment).state(segment).applied, 2u);
  EXPECT_FLOAT_EQ(ServerOf(segment).state(segment).values[0], 7);
}

TEST_F(ParameterClientTest, APushTellsOfAllItsTicketsAndOfTheClock) {
  StartServers();
  auto client = Connected(Options());
  EXPECT_EQ(client->clock(0), 0u);
  std::vector<float> gradient = Gradient(0);
  ASSERT_TRUE(
      client->Push({.ticket = 9, .earlier = {4, 7}, .gradient = gradient.data()}).ok());
  ASSERT_TRUE(client->Finish().ok());
  ASSERT_EQ(acknowledged().size(), 1u);
  EXPECT_EQ(acknowledged()[0].ticket, 9u);
  EXPECT_THAT(acknowledged()[0].earlier, ::testing::ElementsAre(4, 7));
  for (uint32_t id = 0; id < TrainableSegments(); ++id) EXPECT_EQ(client->clock(id), 9u);
  ASSERT_TRUE(client->Push({.ticket = 10, .gradient = gradient.data()}).ok());
  ASSERT_TRUE(client->Finish().ok());
  EXPECT_THAT(acknowledged()[1].earlier, ::testing::IsEmpty());
}

TEST_F(ParameterClientTest, CountsWholeMessagesOfTrainableSegments) {
  StartServers();
  auto client = Connected(Options());
  const Traffic before = client->traffic();
  std::vector<float> gradient = Gradient(0);
  std::vector<float> statistics(kStatistics);
  ASSERT_TRUE(client->Push({.ticket = 0, .gradient = gradient.data(),
                            .statistics = statistics.data()})
                  .ok());
  ASSERT_TRUE(client->Finish().ok());
  uint64_t sent = 0;
  for (auto& server : servers_) {
    for (const auto& request : server->requests()) {
      if (request.header().kind() == v1::ExchangeHeader::PUSH) sent += request.ByteSizeLong();
    }
  }
  const Traffic after = client->traffic();
  EXPECT_EQ(after.push_bytes - before.push_bytes, sent);
  EXPECT_EQ(after.push_uncompressed_bytes - before.push_uncompressed_bytes, kTrainable * 4);
  EXPECT_EQ(after.pull_uncompressed_bytes - before.pull_uncompressed_bytes, kTrainable * 4);
  EXPECT_GT(after.pull_bytes - before.pull_bytes, kTrainable * 4);
  EXPECT_EQ(after.statistics_push_bytes, 0u);
}

TEST_F(ParameterClientTest, ReadsHalfPrecisionReplies) {
  StartServers();
  auto options = Options();
  options.reply_codec = "bf16";
  auto client = Connected(options);
  for (size_t k = 0; k < kTrainable; ++k) {
    ASSERT_NEAR(client->parameters()[k], FirstValues()[k], 0.004 * FirstValues()[k]);
  }
  EXPECT_LT(client->traffic().pull_bytes, client->traffic().pull_uncompressed_bytes);
}

TEST_F(ParameterClientTest, WaitsForTheResultOfARound) {
  StartServers({.synchronous = true, .pending_fetches = 2});
  auto options = Options();
  options.synchronous = true;
  auto client = Connected(options);
  std::vector<float> gradient = Gradient(0);
  ASSERT_TRUE(client->Push({.ticket = 4, .round = 1, .gradient = gradient.data()}).ok());
  ASSERT_TRUE(client->Finish().ok());
  for (size_t k = 0; k < kTrainable; ++k) {
    ASSERT_EQ(client->parameters()[k], FirstValues()[k] - 0.1f * Gradient(0)[k]);
  }
  int fetches = 0;
  for (const auto& request : servers_[0]->requests()) {
    if (request.header().kind() != v1::ExchangeHeader::FETCH) continue;
    ++fetches;
    EXPECT_EQ(request.header().round(), 1u);
    EXPECT_TRUE(request.payload().empty());
  }
  EXPECT_EQ(fetches % 3, 0);
  EXPECT_GT(fetches, 0);
}

TEST_F(ParameterClientTest, ARoundThatNeverClosesEndsWithAnError) {
  StartServers({.synchronous = true, .pending_fetches = 1 << 30});
  auto options = Options();
  options.synchronous = true;
  options.connect_seconds = 0.3;
  auto client = Connected(options);
  std::vector<float> gradient = Gradient(0);
  ASSERT_TRUE(client->Push({.ticket = 4, .round = 1, .gradient = gradient.data()}).ok());
  const absl::Status status = client->Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("round 1"), HasSubstr("another worker")));
}

TEST_F(ParameterClientTest, AReaderHearsThatServersAreOfSeveralRuns) {
  StartServers();
  auto options = Options();
  options.hello.set_reader(true);
  servers_[1]->set_run(0xb, 0);
  EXPECT_TRUE(ParameterClient::Connect(options).ok()) << "one does not know";
  servers_[0]->set_run(0xb, 0);
  EXPECT_TRUE(ParameterClient::Connect(options).ok());
  servers_[0]->set_run(0xa, 0);
  const absl::Status refused = ParameterClient::Connect(options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("server 1 at " + servers_[1]->address() + " has the state of run 000000000000000b"),
                    HasSubstr("server 0 at " + servers_[0]->address() + " that of run 000000000000000a")));
}

TEST_F(ParameterClientTest, EveryServerHearsOfTheHighestRound) {
  StartServers();
  auto options = Options();
  options.hello.set_open_round(40);
  servers_[0]->set_run(0, 40);
  servers_[1]->set_run(0, 40);
  EXPECT_TRUE(ParameterClient::Connect(options).ok());
  for (const auto& server : servers_) EXPECT_EQ(server->told_rounds(), std::vector<uint64_t>({40}));
  servers_[1]->set_run(0, 70);
  EXPECT_TRUE(ParameterClient::Connect(options).ok());
  EXPECT_EQ(servers_[0]->told_rounds(), std::vector<uint64_t>({40, 40, 70}));
  EXPECT_EQ(servers_[1]->told_rounds(), std::vector<uint64_t>({40, 40}));
}

TEST_F(ParameterClientTest, AReaderWaitsForFirstValues) {
  StartServers();
  auto options = Options();
  options.hello.set_reader(true);
  options.connect_seconds = 0.3;
  auto early = ParameterClient::Connect(options).value();
  const absl::Status status = early->AwaitInitialised();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("no worker has brought"));
  auto worker = Connected(Options());
  auto reader = ParameterClient::Connect(options).value();
  ASSERT_TRUE(reader->AwaitInitialised().ok());
  ASSERT_TRUE(reader->Pull(Parameters::kMaster).ok());
  EXPECT_EQ(reader->parameters()[9], FirstValues()[9]);
  EXPECT_FALSE(servers_[0]->requests().back().header().lookahead());
}

// Worker-side momentum is committed with the message: lost replies do not apply
// it twice.
TEST_F(ParameterClientTest, TheWorkersHalfRunsOncePerPush) {
  StartServers();
  auto options = Options();
  options.rule = "dana_slim";
  options.half = {.momentum = 0.9f};
  auto client = Connected(options);
  servers_[0]->SetFault([count = 0](const v1::ExchangeHeader& header, bool applied) mutable {
    if (applied && header.kind() == v1::ExchangeHeader::PUSH && ++count % 2 == 1) {
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "reply lost");
    }
    return grpc::Status::OK;
  });
  std::vector<float> v(kTrainable), expected = FirstValues();
  for (uint64_t step = 0; step < 5; ++step) {
    std::vector<float> gradient = Gradient(step);
    for (size_t k = 0; k < kTrainable; ++k) {
      v[k] = 0.9f * v[k] + gradient[k];
      expected[k] -= 0.1f * (0.9f * v[k] + gradient[k]);
    }
    ASSERT_TRUE(client->Push({.ticket = step, .gradient = gradient.data()}).ok());
    ASSERT_TRUE(client->Finish().ok());
  }
  for (size_t k = 0; k < kTrainable; ++k) {
    ASSERT_NEAR(client->parameters()[k], expected[k], 1e-5) << k;
  }
}

}  // namespace
}  // namespace foreshard
