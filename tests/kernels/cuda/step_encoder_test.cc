// A step's pushes made on the device, against the host's worker half and codecs: bit for bit the
// same bytes over several steps, for every codec.
#include "kernels/cuda/step_encoder.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/core/catalogue.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cuda/step_memory.h"
#include "tests/kernels/cuda/on_device.h"
#include "tests/kernels/numbers.h"

namespace foreshard::kernels::cuda {
namespace {

constexpr uint64_t kTrainable = 11000;
constexpr uint64_t kStatistics = 37;
constexpr uint64_t kSeed = 5;
constexpr uint64_t kPiece = 1 << 14;  // of the norm's sum
constexpr CodecSettings kSettings = {.fraction = 0.125f, .bits = 5};

// Three segments: blocks of every kind, the last one short.
std::vector<EncodedSegment> Segments() {
  std::vector<EncodedSegment> segments;
  uint64_t begin = 0;
  for (const std::vector<uint32_t>& lengths :
       {std::vector<uint32_t>{4096, 1000, 7}, {1, 64, 2731}, {3101}}) {
    EncodedSegment& segment = segments.emplace_back();
    segment.begin = begin;
    for (const uint32_t n : lengths) {
      segment.blocks.push_back({.offset = segment.elements,
                                .elements = n,
                                .decayed = n % 2 == 0,
                                .full = n == 64});
      segment.elements += n;
    }
    begin += segment.elements;
  }
  EXPECT_EQ(begin, kTrainable);
  return segments;
}

struct Case {
  std::string_view codec;
  std::string rule;
  std::optional<double> clip_norm;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.codec << " " << c.rule; }

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const CodecTraits& traits : Codecs()) {
    cases.push_back({traits.name, "asgd", std::nullopt});
    cases.push_back({traits.name, "dana_slim", 40});
  }
  return cases;
}

class CudaStepEncoderTest : public OnDevice, public testing::WithParamInterface<Case> {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    stream_ = Stream::Make().value();
    memory_ = CudaStepMemory::Make(stream_.native(), kTrainable, kTrainable + kStatistics).value();
    encoder_ = memory_->MakeEncoder({.segments = segments_,
                                     .codec = codecs_.Find(GetParam().codec),
                                     .rule = GetParam().rule,
                                     .half = half_})
                   .value();
    host_half_ = MakeWorkerHalf(GetParam().rule, half_, kTrainable);
    error_.resize(kTrainable);
  }

  const Codec& codec() const { return *codecs_.Find(GetParam().codec); }

  // What a step leaves on the device.
  void Put(const std::vector<float>& gradient, const std::vector<float>& statistics) {
    ASSERT_EQ(CopyToDevice(memory_->gradient(), gradient.data(), gradient.size() * sizeof(float),
                           stream_.native()),
              absl::OkStatus());
    ASSERT_EQ(CopyToDevice(memory_->statistics(), statistics.data(),
                           statistics.size() * sizeof(float), stream_.native()),
              absl::OkStatus());
    ASSERT_EQ(memory_->Upload(parameters_.data(), 0, parameters_.size()), absl::OkStatus());
    // The caller's vectors may end with its statement.
    ASSERT_EQ(WaitFor(stream_.native()), absl::OkStatus());
  }

  std::vector<SegmentPush> Pushes(uint64_t step) const {
    std::vector<SegmentPush> pushes;
    for (uint32_t id = 0; id < segments_.size(); ++id) {
      pushes.push_back({.key = PushKey(kSeed, id, {.worker = 3, .sequence = step}),
                        .eta = 0.1f / static_cast<float>(step),
                        .previous_eta = step == 1 ? 0.1f : 0.1f / static_cast<float>(step - 1)});
    }
    return pushes;
  }

  // The host's way with a gradient; its norm before clipping.
  double OnHost(std::vector<float> gradient, const std::vector<SegmentPush>& pushes,
                std::vector<std::vector<uint8_t>>* bytes) {
    double squares = 0;
    for (uint64_t at = 0; at < kTrainable; at += kPiece) {
      squares += SumOfSquares(gradient.data() + at, std::min(kPiece, kTrainable - at));
    }
    const double norm = std::sqrt(squares);
    if (GetParam().clip_norm.has_value() && norm > *GetParam().clip_norm) {
      kernels::Scale(gradient.data(), static_cast<float>(*GetParam().clip_norm / norm), kTrainable);
    }
    bytes->clear();
    for (size_t i = 0; i < segments_.size(); ++i) {
      const EncodedSegment& segment = segments_[i];
      float* const mine = gradient.data() + segment.begin;
      if (host_half_ != nullptr) {
        host_half_->Transform(segment.blocks, segment.begin, pushes[i].eta, pushes[i].previous_eta,
                              parameters_.data() + segment.begin, mine);
      }
      bytes->emplace_back(EncodedBytes(codec(), segment.blocks));
      const bool keeps = codec().id() != CodecId::kNone;
      EncodeSegment(codec(), segment.blocks, mine, keeps ? error_.data() + segment.begin : nullptr,
                    pushes[i].key, bytes->back().data());
    }
    return norm;
  }

  const std::vector<EncodedSegment> segments_ = Segments();
  const CodecSet codecs_{kSettings};
  const WorkerHalfSettings half_ = {.momentum = 0.9f, .weight_decay = 0.01f};
  std::vector<float> parameters_ = Numbers(1, kTrainable + kStatistics);
  Stream stream_;
  std::unique_ptr<CudaStepMemory> memory_;
  std::unique_ptr<StepEncoder> encoder_;
  std::unique_ptr<WorkerHalf> host_half_;
  std::vector<float> error_;
};

