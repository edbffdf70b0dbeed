// Segments and codecs: payloads that lie are refused by name, random choices are those of
// the push's key, tensors in full precision stay so.
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "gmock/gmock.h"
#include "tests/server/segment_harness.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kElements = 450;  // five blocks, four of 100

std::vector<float> Gradient(uint64_t key) {
  std::vector<float> gradient(kElements);
  for (size_t k = 0; k < gradient.size(); ++k) gradient[k] = static_cast<float>(RandomNormal(4, key, k));
  return gradient;
}

// A push whose payload is changed on its way.
struct Lie {
  const char* name;
  CodecId codec;
  CodecSettings settings;
  std::function<void(std::vector<uint8_t>&)> change;
  const char* expected;
};

template <typename T>
void Put(std::vector<uint8_t>& bytes, uint64_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

void PrintTo(const Lie& lie, std::ostream* out) { *out << lie.name; }

class PayloadThatLies : public ::testing::TestWithParam<Lie> {};

TEST_P(PayloadThatLies, IsRefusedWithSegmentWorkerAndBlock) {
  const Lie& lie = GetParam();
  SegmentOptions options = MakeSegmentOptions("asgd", kElements, 2);
  options.plan.id = 6;
  options.plan.begin = 9000;
  options.codec = lie.settings;
  SegmentHarness harness(options, 2);
  harness.Push(1, Gradient(0), 0, lie.codec);
  ASSERT_TRUE(harness.status.ok()) << harness.status;
  const std::string before = harness.segment->Save();
  std::vector<uint8_t> bytes = harness.encoded;
  lie.change(bytes);
  const ByteSpan piece(bytes);
  const Event push = {.kind = EventKind::kPush,
                      .codec = static_cast<uint8_t>(lie.codec),
                      .worker = 1,
                      .incarnation = 1,
                      .sequence = 2,
                      .held_version = 1,
                      .payload = {absl::MakeConstSpan(&piece, 1), piece.size()}};
  const absl::Status status = harness.segment->CheckPayload(push);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("segment 6: "), HasSubstr(lie.expected)));
  EXPECT_FALSE(harness.segment->Replay(push).ok());
  EXPECT_EQ(harness.segment->Save(), before);
}

constexpr CodecSettings kTenth = {.fraction = 0.1f, .bits = 3};
// Where a block begins in the payload.
uint64_t At(CodecId id, uint64_t block) { return block * CodecSet(kTenth).Find(id)->BlockBytes(100); }
const float kNan = std::numeric_limits<float>::quiet_NaN();

