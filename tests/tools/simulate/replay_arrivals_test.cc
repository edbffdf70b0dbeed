#include "tools/simulate/replay_arrivals.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/core/bytes.h"
#include "common/net/job_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/simulate/clock.h"
#include "tools/simulate/simulation.h"
#include "worker/job_setup.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Two shards of two segments each.
constexpr char kJob[] =
    "name: 'replayed' seed: 3 model { name: 'synthetic' elements: 6000 } "
    "data { format: 'synthetic' examples: 120 } "
    "training { epochs: 1 batch_size: 10 workers: 3 max_workers: 4 } "
    "update { rule: 'dana_zero' momentum: 0.9 } schedule { learning_rate: 0.2 } "
    "servers { shards: 2 segment_elements: 2048 } compression { block_elements: 512 }";
constexpr uint32_t kSegments = 4;
constexpr uint32_t kShardOf[kSegments] = {0, 0, 1, 1};
constexpr uint32_t kWorkers = 3;
constexpr uint64_t kSteps = 4;

using Order = std::vector<uint32_t>;

// What servers record where each segment's pushes come from these workers, in this
// order. Step k of worker w has ticket 3 k + w.
std::vector<std::vector<Event>> Arrivals(const std::vector<Order>& orders) {
  constexpr uint64_t kIncarnation = 7;
  std::vector<std::vector<Event>> arrivals(2);
  arrivals[0].push_back({.kind = EventKind::kDealerJoin, .segment = kDealerSegment});
  for (uint32_t s = 0; s < kSegments; ++s) {
    std::vector<Event>& out = arrivals[kShardOf[s]];
    std::vector<uint64_t> held(kWorkers), sequence(kWorkers);
    uint64_t version = 0;
    out.push_back({.kind = EventKind::kInitialise, .segment = s});
    for (uint32_t w = 0; w < kWorkers; ++w) {
      out.push_back(
          {.kind = EventKind::kRead, .segment = s, .worker = w, .incarnation = kIncarnation});
    }
    for (const uint32_t w : orders[s]) {
      out.push_back({.kind = EventKind::kPush,
                     .segment = s,
                     .worker = w,
                     .incarnation = kIncarnation,
                     .sequence = sequence[w] + 1,
                     .ticket = sequence[w] * kWorkers + w,
                     .held_version = held[w]});
      ++sequence[w];
      held[w] = ++version;
    }
  }
  return arrivals;
}

const Order kInTurn = {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2};

std::vector<std::vector<Event>> InTurn() {
  return Arrivals(std::vector<Order>(kSegments, kInTurn));
}

class ReplayArrivalsTest : public ::testing::Test {
 protected:
  absl::StatusOr<ReplayResult> Replay(std::vector<std::vector<Event>> arrivals,
                                      const std::vector<std::string>& overrides = {},
                                      const ReplayOptions& options = {}) {
    job_ = ParseJobSpec(kJob, "the test's job", overrides).value();
    train_ = LoadTrainingData(job_).value();
    for (std::vector<Event>& shard : arrivals) {
      for (size_t i = 0; i < shard.size(); ++i) shard[i].number = i + 1;
    }
    return ReplayArrivals(job_, *train_, arrivals, options);
  }
  std::string ErrorOf(const std::vector<std::vector<Event>>& arrivals,
                      const std::vector<std::string>& overrides = {}) {
    const auto result = Replay(arrivals, overrides);
    EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
    return std::string(result.status().message());
  }
  // The place of a push in its shard's list.
  static std::vector<Event>::iterator Find(std::vector<std::vector<Event>>& arrivals,
                                           uint32_t segment, uint32_t worker, uint64_t sequence) {
    std::vector<Event>& shard = arrivals[kShardOf[segment]];
    return std::find_if(shard.begin(), shard.end(), [&](const Event& event) {
      return event.segment == segment && event.worker == worker && event.sequence == sequence;
    });
  }
  uint64_t SimulatedChecksum() {
    const auto test = LoadTestData(job_, *train_).value();
    return Simulate({.job = job_,
                     .clock = BatchClock::Gamma({.workers = kWorkers, .variation = 0}).value(),
                     .train = train_.get(),
                     .test = test.get()})
        .value()
        .parameters_checksum;
  }
  static uint64_t ChecksumOf(const std::vector<float>& values) {
    return Checksum(ByteSpan(reinterpret_cast<const uint8_t*>(values.data()), values.size() * 4));
  }

