#include "server/segment.h"

#include <limits>

#include "gmock/gmock.h"

#include "common/core/catalogue.h"
#include "tests/server/segment_harness.h"
#include "tests/server/segment_records.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kElements = 450;

std::vector<float> Ones(uint64_t n, float value = 1) { return std::vector<float>(n, value); }

TEST(Segment, AsgdAppliesAndReplies) {
  SegmentHarness harness(MakeSegmentOptions("asgd", kElements, 2, 0.5f), 2);
  const std::vector<float> before = harness.workers[0].parameters;
  const Outcome outcome = harness.Push(0, Ones(kElements, 2), 7);
  EXPECT_EQ(outcome.result, Result::kApplied);
  EXPECT_EQ(outcome.version, 1u);
  EXPECT_EQ(outcome.clock, 7u);
  EXPECT_EQ(outcome.lag, 0u);
  for (size_t k = 0; k < kElements; ++k) EXPECT_FLOAT_EQ(harness.workers[0].parameters[k], before[k] - 1);
  EXPECT_EQ(harness.Push(1, Ones(kElements), 3).lag, 1u);
  EXPECT_EQ(harness.segment->clock(), 7u);  // a late ticket does not turn it back
}

TEST(Segment, ADuplicateIsAnsweredAndNotApplied) {
  SegmentHarness harness(MakeSegmentOptions("nag_asgd", kElements, 2), 2);
  harness.Push(0, Ones(kElements), 0);
  harness.Push(1, Ones(kElements), 1);
  const std::vector<float> theta(harness.segment->theta().begin(), harness.segment->theta().end());
  harness.workers[0].sequence = 0;  // says its first push again, in fp16
  const Outcome outcome = harness.Push(0, Ones(kElements), 0, CodecId::kNone, CodecId::kFp16);
  EXPECT_EQ(outcome.result, Result::kDuplicate);
  EXPECT_EQ(harness.reply.codec, CodecId::kNone);  // full precision
  EXPECT_EQ(outcome.version, 2u);
  EXPECT_EQ(std::vector<float>(harness.segment->theta().begin(), harness.segment->theta().end()), theta);
  EXPECT_EQ(harness.segment->version_sent(0), 2u);
  EXPECT_EQ(harness.Push(0, Ones(kElements), 2).lag, 0u);
}

TEST(Segment, APushBeyondTheDelayThresholdIsConsumedAndDiscarded) {
  SegmentOptions options = MakeSegmentOptions("dana_zero", kElements, 2);
  options.delay_threshold = 1;
  options.keep_all_held = true;
  SegmentHarness harness(options, 2);
  for (uint64_t ticket = 0; ticket < 2; ++ticket) harness.Push(0, Ones(kElements), ticket);
  const std::vector<float> theta(harness.segment->theta().begin(), harness.segment->theta().end());
  Outcome outcome = harness.Push(1, Ones(kElements), 5, CodecId::kOneBit, CodecId::kBf16);
  EXPECT_EQ(outcome.result, Result::kDiscarded);
  EXPECT_EQ(outcome.lag, 2u);
  EXPECT_EQ(outcome.version, 2u);
  EXPECT_EQ(outcome.clock, 5u);
  EXPECT_EQ(std::vector<float>(harness.segment->theta().begin(), harness.segment->theta().end()), theta);
  // The worker has fresh parameters, in the codec it wanted.
  EXPECT_EQ(harness.reply.codec, CodecId::kBf16);
  EXPECT_EQ(harness.segment->version_sent(1), 2u);
  EXPECT_EQ(harness.segment->held(1), absl::MakeConstSpan(harness.workers[1].parameters));
  // Said again: a duplicate. Its next push is not late.
  --harness.workers[1].sequence;
  EXPECT_EQ(harness.Push(1, Ones(kElements), 5).result, Result::kDuplicate);
  outcome = harness.Push(1, Ones(kElements), 6);
  EXPECT_EQ(outcome.result, Result::kApplied);
  EXPECT_EQ(outcome.lag, 0u);
  // A skip is one, whatever its lag.
  harness.Push(1, Ones(kElements), 7);
  EXPECT_EQ(harness.Send({.kind = EventKind::kSkip, .worker = 0, .incarnation = 1,
                          .sequence = ++harness.workers[0].sequence, .ticket = 8, .held_version = 0},
                         {})
                .result,
            Result::kSkipped);

  // The record says that it was discarded, and replay agrees.
  auto replayed = Segment::Create(options).value();
  ByteSpan left(reinterpret_cast<const uint8_t*>(harness.records.data()), harness.records.size());
  uint64_t discards = 0;
  while (!left.empty()) {
    ByteSpan piece;
    uint64_t size = 0;
    const auto event = ParseRecord(left, &piece, &size);
    ASSERT_TRUE(event.ok()) << event.status();
    if (event->kind == EventKind::kDiscard) {
      ++discards;
      EXPECT_EQ(event->payload.bytes, 0u);
    }
    ASSERT_TRUE(replayed->Replay(*event).ok());
    left = left.subspan(size);
  }
  EXPECT_EQ(discards, 1u);
  EXPECT_EQ(replayed->Save(), harness.segment->Save());
}