INSTANTIATE_TEST_SUITE_P(
    Codecs, PayloadThatLies,
    ::testing::Values(
        Lie{"nan", CodecId::kNone, kTenth, [](auto& b) { Put(b, 4 * 223, kNan); },
            "worker 1 sent a value that is not finite, element 9223 of the parameter vector (block 2, codec none)"},
        Lie{"nan_fp16", CodecId::kFp16, kTenth, [](auto& b) { Put<uint16_t>(b, 2 * 449, 0x7c00); },
            "worker 1 sent a value that is not finite, element 9449 of the parameter vector (block 4, codec fp16)"},
        Lie{"nan_scale", CodecId::kOneBit, kTenth,
            [](auto& b) { Put(b, At(CodecId::kOneBit, 2), kNan); },
            "worker 1 sent a scale that is not finite, in the block from element 9200 of the parameter vector (block 2, codec one_bit)"},
        Lie{"negative_scale", CodecId::kOneBitMean, kTenth,
            [](auto& b) { Put(b, At(CodecId::kOneBitMean, 3), -1.0f); },
            "worker 1 sent a negative scale, in the block from element 9300"},
        Lie{"one_bit_padding", CodecId::kOneBit, kTenth,
            [](auto& b) { b[At(CodecId::kOneBit, 1) - 1] |= 0x80; },
            "sent padding bits that are not zero, in the block from element 9000"},
        Lie{"top_k_nan", CodecId::kTopK, kTenth,
            [](auto& b) {
              Put<uint16_t>(b, At(CodecId::kTopK, 1), 0);  // the first of ten indices
              Put(b, At(CodecId::kTopK, 1) + 20, kNan);
            },
            "sent a value that is not finite, element 9100 of the parameter vector (block 1, codec top_k)"},
        Lie{"top_k_range", CodecId::kTopK, kTenth,
            [](auto& b) { Put<uint16_t>(b, At(CodecId::kTopK, 2) + 18, 100); },
            "worker 1 sent an index out of range, in the block from element 9200 of the parameter vector (block 2, codec top_k)"},
        // Within a whole block, but not within the last one of 50.
        Lie{"top_k_short_block", CodecId::kTopK, kTenth,
            [](auto& b) { Put<uint16_t>(b, At(CodecId::kTopK, 4) + 8, 50); },
            "sent an index out of range, in the block from element 9400"},
        Lie{"top_k_duplicate", CodecId::kTopK, kTenth,
            [](auto& b) { std::memcpy(b.data() + 2, b.data(), 2); },
            "sent a duplicate index, in the block from element 9000"},
        Lie{"top_k_order", CodecId::kTopK, kTenth,
            [](auto& b) { std::swap_ranges(b.data(), b.data() + 2, b.data() + 2); },
            "sent indices that are not ascending, in the block from element 9000"},
        Lie{"random_k_nan", CodecId::kRandomK, kTenth,
            [](auto& b) { Put(b, At(CodecId::kRandomK, 3) + 12, -kNan); },
            "worker 1 sent a value that is not finite, element 93"},
        Lie{"quantized_scale", CodecId::kQuantized, kTenth,
            [](auto& b) { Put(b, At(CodecId::kQuantized, 2), -0.5f); }, "sent a negative scale"},
        Lie{"quantized_tiny", CodecId::kQuantized, kTenth,
            [](auto& b) { Put(b, At(CodecId::kQuantized, 2), 0x1p-97f); },
            "sent a scale out of range, in the block from element 9200"},
        Lie{"quantized_level", CodecId::kQuantized, kTenth,
            [](auto& b) { b[At(CodecId::kQuantized, 2) + 4] |= 7; },
            "sent a level out of range, in the block from element 9200"},
        Lie{"quantized_padding", CodecId::kQuantized, kTenth,
            [](auto& b) { b[At(CodecId::kQuantized, 1) - 1] |= 0x10; }, "sent padding bits"},
        Lie{"short", CodecId::kTopK, kTenth, [](auto& b) { b.pop_back(); },
            "a payload of 269 bytes; 450 elements as top_k are 270"},
        Lie{"long", CodecId::kRandomK, kTenth, [](auto& b) { b.push_back(0); },
            "a payload of 181 bytes; 450 elements as random_k are 180"},
        // As with other settings.
        Lie{"other_bits", CodecId::kQuantized, kTenth, [](auto& b) { b.resize(5 * 4 + 4 * 50 + 25); },
            "450 elements as quantized are"}),
    [](const auto& info) { return std::string(info.param.name); });

// What of theta a push of ones moved, by element.
std::set<uint64_t> Moved(SegmentHarness& harness, const std::function<void()>& push) {
  const std::vector<float> before(harness.segment->theta().begin(), harness.segment->theta().end());
  push();
  EXPECT_TRUE(harness.status.ok()) << harness.status;
  std::set<uint64_t> moved;
  for (size_t k = 0; k < before.size(); ++k) {
    if (harness.segment->theta()[k] != before[k]) moved.insert(k);
  }
  return moved;
}

TEST(RandomK, EveryPushOfEveryWorkerHasOtherElements) {
  SegmentOptions options = MakeSegmentOptions("asgd", kElements, 3);
  options.codec = kTenth;
  options.seed = 11;
  SegmentHarness harness(options, 3);
  const std::vector<float> ones(kElements, 1);
  std::set<std::set<uint64_t>> all;
  std::set<uint64_t> ever;
  for (uint64_t step = 0; step < 60; ++step) {
    const std::set<uint64_t> moved = Moved(harness, [&] {
      harness.Push(static_cast<uint32_t>(step % 3), ones, step, CodecId::kRandomK);
    });
    EXPECT_EQ(moved.size(), 45u);
    all.insert(moved);
    ever.insert(moved.begin(), moved.end());
  }
  EXPECT_EQ(all.size(), 60u);
  EXPECT_GT(ever.size(), kElements * 99 / 100);
}

SegmentOptions RoundOptions(uint32_t workers) {
  SegmentOptions options = MakeSegmentOptions("ssgd", kElements, workers, 0.5f);
  options.rule.momentum = 0;
  options.synchronous = true;
  options.members = workers;
  options.codec = kTenth;
  options.seed = 12;
  return options;
}