  v1::JobSpec job_;
  std::unique_ptr<Dataset> train_;
};

TEST_F(ReplayArrivalsTest, IsTheSimulationWithTheSameOrder) {
  for (const std::vector<std::string>& overrides :
       {std::vector<std::string>{}, {"update.rule=dana_slim", "compression.push=one_bit"},
        {"update.rule=gap_aware", "compression.reply=fp16"},
        {"compression.push=top_k"},
        {"compression.push=random_k", "compression.fraction=0.1"},
        {"compression.push=quantized", "compression.full_precision=*"},
        {"compression.push=quantized", "compression.bits=2"}}) {
    SCOPED_TRACE(absl::StrJoin(overrides, " "));
    const auto replayed = Replay(InTurn(), overrides);
    ASSERT_TRUE(replayed.ok()) << replayed.status();
    EXPECT_EQ(ChecksumOf(replayed->parameters), SimulatedChecksum());
    EXPECT_EQ(replayed->steps, kSteps * kWorkers);
    EXPECT_EQ(replayed->updates, kSteps * kWorkers);
    EXPECT_EQ(replayed->events, kSegments * (1 + kWorkers + kSteps * kWorkers));
    // 0, 1, 2 at first, then always 2.
    EXPECT_EQ(replayed->lag_counts, (std::vector<uint64_t>{1, 1, 10}));
    EXPECT_NEAR(replayed->lag_mean, 21.0 / 12, 1e-12);
  }
}

TEST_F(ReplayArrivalsTest, SegmentsHaveOrdersOfTheirOwn) {
  const auto replayed = Replay(Arrivals(
      {kInTurn, {2, 1, 0, 0, 1, 2, 0, 1, 2, 0, 1, 2}, kInTurn, {0, 2, 1, 1, 2, 0, 0, 1, 2, 2, 1, 0}}));
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_EQ(replayed->steps, kSteps * kWorkers);
  EXPECT_NE(ChecksumOf(replayed->parameters), SimulatedChecksum());
}

TEST_F(ReplayArrivalsTest, KeepsWhatWasThereAfterSoManyUpdates) {
  const auto replayed = Replay(InTurn(), {}, {.cuts = {5, 12, 13}});
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  ASSERT_EQ(replayed->cuts.size(), 2u);
  EXPECT_EQ(replayed->cuts[1], replayed->parameters);
  EXPECT_NE(replayed->cuts[0], replayed->parameters);
  // The same as a run that ends there.
  std::vector<std::vector<Event>> arrivals = InTurn();
  for (std::vector<Event>& shard : arrivals) {
    std::erase_if(shard, [](const Event& event) { return event.ticket >= 5; });
  }
  const auto shorter = Replay(arrivals);
  ASSERT_TRUE(shorter.ok()) << shorter.status();
  EXPECT_EQ(shorter->parameters, replayed->cuts[0]);
}

TEST_F(ReplayArrivalsTest, AWorkerGoesOnWithTheReplyItGotLast) {
  // The answer to worker 1's first push is lost in segment 0, and it asks again when
  // worker 2 has pushed.
  std::vector<std::vector<Event>> arrivals = InTurn();
  Event again = *Find(arrivals, 0, 1, 1);
  again.kind = EventKind::kResend;
  arrivals[0].insert(Find(arrivals, 0, 2, 1) + 1, again);
  Find(arrivals, 0, 1, 2)->held_version = 3;
  const auto replayed = Replay(arrivals);
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_EQ(replayed->resent, 1u);
  EXPECT_EQ(replayed->lag_counts, (std::vector<uint64_t>{1, 2, 9}));
  EXPECT_NE(ChecksumOf(replayed->parameters), SimulatedChecksum());
  // A repetition that arrived when the worker had gone on changes nothing but x_i.
  arrivals = InTurn();
  arrivals[0].insert(Find(arrivals, 0, 1, 2) + 1, again);
  const auto late = Replay(arrivals);
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_EQ(ChecksumOf(late->parameters), SimulatedChecksum());
}