TEST(Segment, ADelayThresholdThatCannotBeIsRefused) {
  SegmentOptions options = MakeSegmentOptions("dana_slim", kElements, 2);
  options.delay_threshold = 4;
  EXPECT_TRUE(absl::IsInvalidArgument(Segment::Create(options).status()));
  options = MakeSegmentOptions("ssgd", kElements, 2);
  options.synchronous = true;
  options.members = 2;
  options.delay_threshold = 4;
  EXPECT_TRUE(absl::IsInvalidArgument(Segment::Create(options).status()));
  options = MakeSegmentOptions("asgd", kElements, 2);
  options.plan.kind = TensorKind::kStatistic;
  options.delay_threshold = 4;
  EXPECT_TRUE(absl::IsInvalidArgument(Segment::Create(options).status()));
}

TEST(Segment, AnUnknownHeldVersionGetsFullPrecision) {
  SegmentHarness harness(MakeSegmentOptions("asgd", kElements, 2), 2);
  harness.Push(0, Ones(kElements), 0, CodecId::kNone, CodecId::kBf16);
  EXPECT_EQ(harness.reply.codec, CodecId::kBf16);
  harness.workers[0].held_version = 0;  // lost the reply
  harness.Push(0, Ones(kElements), 1, CodecId::kNone, CodecId::kBf16);
  EXPECT_EQ(harness.reply.codec, CodecId::kNone);
}

TEST(Segment, HeldIsWhatTheWorkerDecodes) {
  for (const CodecId codec : {CodecId::kNone, CodecId::kFp16, CodecId::kBf16}) {
    SegmentOptions options = MakeSegmentOptions("dana_zero", kElements, 2);
    options.keep_all_held = true;
    SegmentHarness harness(options, 2);
    for (uint64_t step = 0; step < 10; ++step) {
      harness.Push(step % 2, QuadraticGradient(harness.workers[step % 2].parameters, step), step,
                   CodecId::kOneBit, codec);
      const auto held = harness.segment->held(step % 2);
      EXPECT_EQ(std::vector<float>(held.begin(), held.end()), harness.workers[step % 2].parameters);
    }
  }
}

// What a rule is told of the pusher's parameters: what the worker decoded, and nothing
// where its push names other parameters than those last sent.
TEST(Segment, RulesSeeWhatThePusherHolds) {
  for (const CodecId reply_codec : {CodecId::kNone, CodecId::kBf16}) {
    SegmentOptions options = MakeSegmentOptions("dc_asgd", kElements, 2, 0.1f);
    ASSERT_TRUE(options.keep_all_held);
    options.sample_stride = 2;
    options.rule.dc_adaptive = false;
    options.rule.dc_lambda = 3;
    SegmentHarness harness(options, 2);
    std::vector<float> expected(harness.segment->theta().begin(), harness.segment->theta().end());
    for (uint64_t step = 0; step < 20; ++step) {
      const uint32_t w = step % 3 == 0;
      const bool lost = step % 5 == 4;  // the last reply did not reach the worker
      if (lost) --harness.workers[w].held_version;
      const std::vector<float>& x = harness.workers[w].parameters;
      const std::vector<float> gradient = QuadraticGradient(x, step);
      for (size_t k = 0; k < kElements; ++k) {
        const float distance = lost ? 0 : expected[k] - x[k];
        expected[k] -= 0.1f * (gradient[k] + 3 * distance * gradient[k] * gradient[k]);
      }
      harness.Push(w, gradient, step, CodecId::kNone, reply_codec);
      ASSERT_EQ(std::vector<float>(harness.segment->theta().begin(), harness.segment->theta().end()),
                expected) << step;
    }
  }
}