// Pushes the gradients of one round and closes it.
void PushRound(SegmentHarness& harness, uint64_t round, CodecId codec,
               const std::vector<std::vector<float>>& gradients) {
  for (uint32_t w = 0; w < gradients.size(); ++w) {
    harness.Send({.kind = EventKind::kPush, .codec = static_cast<uint8_t>(codec), .worker = w,
                  .incarnation = 1, .sequence = round + 1, .ticket = round, .argument = round},
                 gradients[w]);
    ASSERT_TRUE(harness.status.ok()) << harness.status;
  }
  harness.Send({.kind = EventKind::kRoundClosed, .argument = round}, {});
}

// In a round all workers send the same elements, whose mean is taken exactly.
TEST(RandomK, WorkersOfARoundSendTheSameElements) {
  SegmentHarness harness(RoundOptions(3), 3);
  std::set<std::set<uint64_t>> all;
  for (uint64_t round = 0; round < 10; ++round) {
    const std::vector<float> before(harness.segment->theta().begin(), harness.segment->theta().end());
    const std::vector<std::vector<float>> gradients = {Gradient(3 * round), Gradient(3 * round + 1),
                                                       Gradient(3 * round + 2)};
    const std::set<uint64_t> moved =
        Moved(harness, [&] { PushRound(harness, round, CodecId::kRandomK, gradients); });
    EXPECT_EQ(moved.size(), 45u);
    for (const uint64_t k : moved) {
      const double mean = (double{gradients[0][k]} + gradients[1][k] + gradients[2][k]) / 3;
      EXPECT_NEAR(harness.segment->theta()[k], before[k] - 0.5 * mean, 1e-5);
    }
    all.insert(moved);
  }
  EXPECT_EQ(all.size(), 10u);
}

// Stochastic rounding of many workers averages out: their keys are their own.
TEST(Quantized, RoundingOfAWorkersPeersIsIndependent) {
  constexpr uint32_t kWorkers = 16;
  SegmentHarness one(RoundOptions(1), 1), many(RoundOptions(kWorkers), kWorkers);
  const auto error = [&](SegmentHarness& harness, uint32_t workers) {
    double squares = 0;
    for (uint64_t round = 0; round < 10; ++round) {
      const std::vector<float> before(harness.segment->theta().begin(), harness.segment->theta().end());
      const std::vector<float> gradient = Gradient(round);
      PushRound(harness, round, CodecId::kQuantized, std::vector<std::vector<float>>(workers, gradient));
      for (size_t k = 0; k < kElements; ++k) {
        squares += std::pow(before[k] - 0.5 * gradient[k] - harness.segment->theta()[k], 2);
      }
    }
    return squares;
  };
  EXPECT_NEAR(error(many, kWorkers) / error(one, 1), 1.0 / kWorkers, 0.2 / kWorkers);
}

// Under every codec, for pushes and replies that are plain values.
TEST(FullPrecision, StaysInPushesAndReplies) {
  SegmentOptions options = MakeSegmentOptions("asgd", kElements, 1, 0.5f);
  options.codec = kTenth;
  options.plan.blocks[1].full = options.plan.blocks[4].full = true;
  const auto full = [](size_t k) { return (k >= 100 && k < 200) || k >= 400; };
  for (int codec = 0; codec <= 7; ++codec) {
    for (const CodecId reply_codec : {CodecId::kNone, CodecId::kFp16, CodecId::kBf16}) {
      SCOPED_TRACE("codec " + std::to_string(codec));
      SegmentHarness harness(options, 1);
      const std::vector<float> before = harness.workers[0].parameters;
      const std::vector<float> gradient = Gradient(5);
      harness.Push(0, gradient, 0, static_cast<CodecId>(codec), reply_codec);
      ASSERT_TRUE(harness.status.ok()) << harness.status;
      EXPECT_EQ(harness.reply.codec, reply_codec);
      size_t rounded = 0;
      for (size_t k = 0; k < kElements; ++k) {
        const float exact = before[k] - 0.5f * gradient[k];
        if (full(k)) {
          ASSERT_EQ(harness.workers[0].parameters[k], exact) << k;
        }
        rounded += harness.workers[0].parameters[k] != exact;
      }
      EXPECT_GE(rounded, codec == 0 && reply_codec == CodecId::kNone ? 0u : 100u);
    }
  }
}

}  // namespace
}  // namespace foreshard