TEST_F(ReplayArrivalsTest, ARepetitionNobodyWaitedForMayComeLate) {
  // Worker 0 makes its step 3 after worker 1's step 2 in segment 0, and before it in
  // segment 2.
  const Order early = {0, 1, 2, 1, 0, 2, 0, 1, 2, 0, 1, 2};
  const Order late = {0, 1, 2, 0, 0, 1, 2, 1, 2, 0, 1, 2};
  std::vector<std::vector<Event>> arrivals = Arrivals({early, early, late, late});
  const auto plain = Replay(arrivals);
  ASSERT_TRUE(plain.ok()) << plain.status();
  // There worker 1's first read arrives once more: between its step 2 and that of the
  // others, when it has long gone on.
  Event again = {.kind = EventKind::kRead, .segment = 2, .worker = 1, .incarnation = 7};
  arrivals[1].insert(Find(arrivals, 2, 1, 2), again);
  const auto replayed = Replay(arrivals);
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_EQ(replayed->parameters, plain->parameters);
}

TEST_F(ReplayArrivalsTest, AWorkerMayBeGoneInTheMiddleOfAPush) {
  std::vector<std::vector<Event>> arrivals = InTurn();
  arrivals[1].erase(Find(arrivals, 2, 2, kSteps));
  const auto replayed = Replay(arrivals);
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_EQ(replayed->updates, kSteps * kWorkers);
}

TEST_F(ReplayArrivalsTest, ANewStartOfAWorkerBeginsAnew) {
  // The second start has its own sequence, error and momentum.
  std::vector<std::vector<Event>> arrivals = InTurn();
  for (uint32_t s = 0; s < kSegments; ++s) {
    const uint64_t version = kSteps * kWorkers;
    arrivals[kShardOf[s]].push_back(
        {.kind = EventKind::kRead, .segment = s, .worker = 1, .incarnation = 8});
    arrivals[kShardOf[s]].push_back({.kind = EventKind::kPush,
                                     .segment = s,
                                     .worker = 1,
                                     .incarnation = 8,
                                     .sequence = 1,
                                     .ticket = 3,
                                     .held_version = version});
  }
  const auto replayed = Replay(arrivals, {"compression.push=one_bit"});
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_EQ(replayed->steps, kSteps * kWorkers + 1);
}

TEST_F(ReplayArrivalsTest, DiscardsCostTheWorkerItsGradient) {
  // Lags are 2 and above the threshold of 1 from worker 2's first push on.
  std::vector<std::vector<Event>> arrivals = InTurn();
  for (std::vector<Event>& shard : arrivals) {
    std::erase_if(shard, [](const Event& event) { return event.sequence > 1; });
  }
  for (uint32_t s = 0; s < kSegments; ++s) Find(arrivals, s, 2, 1)->kind = EventKind::kDiscard;
  const auto replayed = Replay(arrivals, {"update.delay_threshold=1"});
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_EQ(replayed->updates, 2u);
  EXPECT_EQ(replayed->discarded, 1u);
  // Where the job says otherwise, the record is of another one.
  for (uint32_t s = 0; s < kSegments; ++s) Find(arrivals, s, 2, 1)->kind = EventKind::kPush;
  EXPECT_THAT(ErrorOf(arrivals, {"update.delay_threshold=1"}),
              HasSubstr("the segment makes a discard of it"));
}