TEST(Segment, SamplesOneBlockInSoMany) {
  SegmentOptions options = MakeSegmentOptions("asgd", kElements, 1);
  options.sample_stride = 2;  // blocks 0, 2, 4 of 100, 100, 50 elements
  SegmentHarness harness(options, 1);
  EXPECT_EQ(harness.Push(0, Ones(kElements), 0).sampled_elements, 250u);
  EXPECT_EQ(harness.segment->held(0).size(), 250u);
}

TEST(Segment, GapIsTheDistanceTravelled) {
  SegmentHarness harness(MakeSegmentOptions("asgd", kElements, 2, 1.0f), 2);
  harness.Push(0, Ones(kElements), 0);
  harness.Push(0, Ones(kElements), 1);
  const Outcome outcome = harness.Push(1, Ones(kElements), 2);  // two units behind
  EXPECT_NEAR(std::sqrt(outcome.gap_squares / outcome.sampled_elements), 2, 1e-6);
  EXPECT_NEAR(std::sqrt(outcome.surprise_squares / outcome.sampled_elements), 2, 1e-6);
}

TEST(Segment, SkipAndDiscardConsumeTheTicketOnly) {
  for (const EventKind kind : {EventKind::kSkip, EventKind::kDiscard}) {
    SegmentHarness harness(MakeSegmentOptions("nag_asgd", kElements, 1), 1);
    harness.Push(0, Ones(kElements), 0);
    const std::vector<float> before = harness.workers[0].parameters;
    const Outcome outcome = harness.Send({.kind = kind, .worker = 0, .incarnation = 1, .sequence = 2,
                                          .ticket = 9, .held_version = 1}, {});
    harness.Take(0, outcome);
    EXPECT_EQ(outcome.result, kind == EventKind::kSkip ? Result::kSkipped : Result::kDiscarded);
    EXPECT_EQ(outcome.version, 1u);
    EXPECT_EQ(outcome.clock, 9u);
    EXPECT_EQ(harness.workers[0].parameters, before);
    EXPECT_EQ(harness.segment->last_sequence(0), 2u);
  }
}

TEST(Segment, AnExpiredWorkerRejoinsWithoutMomentum) {
  SegmentHarness harness(MakeSegmentOptions("multi_asgd", kElements, 2, 1.0f), 2);
  harness.Push(0, Ones(kElements), 0);
  harness.Send({.kind = EventKind::kExpire, .worker = 0, .incarnation = 1}, {});
  EXPECT_FALSE(harness.segment->joined(0));
  const float before = harness.segment->theta()[0];
  EXPECT_EQ(harness.Push(0, Ones(kElements), 1).result, Result::kApplied);
  EXPECT_FLOAT_EQ(harness.segment->theta()[0], before - 1);  // 1.9 with its old momentum
  EXPECT_TRUE(harness.segment->joined(0));
}

TEST(Segment, AnOlderIncarnationIsFencedAndANewerStartsOver) {
  SegmentHarness harness(MakeSegmentOptions("asgd", kElements, 1), 1);
  harness.Push(0, Ones(kElements), 0);
  harness.workers[0].incarnation = 2;
  harness.workers[0].sequence = 0;
  EXPECT_EQ(harness.Push(0, Ones(kElements), 1).result, Result::kApplied);
  harness.workers[0].incarnation = 1;
  harness.Push(0, Ones(kElements), 2);
  EXPECT_TRUE(absl::IsAborted(harness.status)) << harness.status;
  // A late goodbye of the old one does not free the new one's slot.
  harness.Send({.kind = EventKind::kLeave, .worker = 0, .incarnation = 1}, {});
  EXPECT_TRUE(harness.segment->joined(0));
}

