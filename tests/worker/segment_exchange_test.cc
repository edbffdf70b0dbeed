// The protocol state under threads, with a transport of this test's own instead of
// a network: what thread sanitizer can see all of.
#include "worker/segment_exchange.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "common/net/exchange_message.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

constexpr uint64_t kElements = 6000;

// Answers every message as a server with plain SGD would, on a thread of its own.
class Loopback {
 public:
  Loopback(SegmentExchange* exchange, const ShardPlan& plan, uint32_t window)
      : exchange_(exchange), plan_(plan), window_(window), theta_(kElements) {
    for (size_t k = 0; k < kElements; ++k) theta_[k] = 0.001f * static_cast<float>(k);
    thread_ = std::thread([this] { Run(); });
  }
  ~Loopback() {
    stop_ = true;
    thread_.join();
  }
  const std::vector<float>& theta() const { return theta_; }  // once it is idle
  void FailNext() { fail_ = true; }
  void NoteForRounds() { rounds_ = true; }

 private:
  void Run() {
    std::deque<Outgoing> flying;
    while (!stop_) {
      if (flying.size() < window_) {
        if (auto out = exchange_->Next({true, true})) {
          flying.push_back(std::move(*out));
          continue;
        }
      }
      if (flying.empty()) {
        std::this_thread::yield();
        continue;
      }
      if (fail_) {
        exchange_->Failed(absl::UnavailableError("the test's own"));
        return;
      }
      // Not in the order in which they were sent.
      const size_t which = ++count_ % flying.size();
      const uint32_t token = flying[which].token;
      const grpc::ByteBuffer reply = Answer(flying[which].message);
      flying.erase(flying.begin() + static_cast<int64_t>(which));
      const auto follow_up = exchange_->Received(token, reply);
      ASSERT_TRUE(follow_up.ok()) << follow_up.status();
      if (follow_up->what == FollowUp::What::kSend) {
        flying.push_back({.shard = 0, .token = token, .message = follow_up->message});
        continue;
      }
      ASSERT_EQ(follow_up->what, FollowUp::What::kNone);
    }
  }

  grpc::ByteBuffer Answer(const grpc::ByteBuffer& message) {
    const auto request = ParsedMessage<v1::ExchangeHeader>::Parse(message).value();
    const v1::ExchangeHeader& header = request.header();
    const SegmentPlan& plan = plan_.segments()[header.segment()];
    float* theta = theta_.data() + plan.begin;
    if (header.kind() == v1::ExchangeHeader::PUSH) {
      const Codec& codec = *FindCodec(static_cast<CodecId>(header.codec()));
      std::vector<uint8_t> bytes;
      for (const ByteSpan piece : request.payload().pieces) {
        bytes.insert(bytes.end(), piece.begin(), piece.end());
      }
      std::vector<float> values(plan.elements);
      DecodeSegment(codec, plan.blocks, bytes.data(), {}, values.data());
      for (uint64_t k = 0; k < plan.elements; ++k) theta[k] -= 0.1f * values[k];
    }
    v1::ReplyHeader reply;
    reply.set_segment(header.segment());
    reply.set_version(++version_);
    reply.set_server_incarnation(5);
    reply.set_result(v1::ReplyHeader::APPLIED);
    // Of a push of the first segment as of a round: noted at first, then asked for.
    if (rounds_ && header.segment() == 0 && header.kind() == v1::ExchangeHeader::PUSH) {
      reply.set_result(v1::ReplyHeader::PENDING);
      return MakeMessage(reply, {});
    }
    // In two slices that cut a float in half.
    const grpc::Slice whole(theta, plan.elements * sizeof(float));
    const ByteSpan bytes(whole.begin(), whole.size());
    reply.set_checksum(Checksum(bytes));
    return MakeMessage(reply, {grpc::Slice(whole.begin(), 101),
                               grpc::Slice(whole.begin() + 101, whole.size() - 101)});
  }

  SegmentExchange* const exchange_;
  const ShardPlan& plan_;
  const uint32_t window_;
  std::vector<float> theta_;
  uint64_t version_ = 0;
  size_t count_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<bool> fail_{false};
  std::atomic<bool> rounds_{false};
  std::thread thread_;
};

class SegmentExchangeTest : public ::testing::Test {
 protected:
  SegmentExchangeTest() {
    options_.schema =
        Schema::Create({{"w", {int64_t{kElements}}, TensorKind::kTrainable, false}}).value();
    options_.plan =
        ShardPlan::Create(options_.schema,
                          {.shards = 2, .segment_elements = 512, .block_elements = 128})
            .value();
    options_.servers = {"a", "b"};
    options_.rule = "asgd";
  }
  std::unique_ptr<SegmentExchange> Make() {
    return std::make_unique<SegmentExchange>(
        options_, std::vector<uint64_t>{5, 5}, [](uint32_t) -> absl::StatusOr<ServerNow> { return ServerNow{5}; });
  }
  SegmentExchange::Operation On(v1::ExchangeHeader::Kind kind) const {
    SegmentExchange::Operation operation{.kind = kind};
    for (const SegmentPlan& plan : options_.plan.segments()) {
      operation.segments.push_back(plan.id);
    }
    return operation;
  }

