// APMSqueeze's half at a worker whose gradients stay on an (emulated) GPU: through a freeze, results,
// a change of members, late contributions, a fold, a skip and the way back, the same bytes and the
// same parameters as in host memory.
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "common/core/random.h"
#include "common/core/reply_part.h"
#include "gtest/gtest.h"
#include "kernels/step_encoder.h"
#include "kernels/step_receiver.h"
#include "tests/worker/emulated_device.h"
#include "worker/device_push_encoder.h"
#include "worker/push_encoder.h"

namespace foreshard {
namespace {

constexpr CodecSettings kSettings = {.fraction = 0.125f, .bits = 5};
constexpr uint64_t kTrainable = 3000;
constexpr uint64_t kSeed = 31;

struct Case {
  std::string codec;
  bool gradients = false;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const std::string_view codec : CodecNames()) {
    for (const bool gradients : {false, true}) cases.push_back({std::string(codec), gradients});
  }
  return cases;
}

std::vector<float> Random(uint64_t stream, uint64_t step, uint64_t n) {
  std::vector<float> values(n);
  for (uint64_t i = 0; i < n; ++i) values[i] = static_cast<float>(RandomNormal(stream, step, i));
  return values;
}

class DeviceSqueezeTest : public ::testing::TestWithParam<Case> {
 protected:
  DeviceSqueezeTest() {
    const Schema schema = Schema::Create({{"w", {2800}, TensorKind::kTrainable, true},
                                          {"b", {200}, TensorKind::kTrainable, false}})
                              .value();
    plan_ = ShardPlan::Create(schema, {.shards = 1, .segment_elements = 1024, .block_elements = 256})
                .value();
    options_ = {.rule = "apmsqueeze",
                .codec = GetParam().codec,
                .codec_settings = kSettings,
                .seed = kSeed,
                .trainable_elements = kTrainable,
                .segments = plan_.segments().size(),
                .squeeze = SqueezeReplicaOptions{.beta1 = 0.9f,
                                                 .weight_decay = 0.01f,
                                                 .compress_gradients = GetParam().gradients}};
    host_ = std::make_unique<PushEncoder>(options_);
    memory_ = device_.MakeStepMemory(kTrainable, kTrainable).value();
    encoder_ = memory_->MakeEncoder(MakeStepEncoderOptions(options_, plan_, codecs_)).value();
    kernels::StepReceiverOptions receiver = {.codec = &codec(), .encoder = encoder_.get()};
    for (const SegmentPlan& plan : plan_.segments()) {
      receiver.segments.push_back(
          {.begin = plan.begin, .elements = plan.elements, .blocks = plan.blocks});
    }
    receiver_ = memory_->MakeReceiver(receiver).value();
    on_device_ = std::make_unique<DevicePushEncoder>(options_, encoder_.get(), receiver_.get());
    parameters_.resize(kTrainable);
    sent_.resize(plan_.segments().size());
  }

  const Codec& codec() const { return *codecs_.Find(GetParam().codec); }
  PushPlace Place() const { return {.worker = 2, .sequence = step_, .round = step_}; }

  // A step at both: the same bytes, or nothing of a gradient that is not finite.
  void Push(bool finite = true, bool fold = false) {
    ++step_;
    SCOPED_TRACE("step " + std::to_string(step_));
    std::vector<float> gradient = Random(1, step_, kTrainable);
    if (!finite) gradient[99] = std::numeric_limits<float>::infinity();
    ASSERT_EQ(kernels::cuda::CopyToDevice(memory_->gradient(), gradient.data(),
                                          kTrainable * sizeof(float), device_.stream()),
              absl::OkStatus());
    std::vector<SegmentStep> steps;
    for (const SegmentPlan& plan : plan_.segments()) {
      steps.push_back({.place = Place()});
      ASSERT_EQ(receiver_->Await(plan.id), absl::OkStatus());
    }
    if (fold) {
      host_->FoldNext();
      on_device_->FoldNext();
    }
    ASSERT_EQ(on_device_->Prepare(plan_.segments(), steps, std::nullopt), absl::OkStatus());
    ASSERT_EQ(encoder_->Norm()->finite, finite);
    sent_.assign(plan_.segments().size(), {});
    if (!finite) return;
    for (const SegmentPlan& plan : plan_.segments()) {
      SegmentStep step = steps[plan.id];
      step.parameters = parameters_.data() + plan.begin;
      step.gradient = gradient.data() + plan.begin;
      std::vector<uint8_t> buffer;
      const auto take = [&](uint64_t bytes) {
        buffer.resize(bytes);
        return buffer.data();
      };
      ASSERT_EQ(host_->codec(plan).id(), on_device_->codec(plan).id());
      const auto expected = host_->Make(plan, step, take);
      ASSERT_TRUE(expected.ok()) << expected.status();
      sent_[plan.id].assign(expected->begin(), expected->end());
      const auto made = on_device_->Make(plan, steps[plan.id], take);
      ASSERT_TRUE(made.ok()) << made.status();
      ASSERT_EQ(std::vector<uint8_t>(made->begin(), made->end()), sent_[plan.id])
          << "segment " << plan.id;
    }
  }