TEST(Segment, BadEventsAreRefusedAndChangeNothing) {
  SegmentHarness harness(MakeSegmentOptions("dana_zero", kElements, 2), 2);
  harness.Push(0, Ones(kElements), 0);
  const std::string before = harness.segment->Save();
  const auto expect = [&](const Event& event, const std::vector<float>& values, const std::string& text) {
    harness.Send(event, values);
    EXPECT_THAT(std::string(harness.status.message()), HasSubstr(text));
    EXPECT_EQ(harness.segment->Save(), before) << text;
  };
  Event push{.kind = EventKind::kPush, .worker = 0, .incarnation = 1, .sequence = 2, .held_version = 1};
  Event other = push;
  other.worker = 2;
  expect(other, Ones(kElements), "beyond the job's 2 slots");
  other = push;
  other.held_version = 2;
  expect(other, Ones(kElements), "claims version 2; the newest is 1");
  std::vector<float> bad = Ones(kElements);
  bad[123] = std::numeric_limits<float>::quiet_NaN();
  expect(push, bad, "element 123");
  bad[123] = -std::numeric_limits<float>::infinity();
  expect(push, bad, "not finite");
  expect(push, {}, "payload of 0 bytes");
  expect({.kind = EventKind::kRead, .worker = 0, .incarnation = 1}, Ones(kElements), "where none belong");
  expect({.kind = EventKind::kLearningRateRepair, .worker = 0, .incarnation = 1}, Ones(kElements),
         "nothing to repair");
  expect({.kind = EventKind::kRoundClosed}, {}, "cannot be closed");
  other = push;
  other.codec = 200;
  const std::vector<uint8_t> bytes(10);
  const ByteSpan piece(bytes);
  other.payload = {absl::MakeConstSpan(&piece, 1), 10};
  EXPECT_THAT(std::string(harness.segment->CheckPayload(other).message()), HasSubstr("codec 200"));
}

TEST(Segment, NeedsValuesBeforeAnythingElse) {
  const auto segment = Segment::Create(MakeSegmentOptions("asgd", kElements, 1)).value();
  Event read{.kind = EventKind::kRead, .worker = 0};
  EXPECT_TRUE(absl::IsFailedPrecondition(segment->Admit(&read)));
}

TEST(Segment, TheFirstValuesWin) {
  SegmentHarness harness(MakeSegmentOptions("asgd", kElements, 1), 1);
  const std::vector<float> before = harness.workers[0].parameters;
  EXPECT_EQ(harness.Send({.kind = EventKind::kInitialise}, Ones(kElements)).result, Result::kInitialised);
  harness.Read(0);
  EXPECT_EQ(harness.workers[0].parameters, before);
}

TEST(Segment, ReadersSeeMasterOrLookaheadAndLeaveNoTrace) {
  SegmentHarness harness(MakeSegmentOptions("dana_zero", kElements, 2), 2);
  harness.Push(0, Ones(kElements), 0);
  const std::string before = harness.segment->Save();
  const auto read = [&](ReadMode mode) {
    const Outcome outcome =
        harness.Send({.kind = EventKind::kRead, .argument = static_cast<uint64_t>(mode)}, {});
    SegmentHarness::Worker saved = {};
    std::swap(saved.parameters, harness.workers[1].parameters);
    harness.Take(1, outcome);
    std::swap(saved.parameters, harness.workers[1].parameters);
    return saved.parameters;
  };
  const std::vector<float> master = read(ReadMode::kReaderMaster);
  const std::vector<float> lookahead = read(ReadMode::kReaderLookahead);
  EXPECT_EQ(harness.segment->Save(), before);
  EXPECT_EQ(master, std::vector<float>(harness.segment->theta().begin(), harness.segment->theta().end()));
  EXPECT_EQ(lookahead, harness.workers[0].parameters);
  EXPECT_NE(lookahead, master);
}

TEST(Segment, ARoundIsTheMeanInSlotOrderWhoeverCameFirst) {
  SegmentOptions options = MakeSegmentOptions("ssgd", kElements, 3, 0.5f);
  options.synchronous = true;
  options.members = 3;
  std::vector<std::string> states;
  for (const auto& order : std::vector<std::vector<uint32_t>>{{0, 1, 2}, {2, 0, 1}}) {
    SegmentHarness harness(options, 3);
    for (uint64_t round = 0; round < 5; ++round) {
      for (size_t k = 0; k < order.size(); ++k) {
        const uint32_t w = order[k];
        EXPECT_FALSE(harness.segment->RoundComplete());
        const Outcome outcome =
            harness.Send({.kind = EventKind::kPush, .worker = w, .incarnation = 1, .sequence = round + 1,
                          .ticket = 3 * round + w, .argument = round},
                         QuadraticGradient(harness.workers[w].parameters, 3 * round + w));
        ASSERT_TRUE(harness.status.ok()) << harness.status;
        EXPECT_EQ(outcome.result, Result::kPending);
        if (k == 0) {  // said again while the round is open: noted once
          harness.Send({.kind = EventKind::kPush, .worker = w, .incarnation = 1, .sequence = round + 1,
                        .argument = round}, Ones(kElements, 100));
          EXPECT_EQ(harness.reply.bytes, 0u);
        }
      }
      ASSERT_TRUE(harness.segment->RoundComplete());
      harness.Send({.kind = EventKind::kRoundClosed, .argument = round}, {});
      EXPECT_EQ(harness.segment->open_round(), round + 1);
      for (uint32_t w = 0; w < 3; ++w) harness.Read(w);
    }
    EXPECT_EQ(harness.segment->version(), 5u);
    states.push_back(harness.segment->Save());
  }
  EXPECT_EQ(states[0], states[1]);
}