  ParameterClientOptions options_;
};

class Codecs : public SegmentExchangeTest, public ::testing::WithParamInterface<const char*> {};

// The computing thread reads what the gate lets through while the other thread is
// still reading later segments, and writes its gradient behind the gate.
TEST_P(Codecs, ComputesWhileLaterSegmentsAreUnderWay) {
  options_.push_codec = GetParam();
  std::vector<float> gradient(kElements);
  std::unique_ptr<SegmentExchange> exchange = Make();
  Loopback server(exchange.get(), options_.plan, 3);
  exchange->Begin(On(v1::ExchangeHeader::READ));
  ASSERT_TRUE(exchange->WaitDone().ok());
  std::vector<double> sum(kElements);
  const std::vector<float> first(exchange->parameters(), exchange->parameters() + kElements);
  for (uint64_t step = 0; step < 50; ++step) {
    for (uint64_t at = 0; at < kElements; at += 250) {
      ASSERT_TRUE(exchange->WaitFor(at, 250).ok());
      for (uint64_t k = at; k < at + 250; ++k) {
        gradient[k] = 0.1f * exchange->parameters()[k] + std::cos(static_cast<float>(k * step));
        sum[k] += gradient[k];
      }
    }
    ASSERT_TRUE(exchange->WaitDone().ok());
    SegmentExchange::Operation push = On(v1::ExchangeHeader::PUSH);
    push.ticket = step;
    push.gradient = gradient.data();
    exchange->Begin(std::move(push));
  }
  ASSERT_TRUE(exchange->WaitDone().ok());
  EXPECT_EQ(std::memcmp(exchange->parameters(), server.theta().data(), kElements * sizeof(float)),
            0);
  for (size_t k = 0; k < kElements; ++k) {
    const double error = exchange->error().empty() ? 0 : exchange->error()[k];
    ASSERT_NEAR((first[k] - exchange->parameters()[k]) / 0.1 + error, sum[k], 2e-3) << k;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Codecs, ::testing::Values("none", "fp16", "one_bit_mean"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(SegmentExchangeTest, TheFirstAnswerToAPushIsTold) {
  std::vector<SegmentAnswer> answers;
  options_.answered = [&](const SegmentAnswer& answer) { answers.push_back(answer); };
  std::unique_ptr<SegmentExchange> exchange = Make();
  Loopback server(exchange.get(), options_.plan, 2);
  server.NoteForRounds();
  exchange->Begin(On(v1::ExchangeHeader::READ));
  ASSERT_TRUE(exchange->WaitDone().ok());
  EXPECT_TRUE(answers.empty());
  std::vector<float> gradient(kElements);
  for (const uint64_t ticket : {40, 50}) {
    answers.clear();
    SegmentExchange::Operation push = On(v1::ExchangeHeader::PUSH);
    push.ticket = ticket;
    push.gradient = gradient.data();
    exchange->Begin(std::move(push));
    ASSERT_TRUE(exchange->WaitDone().ok());
    ASSERT_EQ(answers.size(), options_.plan.segments().size());
    std::vector<uint32_t> segments;
    for (const SegmentAnswer& answer : answers) {
      segments.push_back(answer.segment);
      EXPECT_EQ(answer.ticket, ticket);
      EXPECT_EQ(answer.sequence, ticket / 10 - 3);
      EXPECT_GT(answer.version, 0u);
      EXPECT_EQ(answer.result, answer.segment == 0 ? "pending" : "applied");
    }
    std::sort(segments.begin(), segments.end());
    EXPECT_EQ(std::unique(segments.begin(), segments.end()), segments.end());
  }
}

TEST_F(SegmentExchangeTest, AFailureWakesWhoeverWaits) {
  std::unique_ptr<SegmentExchange> exchange = Make();
  Loopback server(exchange.get(), options_.plan, 2);
  server.FailNext();
  std::vector<float> gradient(kElements);
  SegmentExchange::Operation push = On(v1::ExchangeHeader::PUSH);
  push.gradient = gradient.data();
  exchange->Begin(std::move(push));
  EXPECT_EQ(exchange->WaitFor(0, kElements).message(), "the test's own");
  EXPECT_EQ(exchange->WaitDone().message(), "the test's own");
}

TEST_F(SegmentExchangeTest, SharesTheServersByWhatIsNeededFirst) {
  std::unique_ptr<SegmentExchange> exchange = Make();
  exchange->Begin(On(v1::ExchangeHeader::READ));
  std::vector<uint32_t> order;
  // Server 0 has room for two, server 1 always.
  uint32_t left = 2;
  while (auto out = exchange->Next({left > 0, true})) {
    if (out->shard == 0) --left;
    order.push_back(out->token);
  }
  ASSERT_GT(order.size(), 4u);
  EXPECT_EQ(order[0], 0u);
  EXPECT_EQ(order[1], 1u);
  EXPECT_EQ(options_.plan.segments()[order[2]].shard, 1u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

}  // namespace
}  // namespace foreshard