INSTANTIATE_TEST_SUITE_P(All, CudaStepEncoderTest, testing::ValuesIn(Cases()),
                         [](const auto& info) {
                           return std::string(info.param.codec) + "_" + info.param.rule;
                         });

TEST_P(CudaStepEncoderTest, MakesTheHostsBytesOverSeveralSteps) {
  EXPECT_EQ(encoder_->has_momentum(), GetParam().rule == "dana_slim");
  EXPECT_EQ(encoder_->has_error(), GetParam().codec != "none");
  std::vector<std::vector<uint8_t>> expected;
  for (uint64_t step = 1; step <= 5; ++step) {
    const ThreadOrder scoped(step % kOrders);
    SCOPED_TRACE("step " + std::to_string(step));
    std::vector<float> gradient = Numbers(10 + step, kTrainable), statistics = Numbers(2, kStatistics);
    for (float& g : gradient) g *= static_cast<float>(step);  // clipped from some step on
    const std::vector<SegmentPush> pushes = Pushes(step);
    // The second and third step are not finite, here or there: nothing of them may stay.
    if (step == 2) gradient[4321] = std::numeric_limits<float>::infinity();
    if (step == 3) statistics[36] = std::numeric_limits<float>::quiet_NaN();
    Put(gradient, statistics);
    ASSERT_EQ(encoder_->Give(GetParam().clip_norm, pushes), absl::OkStatus());
    const auto norm = encoder_->Norm();
    ASSERT_TRUE(norm.ok()) << norm.status();
    if (step == 2 || step == 3) {
      EXPECT_FALSE(norm->finite);
      continue;
    }
    EXPECT_TRUE(norm->finite);
    EXPECT_EQ(norm->norm, OnHost(gradient, pushes, &expected));
    for (size_t i = 0; i < segments_.size(); ++i) {
      const auto bytes = encoder_->Bytes(i);
      ASSERT_TRUE(bytes.ok()) << bytes.status();
      ASSERT_EQ(std::vector<uint8_t>(bytes->begin(), bytes->end()), expected[i]) << "segment " << i;
      if (host_half_ == nullptr) continue;
      std::vector<float> momentum(segments_[i].elements);
      ASSERT_EQ(encoder_->ReadMomentum(i, momentum.data()), absl::OkStatus());
      EXPECT_EQ(Bits(momentum), Bits(host_half_->momentum().subspan(segments_[i].begin,
                                                                    segments_[i].elements)));
    }
  }
  std::vector<float> size = Numbers(15, kTrainable);
  for (float& g : size) g *= 5;
  if (host_half_ != nullptr) size.assign(host_half_->momentum().begin(), host_half_->momentum().end());
  const double error = SumOfSquares(error_.data(), kTrainable);
  const auto ratio = encoder_->ErrorRatio();
  ASSERT_TRUE(ratio.ok()) << ratio.status();
  EXPECT_NEAR(*ratio, std::sqrt(error / SumOfSquares(size.data(), kTrainable)), 1e-9);
}

// Of a gradient of zeros only what was kept back goes out.
TEST_P(CudaStepEncoderTest, AClearedGradientIsOfZeros) {
  std::vector<std::vector<uint8_t>> expected;
  for (uint64_t step = 1; step <= 2; ++step) {
    const std::vector<SegmentPush> pushes = Pushes(step);
    const std::vector<float> gradient =
        step == 1 ? Numbers(3, kTrainable) : std::vector<float>(kTrainable);
    if (step == 1) {
      Put(gradient, Numbers(2, kStatistics));
    } else {
      ASSERT_EQ(encoder_->ClearGradient(), absl::OkStatus());
    }
    ASSERT_EQ(encoder_->Give(std::nullopt, pushes), absl::OkStatus());
    EXPECT_TRUE(encoder_->Norm()->finite);
    ASSERT_LT(encoder_->Norm()->norm, GetParam().clip_norm.value_or(1000));
    OnHost(gradient, pushes, &expected);
    for (size_t i = 0; i < segments_.size(); ++i) {
      const auto bytes = encoder_->Bytes(i);
      ASSERT_TRUE(bytes.ok()) << bytes.status();
      ASSERT_EQ(std::vector<uint8_t>(bytes->begin(), bytes->end()), expected[i]) << "segment " << i;
    }
  }
}

TEST_P(CudaStepEncoderTest, WhatDoesNotFitIsRefused) {
  StepEncoderOptions options = {.segments = segments_, .codec = &codec(), .rule = GetParam().rule};
  options.segments[2].begin += 1;
  EXPECT_EQ(memory_->MakeEncoder(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.segments = segments_;
  options.segments[1].blocks[0].dead = true;
  EXPECT_EQ(memory_->MakeEncoder(options).status().code(),
            GetParam().codec == "none" ? absl::StatusCode::kOk : absl::StatusCode::kUnimplemented);
  EXPECT_FALSE(encoder_->Give(std::nullopt, {}).ok());
}

}  // namespace
}  // namespace foreshard::kernels::cuda