TEST(Segment, AnAbsentMemberIsLeftOutOfTheMean) {
  SegmentOptions options = MakeSegmentOptions("ssgd", kElements, 2, 1.0f);
  options.synchronous = true;
  options.members = 2;
  options.rule.momentum = 0;
  SegmentHarness harness(options, 2);
  const float before = harness.segment->theta()[0];
  harness.Send({.kind = EventKind::kPush, .worker = 0, .incarnation = 1, .sequence = 1}, Ones(kElements, 3));
  harness.Send({.kind = EventKind::kSkip, .worker = 1, .incarnation = 1, .sequence = 1}, {});
  harness.Send({.kind = EventKind::kRoundClosed}, {});
  EXPECT_FLOAT_EQ(harness.segment->theta()[0], before - 3);
  // Both skip: the round passes, nothing is updated.
  harness.Send({.kind = EventKind::kSkip, .worker = 0, .incarnation = 1, .sequence = 2, .argument = 1}, {});
  harness.Send({.kind = EventKind::kSkip, .worker = 1, .incarnation = 1, .sequence = 2, .argument = 1}, {});
  harness.Send({.kind = EventKind::kRoundClosed, .argument = 1}, {});
  EXPECT_EQ(harness.segment->version(), 1u);
  EXPECT_EQ(harness.segment->open_round(), 2u);
  harness.Send({.kind = EventKind::kPush, .worker = 0, .incarnation = 1, .sequence = 3, .argument = 3},
               Ones(kElements));
  EXPECT_THAT(std::string(harness.status.message()), HasSubstr("round 2 is still open"));
}

TEST(Segment, ASnapshotChangesNothing) {
  SegmentHarness harness(MakeSegmentOptions("asgd", kElements, 1), 1);
  const std::string before = harness.segment->Save();
  harness.Send({.kind = EventKind::kSnapshot}, {});
  EXPECT_EQ(harness.segment->Save(), before);
}