TEST_F(ReplayArrivalsTest, WhatIsMissingIsNamed) {
  std::vector<std::vector<Event>> arrivals = InTurn();
  arrivals[0].erase(Find(arrivals, 1, 2, 2));
  EXPECT_THAT(ErrorOf(arrivals), AllOf(HasSubstr("shard 0"), HasSubstr("segment 1"),
                                       HasSubstr("worker 2"), HasSubstr("push 3 follows its push 1")));

  // Worker 1 cannot have pushed two more times elsewhere.
  EXPECT_THAT(ErrorOf(Arrivals({kInTurn, kInTurn, {0, 1, 2, 0, 1, 2, 0, 2, 0, 2}, kInTurn})),
              AllOf(HasSubstr("segment 2 has only 2 pushes"), HasSubstr("this is push 4")));

  // No read, so that nothing was ever held.
  arrivals = InTurn();
  std::erase_if(arrivals[1], [](const Event& event) {
    return event.kind == EventKind::kRead && event.worker == 0;
  });
  EXPECT_THAT(ErrorOf(arrivals), AllOf(HasSubstr("cannot be replayed"), HasSubstr("push of worker 0"),
                                       HasSubstr("segment 2 has not sent it version 0")));
}

TEST_F(ReplayArrivalsTest, WhatWaitsForItselfIsAnErrorAndNoEndlessWait) {
  // Segment 0 has worker 0 at its second push before worker 1's first, segment 2 has
  // worker 1 at its second before worker 0's first.
  EXPECT_THAT(ErrorOf(Arrivals({{0, 0, 1, 1}, {0, 0, 1, 1}, {1, 1, 0, 0}, {1, 1, 0, 0}})),
              HasSubstr("cannot be replayed, and nothing else can any more"));
}

TEST_F(ReplayArrivalsTest, ContradictionsAreNamed) {
  std::vector<std::vector<Event>> arrivals = InTurn();
  Find(arrivals, 2, 1, 2)->held_version = 99;
  EXPECT_THAT(ErrorOf(arrivals), HasSubstr("segment 2 has not sent it version 99"));

  arrivals = InTurn();
  Find(arrivals, 1, 1, 2)->ticket = 11;
  EXPECT_THAT(ErrorOf(arrivals), AllOf(HasSubstr("ticket 4"), HasSubstr("11")));

  arrivals = InTurn();
  for (uint32_t s = 0; s < kSegments; ++s) Find(arrivals, s, 1, 2)->kind = EventKind::kSkip;
  EXPECT_THAT(ErrorOf(arrivals), HasSubstr("ticket 4 at what it held is finite"));

  arrivals = InTurn();
  Find(arrivals, 1, 0, 1)->segment = 9;
  EXPECT_THAT(ErrorOf(arrivals), HasSubstr("segment 9 is not of this shard"));
  arrivals = InTurn();
  std::swap(arrivals[0], arrivals[1]);
  EXPECT_THAT(ErrorOf(arrivals), HasSubstr("is not of this shard"));
  arrivals.pop_back();
  EXPECT_THAT(ErrorOf(arrivals), HasSubstr("arrivals of 1 servers"));
}

TEST_F(ReplayArrivalsTest, WhatCannotBeComputedAnewIsRefused) {
  std::vector<std::vector<Event>> arrivals = InTurn();
  arrivals[0].push_back({.kind = EventKind::kViewChange, .segment = 0});
  const auto view = Replay(arrivals);
  EXPECT_TRUE(absl::IsUnimplemented(view.status())) << view.status();
  EXPECT_THAT(std::string(view.status().message()), HasSubstr("view_change carries"));
  const auto elastic =
      Replay(InTurn(), {"update.rule=easgd", "update.momentum=", "update.local_steps=4"});
  EXPECT_TRUE(absl::IsUnimplemented(elastic.status())) << elastic.status();
  EXPECT_THAT(std::string(elastic.status().message()), HasSubstr("steps of their own"));
}

}  // namespace
}  // namespace foreshard