  // The same reply for both.
  void Reply(RoundReply reply) {
    SCOPED_TRACE("reply to step " + std::to_string(step_));
    reply.version = 100 + step_;
    reply.round = step_ + 1;
    reply.eta = 0.01f;
    for (const SegmentPlan& plan : plan_.segments()) {
      std::vector<uint8_t> bytes;
      if (reply.parts & kResultPart) {
        bytes.resize(EncodedBytes(codec(), plan.blocks));
        EncodeSegment(codec(), plan.blocks, Random(2, step_, plan.elements).data(), nullptr,
                      ResultKey(kSeed, plan.id, reply.version), bytes.data());
      }
      for (const uint32_t part : {kParametersPart, kMomentumPart, kDenominatorPart}) {
        if (!(reply.parts & part)) continue;
        std::vector<float> values = Random(3 + part, step_ + plan.id, plan.elements);
        for (float& value : values) {
          if (part == kDenominatorPart) value = 0.5f + std::abs(value);
        }
        const size_t at = bytes.size();
        bytes.resize(at + values.size() * sizeof(float));
        std::memcpy(bytes.data() + at, values.data(), values.size() * sizeof(float));
      }
      // In pieces that cut floats.
      const ByteSpan all(bytes);
      const size_t cut = std::min<size_t>(bytes.size(), 333);
      const ByteSpan pieces[] = {all.subspan(0, cut), all.subspan(cut)};
      const Payload payload = {absl::MakeConstSpan(pieces), bytes.size()};
      ASSERT_EQ(host_->TakeReply(plan, reply, payload, Place(), sent_[plan.id],
                                 parameters_.data() + plan.begin),
                absl::OkStatus());
      ASSERT_EQ(on_device_->TakeReply(plan, reply, payload, Place(), sent_[plan.id], nullptr),
                absl::OkStatus());
    }
    std::vector<float> on_device(kTrainable);
    for (const SegmentPlan& plan : plan_.segments()) {
      ASSERT_EQ(receiver_->Await(plan.id), absl::OkStatus());
    }
    ASSERT_EQ(kernels::cuda::CopyToHost(on_device.data(), memory_->vector(),
                                        kTrainable * sizeof(float), device_.stream()),
              absl::OkStatus());
    ASSERT_EQ(kernels::cuda::WaitFor(device_.stream()), absl::OkStatus());
    ASSERT_EQ(std::memcmp(on_device.data(), parameters_.data(), kTrainable * sizeof(float)), 0);
  }

  ShardPlan plan_;
  const CodecSet codecs_{kSettings};
  PushEncoderOptions options_;
  std::unique_ptr<PushEncoder> host_;
  EmulatedDevice device_;
  std::unique_ptr<kernels::StepMemory> memory_;
  std::unique_ptr<kernels::StepEncoder> encoder_;
  std::unique_ptr<kernels::StepReceiver> receiver_;
  std::unique_ptr<DevicePushEncoder> on_device_;
  std::vector<float> parameters_;
  std::vector<std::vector<uint8_t>> sent_;
  uint64_t step_ = 0;
};

INSTANTIATE_TEST_SUITE_P(All, DeviceSqueezeTest, ::testing::ValuesIn(Cases()), [](const auto& info) {
  return info.param.codec + (info.param.gradients ? "_gradients" : "_momenta");
});

TEST_P(DeviceSqueezeTest, IsTheHostsThroughAllPhases) {
  constexpr uint32_t kAll = kParametersPart | kMomentumPart | kDenominatorPart;
  EXPECT_TRUE(on_device_->squeezes());
  EXPECT_FALSE(on_device_->has_momentum());
  Reply({.parts = kParametersPart, .members = 3});  // the first parameters
  Push();
  Reply({.parts = kParametersPart, .members = 3});
  Push();
  Reply({.parts = kAll, .members = 3, .frozen = true});  // the freeze
  for (int i = 0; i < 3; ++i) {
    Push();
    Reply({.parts = kResultPart, .members = 3, .frozen = true});
  }
  const double ratio = on_device_->ErrorFeedbackRatio(plan_.segments(), nullptr);
  EXPECT_EQ(ratio > 0, GetParam().codec != "none") << ratio;
  Push();
  Reply({.parts = kResultPart, .members = 4, .frozen = true});  // one has joined
  Push();
  Reply({.parts = kResultPart, .late = true, .members = 4, .frozen = true});
  Push(/*finite=*/false);
  Reply({.parts = kResultPart, .late = true, .members = 4, .frozen = true});
  Push();
  Reply({.parts = kResultPart, .members = 4, .frozen = true, .fold = true});
  Push();  // the fold
  Reply({.parts = kParametersPart | kMomentumPart, .late = true, .members = 4, .frozen = true});
  Push();
  Reply({.parts = kResultPart, .members = 4, .frozen = true});
  Push();
  Reply({.parts = kParametersPart, .members = 4});  // back to full precision
  Push();
  Reply({.parts = kAll, .members = 4, .frozen = true});
  Push();
  Reply({.parts = kResultPart, .members = 2, .frozen = true});
  Push(/*finite=*/true, /*fold=*/true);  // before it leaves
}

TEST_P(DeviceSqueezeTest, ADamagedReplyChangesNothing) {
  Reply({.parts = kParametersPart, .members = 3});
  Push();
  const SegmentPlan& plan = plan_.segments()[0];
  const std::vector<uint8_t> bytes(7);
  const ByteSpan piece(bytes);
  const Payload payload = {absl::MakeConstSpan(&piece, 1), bytes.size()};
  EXPECT_EQ(on_device_
                ->TakeReply(plan, {.parts = kParametersPart, .members = 3}, payload, Place(),
                            sent_[0], nullptr)
                .code(),
            absl::StatusCode::kDataLoss);
  Reply({.parts = kParametersPart, .members = 3});
}

}  // namespace
}  // namespace foreshard
