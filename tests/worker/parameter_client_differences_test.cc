// Replies that carry differences: added once, and only to what they are meant for.
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/fake_shard.h"
#include "worker/parameter_client.h"

namespace foreshard {
namespace {

constexpr uint64_t kElements = 1500;

class DifferencesTest : public ::testing::Test {
 protected:
  DifferencesTest()
      : schema_(Schema::Create({{"w", {int64_t{kElements}}, TensorKind::kTrainable, false}}).value()),
        plan_(ShardPlan::Create(schema_, {.shards = 1, .segment_elements = 512, .block_elements = 128})
                  .value()),
        server_(plan_, {.seed = 6}) {
    options_.servers = {server_.address()};
    options_.schema = schema_;
    options_.plan = plan_;
    options_.hello.set_worker(2);
    options_.hello.set_incarnation(9);
    options_.rule = "asgd";
    options_.reply_codec = "one_bit";
    options_.seed = 6;
    options_.connect_seconds = 20;
  }

  void Connect() {
    client_ = ParameterClient::Connect(options_).value();
    std::vector<float> values(kElements);
    for (size_t k = 0; k < kElements; ++k) values[k] = 0.01f * static_cast<float>(k % 97);
    ASSERT_TRUE(client_->Initialise(values).ok());
    ASSERT_TRUE(client_->Pull(Parameters::kAsSent).ok());
  }

  void Step() {
    std::vector<float> gradient(kElements);
    for (size_t k = 0; k < kElements; ++k) gradient[k] = std::sin(static_cast<float>(k * 7 + ticket_ * 13));
    ASSERT_TRUE(client_->Push({.ticket = ticket_++, .gradient = gradient.data()}).ok());
    const absl::Status status = client_->Finish();
    ASSERT_TRUE(status.ok()) << status;
  }

  // The worker has exactly what the server takes it to have.
  void ExpectAgree() {
    for (const SegmentPlan& segment : plan_.segments()) {
      const FakeShard::State state = server_.state(segment.id);
      ASSERT_EQ(state.held.size(), segment.elements);
      ASSERT_EQ(std::memcmp(client_->parameters() + segment.begin, state.held.data(),
                            segment.elements * sizeof(float)),
                0)
          << "segment " << segment.id << " after ticket " << ticket_ - 1;
    }
  }

  uint64_t Sum(uint64_t FakeShard::State::*figure) const {
    uint64_t sum = 0;
    for (const SegmentPlan& segment : plan_.segments()) sum += server_.state(segment.id).*figure;
    return sum;
  }

  const Schema schema_;
  const ShardPlan plan_;
  FakeShard server_;
  ParameterClientOptions options_;
  std::unique_ptr<ParameterClient> client_;
  uint64_t ticket_ = 0;
};

TEST_F(DifferencesTest, AreAddedToWhatTheWorkerHolds) {
  for (const std::string_view name : CodecNames()) {
    SCOPED_TRACE(std::string(name));
    options_.reply_codec = std::string(name);
    options_.hello.set_incarnation(options_.hello.incarnation() + 1);
    FakeShard server(plan_, {.seed = 6});
    options_.servers = {server.address()};
    client_ = ParameterClient::Connect(options_).value();
    ASSERT_TRUE(client_->Initialise(std::vector<float>(kElements, 0.5f)).ok());
    ASSERT_TRUE(client_->Pull(Parameters::kAsSent).ok());
    const Traffic before = client_->traffic();
    for (int step = 0; step < 20; ++step) ASSERT_NO_FATAL_FAILURE(Step());
    const bool differences = name != "none" && name != "fp16" && name != "bf16";
    for (const SegmentPlan& segment : plan_.segments()) {
      const FakeShard::State state = server.state(segment.id);
      EXPECT_EQ(state.differences, differences ? 20u : 0u);
      EXPECT_EQ(std::memcmp(client_->parameters() + segment.begin, state.held.data(),
                            segment.elements * sizeof(float)),
                0);
    }
    const Traffic after = client_->traffic();
    const double ratio = static_cast<double>(after.pull_bytes - before.pull_bytes) /
                         static_cast<double>(after.pull_uncompressed_bytes - before.pull_uncompressed_bytes);
    EXPECT_LT(ratio, name == "none" ? 1.1 : differences ? 0.25 : 0.6);
    client_.reset();
  }
}

TEST_F(DifferencesTest, AreAddedOnceWhateverIsLostOrDamaged) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  server_.SetFault([count = 0](const v1::ExchangeHeader& header, bool applied) mutable {
    if (applied && header.kind() == v1::ExchangeHeader::PUSH && ++count % 7 == 3) {
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "reply lost");
    }
    return grpc::Status::OK;
  });
  server_.SetReplyFault([count = 0](v1::ExchangeReply* reply) mutable {
    if (!reply->header().delta() || ++count % 5 != 0) return;
    std::string& payload = *reply->mutable_payload();
    if (count % 2 == 0) {
      payload[payload.size() / 2] ^= 0x10;
    } else {
      payload.resize(payload.size() - 3);
    }
  });
  for (int step = 0; step < 60; ++step) {
    ASSERT_NO_FATAL_FAILURE(Step());
    ASSERT_NO_FATAL_FAILURE(ExpectAgree());
  }
  EXPECT_EQ(Sum(&FakeShard::State::applied), 60 * plan_.segments().size());
  EXPECT_GT(Sum(&FakeShard::State::duplicates), 30u);
  EXPECT_GT(Sum(&FakeShard::State::differences), 100u);
}

