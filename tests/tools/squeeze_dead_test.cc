// Dead tensors in compressed rounds: nothing of them travels or is kept back, only weight decay
// moves them, and the others are as they would be alone.
#include <cstring>
#include <vector>

#include "gmock/gmock.h"
#include "tests/server/segment_records.h"
#include "tests/tools/squeeze_fleet.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kElements = 950;  // ten blocks, nine of 100
constexpr uint64_t kFoldRounds = 6;
const std::vector<size_t> kDead = {0, 4, 5, 9};

bool IsDead(uint64_t k) { return k < 100 || (k >= 400 && k < 600) || k >= 900; }

// `of_dead`: what the dead elements get.
std::vector<float> Gradient(uint64_t round, uint32_t worker, float of_dead = 0) {
  std::vector<float> gradient(kElements);
  for (uint64_t k = 0; k < kElements; ++k) {
    const auto draw = static_cast<float>(RandomNormal(6, round * 64 + worker, k));
    gradient[k] = IsDead(k) ? of_dead * draw : draw;
  }
  return gradient;
}

class DeadTensors : public ::testing::TestWithParam<std::tuple<CodecId, bool>> {
 protected:
  static SqueezeFleetOptions Options() {
    SqueezeFleetOptions options;
    options.codec = std::get<0>(GetParam());
    options.compress_gradients = std::get<1>(GetParam());
    options.elements = kElements;
    options.fold_rounds = kFoldRounds;
    options.dead_blocks = kDead;
    return options;
  }
  // A round to which all contribute, but worker 2 too late in every fifth, and in some folds;
  // worker 1 skips in every seventh.
  static void Round(SqueezeFleet* fleet, float of_dead) {
    const uint64_t round = fleet->segment->open_round();
    const bool frozen = fleet->segment->phase() == Phase::kFrozen;
    const bool late = frozen && (round % 5 == 3 || round % 4 == 3);
    const bool skip = frozen && round % 7 == 2;
    const auto contribute = [&](uint32_t w) {
      const std::vector<uint8_t> bytes = fleet->Encode(w, Gradient(round, w, of_dead));
      uint64_t alive = 0;
      const Codec& codec = *fleet->codecs.Find(fleet->sent_codec);
      for (const Block& block : fleet->plan.blocks) {
        if (block.dead && codec.id() != CodecId::kNone) continue;
        alive += BlockCodec(codec, block).BlockBytes(block.elements);
      }
      EXPECT_EQ(bytes.size(), alive);
      EXPECT_EQ(codec.id(), frozen && !fleet->segment->folds() ? fleet->options.codec : CodecId::kNone);
      fleet->Push(w, round, bytes);
    };
    contribute(0);
    if (skip) {
      fleet->Skip(1);
    } else {
      contribute(1);
    }
    if (late) {
      fleet->Absent(2);
      // Encoded as for this round, whatever the round after it may be.
      const std::vector<uint8_t> bytes = fleet->Encode(2, Gradient(round, 2, of_dead));
      fleet->Close();
      EXPECT_EQ(fleet->Push(2, round, bytes).result, Result::kLate);
    } else {
      contribute(2);
      fleet->Close();
      fleet->Fetch(2);
    }
    fleet->Fetch(0);
    fleet->Fetch(1);
    for (uint32_t w = 0; w < 3; ++w) {
      const SqueezeFleet::Worker& worker = fleet->workers[w];
      ASSERT_EQ(std::memcmp(worker.parameters.data(), fleet->segment->theta().data(),
                            kElements * sizeof(float)), 0) << "round " << round << ", worker " << w;
    }
    if (!frozen) return;
    for (uint64_t k = 0; k < kElements; ++k) {
      if (!IsDead(k)) continue;
      ASSERT_EQ(fleet->rule().error()[k], 0) << "round " << round << ", element " << k;
      ASSERT_EQ(fleet->rule().momentum()[k], 0) << "round " << round << ", element " << k;
      for (uint32_t w = 0; w < 3; ++w) {
        ASSERT_EQ(fleet->workers[w].error[k], 0) << "round " << round << ", element " << k;
        ASSERT_EQ(fleet->workers[w].replica->momentum()[k], 0) << "round " << round << ", element " << k;
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(EveryCodec, DeadTensors,
                         ::testing::Combine(::testing::Values(CodecId::kFp16, CodecId::kBf16, CodecId::kOneBit,
                                                              CodecId::kOneBitMean, CodecId::kTopK,
                                                              CodecId::kRandomK, CodecId::kQuantized),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           std::string name(CodecSet().Find(std::get<0>(info.param))->name());
                           std::erase(name, '_');
                           return name + (std::get<1>(info.param) ? "Gradients" : "Momenta");
                         });

TEST_P(DeadTensors, AreMovedByWeightDecayAlone) {
  for (const float weight_decay : {0.0f, 0.05f}) {
    SqueezeFleetOptions options = Options();
    options.weight_decay = weight_decay;
    SqueezeFleet fleet(options);
    std::vector<float> expected(fleet.segment->theta().begin(), fleet.segment->theta().end());
    while (fleet.segment->open_round() < 45) {
      Round(&fleet, 0);
      for (uint64_t k = 0; k < kElements; ++k) {
        if (!IsDead(k)) continue;
        if (weight_decay != 0) expected[k] -= options.eta * (weight_decay * expected[k]);
        ASSERT_EQ(fleet.segment->theta()[k], expected[k]) << "before round " << fleet.segment->open_round();
      }
    }
  }
}

// A tensor that was declared dead wrongly: what it gets after the freeze is dropped, and
// disturbs nobody.
TEST_P(DeadTensors, DropWhatTheyGetAfterAll) {
  SqueezeFleet fleet(Options()), quiet(Options());
  std::vector<float> before;
  while (fleet.segment->open_round() < 45) {
    const bool frozen = fleet.segment->phase() == Phase::kFrozen;
    if (!frozen) before.assign(fleet.segment->theta().begin(), fleet.segment->theta().end());
    Round(&fleet, 3);
    Round(&quiet, 0);
    for (uint64_t k = 0; k < kElements; ++k) {
      const float theta = fleet.segment->theta()[k];
      if (!IsDead(k)) {
        ASSERT_EQ(theta, quiet.segment->theta()[k]) << k;
      } else if (frozen) {
        ASSERT_EQ(theta, before[k]) << k;
      } else {
        // In full precision it is trained like all others.
        ASSERT_NE(theta, before[k]) << k;
      }
    }
    if (!frozen) before.assign(fleet.segment->theta().begin(), fleet.segment->theta().end());
  }
}

// The others are as in a segment of their own.
TEST_P(DeadTensors, LeaveTheOthersAsTheyWouldBeAlone) {
  if (std::get<0>(GetParam()) == CodecId::kRandomK || std::get<0>(GetParam()) == CodecId::kQuantized) {
    GTEST_SKIP() << "its random choices depend on a block's place";
  }
  SqueezeFleetOptions alone_options = Options();
  alone_options.dead_blocks = {};
  alone_options.elements = 600;
  SqueezeFleet fleet(Options()), alone(alone_options);
  const auto alive = [](absl::Span<const float> values) {
    std::vector<float> kept;
    for (uint64_t k = 0; k < kElements; ++k) {
      if (!IsDead(k)) kept.push_back(values[k]);
    }
    return kept;
  };
  ASSERT_EQ(alive(fleet.segment->theta()).size(), alone_options.elements);
  for (uint64_t round = 0; round < 30; ++round) {
    for (uint32_t w = 0; w < 3; ++w) {
      const std::vector<float> gradient = Gradient(round, w);
      fleet.Contribute(w, gradient);
      alone.Contribute(w, alive(gradient));
      ASSERT_EQ(alive(fleet.workers[w].error), alone.workers[w].error) << round;
    }
    fleet.Close();
    alone.Close();
    for (uint32_t w = 0; w < 3; ++w) {
      fleet.Fetch(w);
      alone.Fetch(w);
    }
    ASSERT_EQ(alive(fleet.rule().momentum()),
              std::vector<float>(alone.rule().momentum().begin(), alone.rule().momentum().end())) << round;
    ASSERT_EQ(alive(fleet.rule().error()),
              std::vector<float>(alone.rule().error().begin(), alone.rule().error().end())) << round;
    if (fleet.segment->phase() != Phase::kFrozen) continue;
    ASSERT_EQ(alive(fleet.rule().denominator()),
              std::vector<float>(alone.rule().denominator().begin(), alone.rule().denominator().end())) << round;
  }
}

// A segment of nothing else: contributions and results are no bytes, and rounds go on.
TEST(DeadSegment, GoesThroughItsRoundsWithoutBytes) {
  SqueezeFleetOptions options;
  options.elements = 250;
  options.dead_blocks = {0, 1, 2};
  options.fold_rounds = 4;
  options.weight_decay = 0.1f;
  SqueezeFleet fleet(options);
  std::vector<float> expected(fleet.segment->theta().begin(), fleet.segment->theta().end());
  std::string saved;
  size_t saved_at = 0;
  for (uint64_t round = 0; round < 20; ++round) {
    const bool fold = round == 9 || round == 13 || round == 17;
    ASSERT_EQ(fleet.segment->folds(), fold) << round;
    for (uint32_t w = 0; w < 3; ++w) {
      const std::vector<uint8_t> bytes = fleet.Encode(w, std::vector<float>(250));
      EXPECT_EQ(bytes.size(), round < 5 || fold ? 1000u : 0u);
      EXPECT_EQ(fleet.Push(w, round, bytes).result, Result::kPending);
      if (round == 11 && w == 1) {
        saved = fleet.segment->Save();
        saved_at = fleet.records.size();
      }
    }
    fleet.Close();
    for (uint32_t w = 0; w < 3; ++w) {
      fleet.Fetch(w);
      if (round > 5) {
        EXPECT_EQ(fleet.last_parts, fold ? kResultPart | kParametersPart : uint32_t{kResultPart});
        EXPECT_EQ(fleet.reply.bytes, fold ? 1000u : 0u);
      }
      EXPECT_EQ(fleet.workers[w].held_version, round + 1);
      for (uint64_t k = 0; w == 0 && k < 250; ++k) expected[k] -= options.eta * (0.1f * expected[k]);
      ASSERT_EQ(fleet.workers[w].parameters, expected) << round;
    }
    ASSERT_EQ(std::memcmp(fleet.segment->theta().data(), expected.data(), 1000), 0) << round;
  }
  EXPECT_EQ(fleet.segment->version(), 20u);
  // Said again, it is taken for what it is; with bytes it is refused.
  fleet.sent_codec = options.codec;
  fleet.Push(0, 20, {});
  ASSERT_TRUE(fleet.status.ok()) << fleet.status;
  --fleet.workers[0].sequence;
  EXPECT_EQ(fleet.Push(0, 20, {}).result, Result::kPending);
  fleet.Push(1, 20, std::vector<uint8_t>(1));
  EXPECT_THAT(std::string(fleet.status.message()), HasSubstr("a payload of 1 bytes; 250 elements as one_bit are 0"));

  const std::string end = fleet.segment->Save();
  for (const bool from_the_middle : {false, true}) {
    const auto copy = Segment::Create(fleet.segment_options).value();
    if (from_the_middle) {
      const absl::Status loaded = copy->Load(saved);
      ASSERT_TRUE(loaded.ok()) << loaded;
      EXPECT_TRUE(copy->Save() == saved);
    }
    ReplayRecords(std::string_view(fleet.records).substr(from_the_middle ? saved_at : 0), copy.get());
    EXPECT_TRUE(copy->Save() == end) << (from_the_middle ? "from the middle" : "from the start");
  }
}

// Between two rounds the state is restored with its result: who lacks just that one gets it.
TEST(DeadSegment, ARestoredOneStillLeadsOnByItsResult) {
  SqueezeFleetOptions options;
  options.elements = 100;
  options.dead_blocks = {0};
  SqueezeFleet fleet(options);
  const auto round = [&] {
    for (uint32_t w = 0; w < 3; ++w) fleet.Contribute(w, std::vector<float>(100));
    fleet.Close();
  };
  const auto fetch = [&] {
    for (uint32_t w = 0; w < 3; ++w) fleet.Fetch(w);
  };
  const auto restart = [&] {
    auto copy = Segment::Create(fleet.segment_options).value();
    const absl::Status loaded = copy->Load(fleet.segment->Save());
    ASSERT_TRUE(loaded.ok()) << loaded;
    fleet.segment = std::move(copy);
  };
  for (uint64_t k = 0; k < options.freeze_round; ++k) {
    round();
    if (k + 1 == options.freeze_round) restart();
    fetch();
  }
  // No result leads over the freeze.
  EXPECT_EQ(fleet.last_parts, uint32_t{kParametersPart | kMomentumPart | kDenominatorPart});
  round();
  restart();
  fetch();
  EXPECT_EQ(fleet.last_parts, uint32_t{kResultPart});
}

}  // namespace
}  // namespace foreshard