// Random lives under every rule: replaying the records gives the same bits, and so
// does going on from a saved state at any point.
TEST(Segment, ReplayAndRestoreAreBitExactForEveryRule) {
  for (const RuleTraits& traits : Rules()) {
    SegmentOptions options = MakeSegmentOptions(std::string(traits.name), kElements, 4, 0.01f);
    options.rule.weight_decay = traits.worker_half ? 0 : 1e-3f;
    options.synchronous = traits.synchronous;
    options.members = traits.synchronous ? 3 : 0;
    options.sample_stride = 2;
    SegmentHarness harness(options, options.synchronous ? 3 : 4);
    std::string saved;
    size_t saved_at = 0;
    std::vector<uint64_t> rounds(4);
    for (uint64_t step = 0; step < 400; ++step) {
      const auto w = static_cast<uint32_t>(RandomBits(11, 0, step) % harness.workers.size());
      const uint64_t choice = RandomBits(11, 1, step) % 20;
      // Before its freeze apmsqueeze takes full precision only; segment_squeeze_test.cc has the rest.
      const auto codec = static_cast<CodecId>(traits.squeezes ? 0 : RandomBits(11, 2, step) % 8);
      const auto reply_codec = static_cast<CodecId>(RandomBits(11, 3, step) % 3);
      if (step == 200) {
        saved = harness.segment->Save();
        saved_at = harness.records.size();
      }
      if (options.synchronous) {
        if (rounds[w] > harness.segment->open_round()) continue;
        SegmentHarness::Worker& worker = harness.workers[w];
        harness.Send({.kind = choice == 0 ? EventKind::kSkip : EventKind::kPush,
                      .codec = static_cast<uint8_t>(choice == 0 ? CodecId::kNone : codec), .worker = w,
                      .incarnation = 1, .sequence = ++worker.sequence, .ticket = step,
                      .argument = rounds[w]++},
                     choice == 0 ? std::vector<float>() : QuadraticGradient(worker.parameters, step));
        ASSERT_TRUE(harness.status.ok()) << harness.status;
        if (harness.segment->RoundComplete()) {
          harness.Send({.kind = EventKind::kRoundClosed, .argument = harness.segment->open_round()}, {});
          for (uint32_t member = 0; member < 3; ++member) harness.Read(member);
        }
        continue;
      }
      switch (choice) {
        case 0:
          harness.Send({.kind = EventKind::kExpire, .worker = w, .incarnation = harness.workers[w].incarnation}, {});
          break;
        case 1:
          ++harness.workers[w].incarnation;
          harness.workers[w].sequence = 0;
          harness.Join(w);
          break;
        case 2:
          harness.Read(w);
          break;
        case 3:
          if (harness.workers[w].sequence > 0) --harness.workers[w].sequence;  // says it again
          [[fallthrough]];
        default:
          harness.Push(w, QuadraticGradient(harness.workers[w].parameters, step), step, codec, reply_codec);
          ASSERT_TRUE(harness.status.ok()) << harness.status;
      }
    }
    const std::string end = harness.segment->Save();
    for (const bool from_the_middle : {false, true}) {
      const auto copy = Segment::Create(options).value();
      if (from_the_middle) {
        ASSERT_TRUE(copy->Load(saved).ok());
      }
      ReplayRecords(std::string_view(harness.records).substr(from_the_middle ? saved_at : 0), copy.get());
      EXPECT_TRUE(copy->Save() == end) << traits.name << (from_the_middle ? " from the middle" : " from the start");
    }
  }
}

TEST(Segment, DamagedOrForeignStateIsRefusedAndChangesNothing) {
  SegmentHarness harness(MakeSegmentOptions("dana_zero", kElements, 2), 2);
  harness.Push(0, Ones(kElements), 0);
  const std::string saved = harness.segment->Save();
  const auto target = Segment::Create(harness.options).value();
  const std::string empty = target->Save();
  for (size_t cut = 0; cut < saved.size(); cut += 97) {
    EXPECT_TRUE(absl::IsDataLoss(target->Load(saved.substr(0, cut))));
  }
  for (size_t at = 0; at < saved.size(); at += 61) {
    std::string flipped = saved;
    flipped[at] ^= 4;
    EXPECT_TRUE(absl::IsDataLoss(target->Load(flipped)));
  }
  EXPECT_EQ(target->Save(), empty);
  const auto other = Segment::Create(MakeSegmentOptions("asgd", kElements, 2)).value();
  EXPECT_TRUE(absl::IsInvalidArgument(other->Load(saved)));
}

TEST(Segment, StatisticsAreAveragedWithoutLagOrGap) {
  SegmentOptions options = MakeSegmentOptions("dana_zero", 50, 2);
  options.plan.kind = TensorKind::kStatistic;
  options.rule.statistics_weight = 0.25f;
  SegmentHarness harness(options, 2);
  const float before = harness.segment->theta()[0];
  const Outcome outcome = harness.Push(0, Ones(50, 8), 0);
  EXPECT_NEAR(harness.segment->theta()[0], before + 0.25f * (8 - before), 1e-6);
  EXPECT_EQ(outcome.sampled_elements, 0u);
}

TEST(Segment, MemoryIsWhatTheDesignSays) {
  SegmentOptions options = MakeSegmentOptions("dana_zero", 1 << 20, 4);
  options.plan.blocks = CutBlocks(1 << 20, kMaxBlockElements);
  options.sample_stride = 64;
  const double d = (1 << 20) * 4.0;
  EXPECT_NEAR(static_cast<double>(Segment::MemoryBytes(options)) / d, 4 + 2, 0.1);  // (N + 2) d
  options.rule.rule = "dana_slim";
  EXPECT_NEAR(static_cast<double>(Segment::MemoryBytes(options)) / d, 1, 0.1);
}

}  // namespace
}  // namespace foreshard