// Another's difference, or one that claims to be what it is not, is asked for again,
// which brings the parameters themselves.
TEST_F(DifferencesTest, ThatDoNotFitAreRefused) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  const std::vector<std::function<void(v1::ReplyHeader*)>> lies = {
      [](v1::ReplyHeader* header) { header->set_delta_base(header->delta_base() + 1); },
      [](v1::ReplyHeader* header) { header->set_delta_base(0); },
      [](v1::ReplyHeader* header) { header->set_delta(false); },
      [](v1::ReplyHeader* header) { header->set_version(header->delta_base()); },
      [](v1::ReplyHeader* header) { header->set_codec(0); },
      [](v1::ReplyHeader* header) { header->set_codec(77); },
      [](v1::ReplyHeader* header) { header->set_codec(static_cast<uint32_t>(CodecId::kFp16)); },
  };
  ASSERT_NO_FATAL_FAILURE(Step());
  for (size_t k = 0; k < lies.size(); ++k) {
    SCOPED_TRACE(k);
    ASSERT_NO_FATAL_FAILURE(Step());
    const uint64_t before = Sum(&FakeShard::State::duplicates);
    server_.SetReplyFault([&, k](v1::ExchangeReply* reply) {
      if (reply->header().delta()) lies[k](reply->mutable_header());
    });
    ASSERT_NO_FATAL_FAILURE(Step());
    ASSERT_NO_FATAL_FAILURE(ExpectAgree());
    EXPECT_EQ(Sum(&FakeShard::State::duplicates), before + plan_.segments().size());
    server_.SetReplyFault(nullptr);
  }
}

// The master's parameters are not those that the server keeps for this worker.
TEST_F(DifferencesTest, AreNotAskedForWhileTheMasterIsHeld) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  ASSERT_NO_FATAL_FAILURE(Step());
  const auto wanted = [&] { return server_.requests().back().header().reply_codec(); };
  EXPECT_EQ(wanted(), static_cast<uint32_t>(CodecId::kOneBit));
  ASSERT_TRUE(client_->Pull(Parameters::kMaster).ok());
  ASSERT_NO_FATAL_FAILURE(Step());
  EXPECT_EQ(wanted(), 0u);
  ASSERT_NO_FATAL_FAILURE(ExpectAgree());
  ASSERT_NO_FATAL_FAILURE(Step());
  EXPECT_EQ(wanted(), static_cast<uint32_t>(CodecId::kOneBit));
  ASSERT_NO_FATAL_FAILURE(ExpectAgree());
}

}  // namespace
}  // namespace foreshard
