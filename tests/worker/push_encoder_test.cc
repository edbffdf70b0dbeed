// What a worker does to a gradient before it leaves, codec by codec: the server decodes what
// was meant, and what is kept back plus what was sent is all there was.
#include "worker/push_encoder.h"

#include <cmath>
#include <string>
#include <vector>

#include "common/core/random.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

constexpr uint64_t kTrainable = 2100;
constexpr uint64_t kSeed = 21;
constexpr CodecSettings kSettings = {.fraction = 0.125f, .bits = 5};

ShardPlan TestPlan(ShardPlanOptions options = {}) {
  const Schema schema =
      Schema::Create({{"weight", {2000}, TensorKind::kTrainable, true},
                      {"bias", {99}, TensorKind::kTrainable, false},
                      {"gain", {1}, TensorKind::kTrainable, false},
                      {"mean", {10}, TensorKind::kStatistic, false}})
          .value();
  options.segment_elements = 1024;
  options.block_elements = 256;
  return ShardPlan::Create(schema, options).value();
}

PushEncoderOptions Options(const std::string& codec, const ShardPlan& plan) {
  return {.rule = "asgd",
          .codec = codec,
          .codec_settings = kSettings,
          .seed = kSeed,
          .trainable_elements = kTrainable,
          .segments = plan.segments().size()};
}

std::vector<float> Gradient(uint64_t step) {
  std::vector<float> gradient(kTrainable);
  for (size_t k = 0; k < kTrainable; ++k) gradient[k] = static_cast<float>(RandomNormal(3, step, k));
  return gradient;
}

// Encodes all segments; what the server decodes.
std::vector<float> Push(PushEncoder& encoder, const ShardPlan& plan, const PushPlace& place,
                        const std::vector<float>& gradient) {
  const CodecSet codecs(kSettings);
  std::vector<float> received(kTrainable);
  for (const SegmentPlan& segment : plan.segments()) {
    if (segment.kind != TensorKind::kTrainable) continue;
    std::vector<uint8_t> payload(encoder.EncodedBytes(segment));
    encoder.Encode(segment, place, gradient.data() + segment.begin, payload.data());
    DecodeSegment(*codecs.Find(encoder.codec(segment).id()), segment.blocks, payload.data(),
                  PushKey(kSeed, segment.id, place), received.data() + segment.begin);
  }
  return received;
}

class PushEncoderTest : public ::testing::TestWithParam<std::string_view> {};

INSTANTIATE_TEST_SUITE_P(All, PushEncoderTest, ::testing::ValuesIn(CodecNames()),
                         [](const auto& info) { return std::string(info.param); });

// error = c - decoded, and so over any number of pushes nothing is lost.
TEST_P(PushEncoderTest, WhatIsKeptAndWhatIsSentIsAll) {
  const ShardPlan plan = TestPlan();
  PushEncoder encoder(Options(std::string(GetParam()), plan));
  EXPECT_EQ(encoder.plain(plan.segments()[0]), GetParam() == "none");
  std::vector<double> sum(kTrainable), sent(kTrainable);
  std::vector<float> before(kTrainable);
  for (uint64_t step = 1; step <= 20; ++step) {
    const std::vector<float> gradient = Gradient(step);
    const std::vector<float> received = Push(encoder, plan, {.worker = 1, .sequence = step}, gradient);
    for (size_t k = 0; k < kTrainable; ++k) {
      sum[k] += gradient[k];
      sent[k] += received[k];
      const float error = encoder.plain(plan.segments()[0]) ? 0 : encoder.error()[k];
      ASSERT_EQ(error, (gradient[k] + before[k]) - received[k]) << k;
      before[k] = error;
      ASSERT_NEAR(sent[k] + error, sum[k], 1e-4) << k;
    }
  }
}

TEST_P(PushEncoderTest, TensorsInFullPrecisionAreSentWhole) {
  const ShardPlan plan = TestPlan({.full_precision = {"b*"}, .full_precision_below = 2});
  PushEncoder encoder(Options(std::string(GetParam()), plan));
  for (uint64_t step = 1; step <= 3; ++step) {
    const std::vector<float> gradient = Gradient(step);
    const std::vector<float> received = Push(encoder, plan, {.worker = 1, .sequence = step}, gradient);
    for (size_t k = 2000; k < kTrainable; ++k) {
      ASSERT_EQ(received[k], gradient[k]) << k;
      ASSERT_EQ(encoder.plain(plan.segments()[0]) ? 0 : encoder.error()[k], 0) << k;
    }
  }
}

// Which elements travel, by the places at which something arrives.
std::vector<bool> Chosen(const PushPlace& place) {
  const ShardPlan plan = TestPlan();
  PushEncoder encoder(Options("random_k", plan));
  const std::vector<float> received = Push(encoder, plan, place, std::vector<float>(kTrainable, 1));
  std::vector<bool> chosen(kTrainable);
  for (size_t k = 0; k < kTrainable; ++k) chosen[k] = received[k] != 0;
  return chosen;
}

TEST(PushEncoder, RandomElementsAreThoseOfThePlace) {
  EXPECT_EQ(Chosen({.worker = 0, .sequence = 4}), Chosen({.worker = 0, .sequence = 4}));
  EXPECT_NE(Chosen({.worker = 0, .sequence = 4}), Chosen({.worker = 0, .sequence = 5}));
  EXPECT_NE(Chosen({.worker = 0, .sequence = 4}), Chosen({.worker = 1, .sequence = 4}));
  EXPECT_EQ(Chosen({.worker = 0, .sequence = 4, .round = 9}), Chosen({.worker = 1, .sequence = 6, .round = 9}));
  EXPECT_NE(Chosen({.worker = 0, .sequence = 4, .round = 9}), Chosen({.worker = 0, .sequence = 4, .round = 10}));
}

}  // namespace
}  // namespace foreshard
