// Replies that carry differences: that worker and server never disagree about what the
// worker holds, whatever is lost, repeated or late.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/vector_math.h"
#include "tests/server/segment_harness.h"
#include "tests/server/segment_records.h"

namespace foreshard {
namespace {

constexpr uint64_t kElements = 350;

// The codecs whose replies carry differences.
std::vector<CodecId> DifferenceCodecs() {
  std::vector<CodecId> codecs;
  const CodecSet all;
  for (const std::string_view name : CodecNames()) {
    if (!all.Find(name)->replies_carry_values()) codecs.push_back(all.Find(name)->id());
  }
  return codecs;
}

SegmentOptions DeltaOptions(const std::string& rule, uint32_t workers, float eta = 0.02f) {
  SegmentOptions options = MakeSegmentOptions(rule, kElements, workers, eta);
  options.keep_all_held = true;
  options.seed = 41;
  options.plan.id = 3;
  return options;
}

bool SameBits(absl::Span<const float> a, absl::Span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// What the worker holds is what the server takes it to hold.
bool Agree(const SegmentHarness& harness, uint32_t w) {
  return SameBits(harness.segment->held(w), harness.workers[w].parameters);
}

Outcome PushOne(SegmentHarness& harness, uint32_t w, uint64_t ticket, CodecId reply = CodecId::kOneBit) {
  return harness.Push(w, QuadraticGradient(harness.workers[w].parameters, ticket), ticket,
                      CodecId::kNone, reply);
}

void ExpectReplayAgrees(const SegmentHarness& harness, const std::string& saved, size_t saved_at) {
  for (const bool from_the_middle : {false, true}) {
    const auto copy = Segment::Create(harness.options).value();
    if (from_the_middle) {
      ASSERT_TRUE(copy->Load(saved).ok());
    }
    ReplayRecords(std::string_view(harness.records).substr(from_the_middle ? saved_at : 0), copy.get());
    EXPECT_TRUE(copy->Save() == harness.segment->Save()) << from_the_middle;
  }
}

// A network between the harness's workers and its segment that loses answers, has
// messages come twice and copies of them much later.
class LossyNetwork {
 public:
  LossyNetwork(const SegmentOptions& options, uint32_t workers, uint64_t seed)
      : harness(options, workers), seed_(seed) {}

  uint64_t Draw(uint64_t below) { return RandomBits(30, seed_, drawn_++) % below; }

  // Until an answer has reached the worker: whatever is sent, it then agrees with the
  // server.
  Outcome Exchange(const Event& event, const std::vector<float>& values) {
    const uint32_t w = event.worker;
    Outcome outcome;
    for (int tries = 0;; ++tries) {
      outcome = harness.Send(event, values);
      EXPECT_TRUE(harness.status.ok()) << harness.status;
      const uint64_t fate = Draw(12);
      if (fate == 0) late_.push_back({event, values});
      if (fate < 10 || tries == 3) break;
      ++lost;
      // The others go on before it is said again.
      if (fate == 10 && between != nullptr) between(w);
    }
    harness.Take(w, outcome);
    discards += outcome.result == Result::kDiscarded;
    if (harness.reply.bytes > 0) {
      deltas += harness.reply.delta;
      ++replies;
      EXPECT_TRUE(Agree(harness, w)) << "worker " << w << " at version " << outcome.version;
    }
    return outcome;
  }

  void Push(uint32_t w, uint64_t ticket, CodecId codec, CodecId reply_codec) {
    SegmentHarness::Worker& worker = harness.workers[w];
    std::vector<float> gradient = QuadraticGradient(worker.parameters, drawn_++);
    if (worker.half != nullptr) {
      const float eta = harness.options.schedule.At(std::max(ticket, harness.segment->clock()));
      worker.half->Transform(harness.options.plan.blocks, 0, eta,
                             worker.last_eta == 0 ? eta : worker.last_eta, worker.parameters.data(),
                             gradient.data());
      worker.last_eta = eta;
    }
    const Outcome outcome =
        Exchange({.kind = EventKind::kPush, .codec = static_cast<uint8_t>(codec),
                  .reply_codec = static_cast<uint8_t>(reply_codec), .worker = w,
                  .incarnation = worker.incarnation, .sequence = ++worker.sequence, .ticket = ticket,
                  .held_version = worker.held_version},
                 gradient);
    worker.share_ticket = outcome.clock;
  }

  void Skip(uint32_t w, uint64_t ticket, CodecId reply_codec) {
    SegmentHarness::Worker& worker = harness.workers[w];
    Exchange({.kind = EventKind::kSkip, .reply_codec = static_cast<uint8_t>(reply_codec), .worker = w,
              .incarnation = worker.incarnation, .sequence = ++worker.sequence, .ticket = ticket,
              .held_version = worker.held_version},
             {});
  }

  void Read(uint32_t w, CodecId reply_codec) {
    const SegmentHarness::Worker& worker = harness.workers[w];
    Exchange({.kind = EventKind::kRead, .reply_codec = static_cast<uint8_t>(reply_codec), .worker = w,
              .incarnation = worker.incarnation, .sequence = worker.sequence,
              .held_version = worker.held_version},
             {});
  }

  // The worker's momentum, or the question whether all of it is there.
  Outcome Repair(uint32_t w, uint64_t step, CodecId reply_codec) {
    SegmentHarness::Worker& worker = harness.workers[w];
    std::vector<float> momentum;
    if (worker.last_eta != 0 && worker.share_ticket < step) {
      momentum.assign(worker.half->momentum().begin(), worker.half->momentum().end());
    }
    const Outcome outcome =
        Exchange({.kind = EventKind::kLearningRateRepair, .reply_codec = static_cast<uint8_t>(reply_codec),
                  .worker = w, .incarnation = worker.incarnation, .ticket = step,
                  .held_version = worker.held_version},
                 momentum);
    if (!momentum.empty()) {
      worker.share_ticket = step;
      worker.last_eta = harness.options.schedule.At(step);
    }
    return outcome;
  }

  // A copy that nobody waits for any more.
  void DeliverLate() {
    if (late_.empty()) return;
    const size_t which = Draw(late_.size());
    const auto [event, values] = std::move(late_[which]);
    late_.erase(late_.begin() + static_cast<int64_t>(which));
    harness.Send(event, values);
    if (!harness.status.ok()) {
      EXPECT_TRUE(absl::IsAborted(harness.status) || absl::IsFailedPrecondition(harness.status))
          << harness.status;
    }
    ++late;
  }

  SegmentHarness harness;
  std::function<void(uint32_t waiting)> between;
  uint64_t deltas = 0, replies = 0, lost = 0, late = 0, discards = 0;

 private:
  const uint64_t seed_;
  uint64_t drawn_ = 0;
  std::vector<std::pair<Event, std::vector<float>>> late_;
};

class DifferenceReplies : public ::testing::TestWithParam<std::string_view> {};

// The heart of it: thousands of exchanges under every rule.
TEST_P(DifferenceReplies, WorkerAndServerAgreeWhateverIsLostRepeatedOrLate) {
  const RuleTraits& traits = *FindRule(GetParam());
  constexpr uint32_t kWorkers = 4;
  uint64_t seed = 0;
  for (const CodecId reply_codec : DifferenceCodecs()) {
    SegmentOptions options = DeltaOptions(std::string(traits.name), kWorkers);
    options.plan.blocks = {{0, 100, true}, {100, 1, true}, {101, 2, false}, {103, 97, false, true},
                           {200, 100, true}, {300, 50, true}};
    if (!traits.worker_half) options.delay_threshold = 6;
    LossyNetwork network(options, kWorkers, ++seed);
    SegmentHarness& harness = network.harness;
    uint64_t ticket = 0;
    network.between = [&](uint32_t waiting) {
      if (network.Draw(4) == 0) {
        harness.Send({.kind = EventKind::kExpire, .worker = waiting,
                      .incarnation = harness.workers[waiting].incarnation}, {});
        return;
      }
      const auto other = static_cast<uint32_t>((waiting + 1 + network.Draw(kWorkers - 1)) % kWorkers);
      PushOne(harness, other, ticket++, reply_codec);
      EXPECT_TRUE(Agree(harness, other));
    };
    std::string saved;
    size_t saved_at = 0;
    for (uint64_t step = 0; step < 2500; ++step) {
      const auto w = static_cast<uint32_t>(network.Draw(kWorkers));
      SegmentHarness::Worker& worker = harness.workers[w];
      if (step == 1200) {
        saved = harness.segment->Save();
        saved_at = harness.records.size();
      }
      const uint64_t choice = network.Draw(40);
      if (choice == 0) {
        network.Skip(w, ticket++, reply_codec);
      } else if (choice == 1) {
        network.Read(w, reply_codec);
      } else if (choice == 2) {
        harness.Send({.kind = EventKind::kExpire, .worker = w, .incarnation = worker.incarnation}, {});
      } else if (choice == 3) {
        ++worker.incarnation;
        worker.sequence = 0;
        harness.Join(w);
        ASSERT_TRUE(Agree(harness, w));
      } else if (choice == 4) {
        for (const ReadMode mode : {ReadMode::kReaderMaster, ReadMode::kReaderLookahead}) {
          harness.Send({.kind = EventKind::kRead, .reply_codec = static_cast<uint8_t>(reply_codec),
                        .argument = static_cast<uint64_t>(mode)}, {});
          ASSERT_EQ(harness.reply.codec, CodecId::kNone);
        }
      } else if (choice < 8) {
        network.DeliverLate();
      } else {
        const CodecId push = choice % 2 == 0 ? CodecId::kOneBit : CodecId::kNone;
        network.Push(w, ticket++, push, reply_codec);
      }
      ASSERT_FALSE(HasFailure()) << traits.name << ", step " << step;
    }
    EXPECT_EQ(network.discards > 0, options.delay_threshold.has_value());
    EXPECT_GT(network.lost, 100u);
    EXPECT_GT(network.late, 50u);
    EXPECT_GT(harness.resends, 100u);
    EXPECT_GT(network.deltas, network.replies / 2) << traits.name;
    ExpectReplayAgrees(harness, saved, saved_at);
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, DifferenceReplies, ::testing::ValuesIn([] {
                           std::vector<std::string_view> names;
                           for (const RuleTraits& traits : Rules()) {
                             if (!traits.synchronous && !traits.elastic) names.push_back(traits.name);
                           }
                           return names;
                         }()),
                         [](const auto& info) { return std::string(info.param); });

// Repairs change what is sent at one and the same version.
TEST(SegmentReplies, RepairsAreInFullPrecisionAndSettledByTheNextPush) {
  constexpr uint32_t kWorkers = 3;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SegmentOptions options = DeltaOptions("dana_slim", kWorkers);
    options.schedule.decay = Decay::kStep;
    options.schedule.decay_epochs = {1, 2, 3, 4};
    options.schedule.decay_factor = 0.5;
    options.schedule.batches_per_epoch = 30;
    LossyNetwork network(options, kWorkers, seed);
    SegmentHarness& harness = network.harness;
    const std::vector<uint64_t> steps = options.schedule.Steps();
    for (uint64_t ticket = 0; ticket < 150; ++ticket) {
      if (const uint64_t step = NewestStep(steps, ticket); step == ticket && step > 0) {
        for (int turn = 0; turn < 2; ++turn) {
          for (uint32_t w = 0; w < kWorkers; ++w) {
            const Outcome outcome = network.Repair(w, step, CodecId::kOneBit);
            if (turn == 0) continue;
            EXPECT_EQ(outcome.result, Result::kCurrent);
            EXPECT_FALSE(harness.reply.delta);
          }
        }
      }
      network.Push(static_cast<uint32_t>(network.Draw(kWorkers)), ticket, CodecId::kOneBit, CodecId::kOneBit);
      if (network.Draw(5) == 0) network.DeliverLate();
      ASSERT_FALSE(HasFailure()) << "seed " << seed << " ticket " << ticket;
    }
    EXPECT_GT(network.deltas, 50u);
    EXPECT_GT(network.late, 0u);
  }
}

TEST(SegmentReplies, ADuplicateIsAnsweredInFullAndSoIsTheNextPush) {
  SegmentHarness harness(DeltaOptions("dana_zero", 2), 2);
  PushOne(harness, 0, 0);
  EXPECT_TRUE(harness.reply.delta);
  EXPECT_EQ(harness.reply.codec, CodecId::kOneBit);
  EXPECT_EQ(harness.reply.delta_base, 0u);
  EXPECT_LT(harness.reply.bytes, kElements * sizeof(float) / 8);
  const std::vector<float> first = harness.workers[0].parameters;
  --harness.workers[0].sequence;
  EXPECT_EQ(PushOne(harness, 0, 0).result, Result::kDuplicate);
  EXPECT_FALSE(harness.reply.delta);
  // It has the same version as the first answer and other numbers: had the worker gone on
  // from the first one, nobody would know.
  EXPECT_EQ(harness.workers[0].held_version, 1u);
  EXPECT_FALSE(SameBits(harness.workers[0].parameters, first));
  harness.workers[0].parameters = first;
  PushOne(harness, 0, 1);
  EXPECT_FALSE(harness.reply.delta);
  EXPECT_TRUE(Agree(harness, 0));
  PushOne(harness, 0, 2);
  EXPECT_TRUE(harness.reply.delta);
  EXPECT_EQ(harness.reply.delta_base, 2u);
  // Where others have pushed in between, the version says what it holds.
  --harness.workers[0].sequence;
  PushOne(harness, 1, 3);
  EXPECT_EQ(PushOne(harness, 0, 2).result, Result::kDuplicate);
  PushOne(harness, 0, 4);
  EXPECT_TRUE(harness.reply.delta);
  EXPECT_TRUE(Agree(harness, 0));
}

// Expired for its silence, and made to join again by a copy of what it said long ago.
TEST(SegmentReplies, ACopyThatComesAfterTheLeaseLeavesTheSlotUnsure) {
  SegmentHarness harness(DeltaOptions("dana_zero", 2), 2);
  PushOne(harness, 0, 0);
  ASSERT_TRUE(harness.reply.delta);
  const SegmentHarness::Worker& worker = harness.workers[0];
  harness.Send({.kind = EventKind::kExpire, .worker = 0, .incarnation = 1}, {});
  const Outcome late = harness.Send({.kind = EventKind::kPush, .worker = 0, .incarnation = 1,
                                     .sequence = 1, .held_version = 0},
                                    std::vector<float>(kElements, 1));
  EXPECT_EQ(late.result, Result::kDuplicate);
  EXPECT_EQ(late.version, worker.held_version);
  EXPECT_FALSE(Agree(harness, 0));
  PushOne(harness, 0, 1);
  EXPECT_FALSE(harness.reply.delta);
  EXPECT_TRUE(Agree(harness, 0));
  PushOne(harness, 0, 2);
  EXPECT_TRUE(harness.reply.delta);
}

TEST(SegmentReplies, AnUnknownVersionARejoinAndAReadAreAnsweredInFull) {
  SegmentHarness harness(DeltaOptions("asgd", 2), 2);
  PushOne(harness, 0, 0);
  PushOne(harness, 0, 1);
  ASSERT_TRUE(harness.reply.delta);
  harness.workers[0].held_version = 1;
  PushOne(harness, 0, 2);
  EXPECT_FALSE(harness.reply.delta);
  PushOne(harness, 0, 3);
  EXPECT_TRUE(harness.reply.delta);

  harness.Send({.kind = EventKind::kExpire, .worker = 0, .incarnation = 1}, {});
  PushOne(harness, 0, 4);
  EXPECT_FALSE(harness.reply.delta);
  PushOne(harness, 0, 5);
  EXPECT_TRUE(harness.reply.delta);

  const Event read = {.kind = EventKind::kRead, .reply_codec = static_cast<uint8_t>(CodecId::kOneBit),
                      .worker = 0, .incarnation = 1, .held_version = harness.workers[0].held_version};
  PushOne(harness, 1, 6);
  harness.Take(0, harness.Send(read, {}));
  EXPECT_FALSE(harness.reply.delta);
  EXPECT_TRUE(Agree(harness, 0));
  // At a version of its own it leaves no doubt; read twice at one version it does.
  PushOne(harness, 0, 7);
  EXPECT_TRUE(harness.reply.delta);
  harness.Take(0, harness.Send(read, {}));
  PushOne(harness, 0, 8);
  EXPECT_FALSE(harness.reply.delta);

  ++harness.workers[0].incarnation;
  harness.workers[0].sequence = 0;
  harness.Join(0);
  PushOne(harness, 0, 9);
  EXPECT_TRUE(harness.reply.delta);
  EXPECT_TRUE(Agree(harness, 0));
}

TEST(SegmentReplies, SkipsAndDiscardsCarryDifferencesWhereOthersHavePushed) {
  SegmentOptions options = DeltaOptions("dana_zero", 2);
  options.delay_threshold = 1;
  SegmentHarness harness(options, 2);
  for (uint64_t t = 0; t < 3; ++t) PushOne(harness, 0, t);
  EXPECT_EQ(PushOne(harness, 1, 3).result, Result::kDiscarded);
  EXPECT_TRUE(harness.reply.delta);
  EXPECT_TRUE(Agree(harness, 1));
  const auto skip = [&](uint64_t ticket) {
    SegmentHarness::Worker& worker = harness.workers[1];
    const Outcome outcome =
        harness.Send({.kind = EventKind::kSkip, .reply_codec = static_cast<uint8_t>(CodecId::kOneBit),
                      .worker = 1, .incarnation = 1, .sequence = ++worker.sequence, .ticket = ticket,
                      .held_version = worker.held_version},
                     {});
    EXPECT_EQ(outcome.result, Result::kSkipped);
    harness.Take(1, outcome);
    EXPECT_TRUE(Agree(harness, 1));
  };
  // At the version that it holds already there is nothing for a difference to go by.
  skip(4);
  EXPECT_FALSE(harness.reply.delta);
  PushOne(harness, 0, 5);
  skip(6);
  EXPECT_FALSE(harness.reply.delta);  // it was not sure
  PushOne(harness, 0, 7);
  skip(8);
  EXPECT_TRUE(harness.reply.delta);
}

TEST(SegmentReplies, OnlyWhereAllOfXIsKeptAndNotInRoundsOrForStatistics) {
  SegmentOptions options = DeltaOptions("asgd", 1);
  options.keep_all_held = false;
  SegmentHarness sampled(options, 1);
  PushOne(sampled, 0, 0);
  EXPECT_EQ(sampled.reply.codec, CodecId::kNone);

  options = DeltaOptions("asgd", 1);
  options.plan.kind = TensorKind::kStatistic;
  SegmentHarness statistics(options, 1);
  PushOne(statistics, 0, 0);
  EXPECT_EQ(statistics.reply.codec, CodecId::kNone);

  options = DeltaOptions("ssgd", 1);
  options.synchronous = true;
  options.members = 1;
  SegmentHarness rounds(options, 1);
  PushOne(rounds, 0, 0);
  rounds.Send({.kind = EventKind::kRoundClosed}, {});
  rounds.Send({.kind = EventKind::kRead, .reply_codec = static_cast<uint8_t>(CodecId::kOneBit),
               .worker = 0, .incarnation = 1, .held_version = rounds.workers[0].held_version},
              {});
  ASSERT_TRUE(rounds.status.ok());
  EXPECT_GT(rounds.reply.bytes, 0u);
  EXPECT_EQ(rounds.reply.codec, CodecId::kNone);
}

// What a codec loses comes with later replies: nothing moves any more, and the worker
// still gets there.
TEST(SegmentReplies, TheErrorFeedsBackByItself) {
  SegmentHarness harness(DeltaOptions("asgd", 2, 1.0f), 2);
  for (uint64_t t = 0; t < 5; ++t) PushOne(harness, 1, t, CodecId::kNone);
  const std::vector<float> theta(harness.segment->theta().begin(), harness.segment->theta().end());
  const std::vector<float> nothing(kElements);
  double last = RelativeDifference(theta, harness.workers[0].parameters);
  EXPECT_GT(last, 0.1);
  const double first = last;
  for (uint64_t t = 5; t < 105; ++t) {
    harness.Push(0, nothing, t, CodecId::kNone, CodecId::kOneBitMean);
    const double now = RelativeDifference(theta, harness.workers[0].parameters);
    ASSERT_LE(now, last) << t;  // mean |c| contracts
    last = now;
  }
  EXPECT_LT(last, 0.01 * first);
}

// Gap and surprise are of what the worker really computed its gradient at.
TEST(SegmentReplies, MeasuresAreOfWhatTheWorkerHolds) {
  SegmentHarness harness(DeltaOptions("dana_zero", 3), 3);
  const auto read = [&](ReadMode mode) {
    harness.Send({.kind = EventKind::kRead, .argument = static_cast<uint64_t>(mode)}, {});
    std::vector<float> values(kElements);
    std::memcpy(values.data(), harness.buffer.data(), kElements * sizeof(float));
    return values;
  };
  for (uint64_t t = 0; t < 60; ++t) {
    const uint32_t w = t * t % 3;
    const std::vector<float> held = harness.workers[w].parameters;
    const std::vector<float> master = read(ReadMode::kReaderMaster);
    const std::vector<float> ahead = read(ReadMode::kReaderLookahead);
    const Outcome outcome = PushOne(harness, w, t);
    EXPECT_EQ(outcome.sampled_elements, kElements);
    const double gap = kernels::SumOfSquaredDifferences(master.data(), held.data(), kElements);
    const double surprise = kernels::SumOfSquaredDifferences(ahead.data(), held.data(), kElements);
    EXPECT_NEAR(outcome.gap_squares, gap, 1e-9 * gap) << t;
    EXPECT_NEAR(outcome.surprise_squares, surprise, 1e-9 * surprise) << t;
  }
}

TEST(SegmentReplies, BlocksInFullPrecisionCarryParameters) {
  SegmentOptions options = DeltaOptions("asgd", 1);
  options.plan.blocks = {{0, 200, true}, {200, 149, true, true}, {349, 1, true}};
  SegmentHarness harness(options, 1);
  for (uint64_t t = 0; t < 10; ++t) {
    PushOne(harness, 0, t);
    ASSERT_TRUE(harness.reply.delta);
    ASSERT_TRUE(Agree(harness, 0));
    const absl::Span<const float> theta = harness.segment->theta();
    EXPECT_TRUE(SameBits(theta.subspan(200), absl::MakeConstSpan(harness.workers[0].parameters).subspan(200)));
    EXPECT_FALSE(SameBits(theta.subspan(0, 200), absl::MakeConstSpan(harness.workers[0].parameters).subspan(0, 200)));
  }
}

// Codecs take finite numbers only; the worker hears of it in full precision.
TEST(SegmentReplies, ParametersThatRunAwayComeInFullPrecision) {
  SegmentHarness harness(DeltaOptions("asgd", 1, 1.0f), 1);
  PushOne(harness, 0, 0);
  std::vector<float> gradient(kElements, 0.1f);
  gradient[130] = -std::numeric_limits<float>::max();
  for (uint64_t t = 1; t < 4; ++t) {
    harness.Push(0, gradient, t, CodecId::kNone, CodecId::kOneBit);
    ASSERT_TRUE(harness.status.ok()) << harness.status;
    ASSERT_TRUE(Agree(harness, 0)) << t;
  }
  // The blocks that are finite went on; the whole came with the reply after.
  EXPECT_TRUE(std::isinf(harness.segment->theta()[130]));
  EXPECT_FALSE(harness.reply.delta);
  EXPECT_TRUE(std::isinf(harness.workers[0].parameters[130]));
  EXPECT_TRUE(SameBits(harness.segment->theta(), harness.workers[0].parameters));
}

TEST(SegmentReplies, MemoryCountsAllOfX) {
  SegmentOptions options = DeltaOptions("dana_slim", 4);
  options.plan.elements = 1 << 20;
  options.plan.blocks = CutBlocks(1 << 20, kMaxBlockElements);
  const double d = (1 << 20) * 4.0;
  EXPECT_NEAR(static_cast<double>(Segment::MemoryBytes(options)) / d, 1 + 4, 0.1);
}

}  // namespace
}  // namespace foreshard
