// Steps of the learning rate under dana_slim: shares of momentum, and what waits for them.
#include <limits>
#include <set>

#include "gmock/gmock.h"

#include "tests/server/segment_harness.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kElements = 230;
constexpr float kGamma = 0.9f;

// Rate 0.02 up to ticket 10, then 0.002, from ticket 20 on 0.0002.
SegmentOptions StepOptions(uint32_t workers, const std::string& rule = "dana_slim") {
  SegmentOptions options = MakeSegmentOptions(rule, kElements, workers, 0.02f);
  options.schedule.decay = Decay::kStep;
  options.schedule.decay_epochs = {1, 2};
  options.schedule.decay_factor = 0.1;
  options.schedule.batches_per_epoch = 10;
  return options;
}

void PushOne(SegmentHarness& harness, uint32_t w, uint64_t ticket) {
  harness.Push(w, QuadraticGradient(harness.workers[w].parameters, 100 * w + ticket), ticket);
}

std::vector<float> Theta(const SegmentHarness& harness) {
  return {harness.segment->theta().begin(), harness.segment->theta().end()};
}

TEST(SegmentRepair, SharesMoveThetaAndAllOfThemTheClock) {
  SegmentHarness harness(StepOptions(3), 3);
  for (uint64_t t = 0; t < 9; ++t) PushOne(harness, t % 3, t);
  const Schedule& schedule = harness.options.schedule;
  std::vector<float> expected = Theta(harness);
  EXPECT_EQ(harness.segment->RepairUnderWay(), 0u);
  for (uint32_t w = 0; w < 3; ++w) {
    EXPECT_EQ(harness.segment->clock(), 8u);
    const Outcome outcome = harness.Repair(w, 10);
    ASSERT_TRUE(harness.status.ok()) << harness.status;
    const float factor = (schedule.At(10) - schedule.At(9)) * kGamma;
    for (size_t k = 0; k < kElements; ++k) {
      expected[k] -= factor * harness.workers[w].half->momentum()[k];
    }
    EXPECT_EQ(Theta(harness), expected);
    EXPECT_EQ(outcome.result, w < 2 ? Result::kPending : Result::kCurrent);
    EXPECT_EQ(harness.reply.bytes, w < 2 ? 0 : kElements * sizeof(float));
    EXPECT_EQ(harness.segment->MissingShares(10).size(), 2 - w);
    EXPECT_EQ(harness.segment->RepairUnderWay(), w < 2 ? 10u : 0u);
  }
  EXPECT_EQ(harness.segment->clock(), 10u);
  EXPECT_EQ(harness.segment->version(), 9u);  // not an update
  // The others ask again, get the same, and nothing moves.
  for (uint32_t w = 0; w < 2; ++w) {
    const Outcome outcome = harness.Repair(w, 10);
    EXPECT_EQ(outcome.result, Result::kCurrent);
    EXPECT_EQ(outcome.eta, schedule.At(10));
    EXPECT_EQ(harness.workers[w].parameters, expected);
  }
  EXPECT_EQ(Theta(harness), expected);
}

TEST(SegmentRepair, AShareCountsOnce) {
  SegmentHarness harness(StepOptions(2), 2);
  PushOne(harness, 0, 0);
  PushOne(harness, 1, 1);
  EXPECT_EQ(harness.Repair(0, 10).result, Result::kPending);
  const std::string once = harness.segment->Save();
  harness.workers[0].share_ticket = 0;  // its answer was lost: the same bytes again
  EXPECT_EQ(harness.Repair(0, 10).result, Result::kPending);
  EXPECT_EQ(harness.segment->Save(), once);
  EXPECT_EQ(harness.Repair(1, 10).result, Result::kCurrent);
  const std::vector<float> theta = Theta(harness);
  harness.workers[0].share_ticket = 0;
  EXPECT_EQ(harness.Repair(0, 10).result, Result::kCurrent);
  EXPECT_EQ(Theta(harness), theta);
  // One that was under way for long, and comes when the worker has gone on.
  PushOne(harness, 0, 10);
  const std::vector<float> later = Theta(harness);
  harness.workers[0].share_ticket = 0;
  EXPECT_EQ(harness.Repair(0, 10).result, Result::kCurrent);
  EXPECT_EQ(Theta(harness), later);
}

TEST(SegmentRepair, NothingPassesTheStepBeforeAllSharesAreIn) {
  SegmentHarness harness(StepOptions(3), 3);
  for (uint32_t w = 0; w < 3; ++w) PushOne(harness, w, w);
  const auto refused = [&](uint32_t w, const Event& event, const std::string& text) {
    const std::string before = harness.segment->Save();
    Event sent = event;
    sent.worker = w;
    sent.incarnation = harness.workers[w].incarnation;
    sent.sequence = harness.workers[w].sequence + 1;
    const bool push = event.kind == EventKind::kPush;
    harness.Send(sent, push ? std::vector<float>(kElements, 1) : std::vector<float>());
    EXPECT_TRUE(absl::IsFailedPrecondition(harness.status)) << harness.status;
    EXPECT_THAT(std::string(harness.status.message()), HasSubstr(text));
    EXPECT_EQ(harness.segment->Save(), before);
  };
  refused(0, {.kind = EventKind::kPush, .ticket = 10}, "momentum of workers 0, 1, 2 is missing");
  refused(0, {.kind = EventKind::kSkip, .ticket = 15}, "step at ticket 10");
  refused(0, {.kind = EventKind::kPush, .ticket = 25}, "step at ticket 20");
  harness.Repair(0, 10);
  refused(0, {.kind = EventKind::kPush, .ticket = 10}, "momentum of workers 1, 2 is missing");
  // At the old rate its momentum does not count any more.
  refused(0, {.kind = EventKind::kPush, .ticket = 9}, "has brought its momentum");
  harness.Send({.kind = EventKind::kLearningRateRepair, .worker = 1, .incarnation = 1, .ticket = 10}, {});
  EXPECT_TRUE(absl::IsFailedPrecondition(harness.status)) << harness.status;  // it has some
  // The others may finish what they have begun.
  PushOne(harness, 1, 9);
  EXPECT_TRUE(harness.status.ok()) << harness.status;
  EXPECT_EQ(harness.segment->clock(), 9u);
  harness.Repair(1, 10);
  EXPECT_EQ(harness.Repair(2, 10).result, Result::kCurrent);
  harness.Repair(0, 10);
  EXPECT_EQ(harness.Push(0, std::vector<float>(kElements, 1), 10).result, Result::kApplied);
  // Its late tickets are trained at the new rate.
  const Outcome late = harness.Push(1, std::vector<float>(kElements, 1), 8);
  EXPECT_EQ(late.eta, harness.options.schedule.At(10));
}

TEST(SegmentRepair, ASlotWithoutPushesHasNothingToBring) {
  SegmentHarness harness(StepOptions(4), 3);  // 1 and 2 have joined and read
  PushOne(harness, 0, 0);
  EXPECT_EQ(harness.Repair(1, 10).result, Result::kPending);  // asks, and waits for 0
  EXPECT_EQ(harness.segment->MissingShares(10), (std::vector<uint32_t>{0}));
  // What 2 pushes at the old rate it must bring like everybody.
  PushOne(harness, 2, 5);
  EXPECT_EQ(harness.Repair(0, 10).result, Result::kPending);
  EXPECT_EQ(harness.segment->MissingShares(10), (std::vector<uint32_t>{2}));
  EXPECT_EQ(harness.Repair(2, 10).result, Result::kCurrent);
  EXPECT_EQ(harness.Repair(1, 10).result, Result::kCurrent);
  // A whole fleet of new workers, at the second step: nothing to wait for.
  SegmentHarness fresh(StepOptions(2), 2);
  EXPECT_EQ(fresh.Repair(0, 20).result, Result::kCurrent);
  EXPECT_EQ(fresh.segment->clock(), 20u);
  // Or none of them asks: the first push passes the step.
  SegmentHarness silent(StepOptions(2), 2);
  PushOne(silent, 1, 13);
  EXPECT_TRUE(silent.status.ok()) << silent.status;
  EXPECT_EQ(silent.segment->clock(), 13u);
}

TEST(SegmentRepair, ALoneWorkerWaitsForNobody) {
  SegmentHarness slim(StepOptions(1), 1), zero(StepOptions(1, "dana_zero"), 1);
  for (uint64_t t = 0; t < 30; ++t) {
    if (t == 10 || t == 20) {
      EXPECT_EQ(slim.Repair(0, t).result, Result::kCurrent);
    }
    const std::vector<float> gradient = QuadraticGradient(zero.workers[0].parameters, t);
    zero.Push(0, gradient, t);
    slim.Push(0, gradient, t);
    EXPECT_LT(RelativeDifference(zero.workers[0].parameters, slim.workers[0].parameters), 1e-6) << t;
  }
}

// A lost worker holds the others up no longer than its lease.
TEST(SegmentRepair, AnExpiredWorkerIsNotWaitedForAndComesLate) {
  SegmentHarness harness(StepOptions(3), 3);
  for (uint64_t t = 0; t < 9; ++t) PushOne(harness, t % 3, t);
  harness.Repair(0, 10);
  EXPECT_EQ(harness.Repair(1, 10).result, Result::kPending);
  harness.Send({.kind = EventKind::kExpire, .worker = 2, .incarnation = 1}, {});
  EXPECT_EQ(harness.Repair(0, 10).result, Result::kCurrent);
  EXPECT_EQ(harness.segment->clock(), 10u);
  PushOne(harness, 0, 10);
  // It has only been slow: theta still holds its momentum at the old rate.
  const Schedule& schedule = harness.options.schedule;
  std::vector<float> expected = Theta(harness);
  const float factor = (schedule.At(10) - schedule.At(9)) * kGamma;
  for (size_t k = 0; k < kElements; ++k) {
    expected[k] -= factor * harness.workers[2].half->momentum()[k];
  }
  EXPECT_EQ(harness.Repair(2, 10).result, Result::kCurrent);
  EXPECT_TRUE(harness.segment->joined(2));
  EXPECT_EQ(Theta(harness), expected);
  PushOne(harness, 2, 11);
  EXPECT_TRUE(harness.status.ok()) << harness.status;
}

// A push of one that was away counts at the rate that is in force; it brings nothing
// any more.
TEST(SegmentRepair, AnExpiredWorkerThatKnowsNothingMayPush) {
  SegmentHarness harness(StepOptions(2), 2);
  for (uint64_t t = 0; t < 9; ++t) PushOne(harness, t % 2, t);
  harness.Send({.kind = EventKind::kExpire, .worker = 1, .incarnation = 1}, {});
  EXPECT_EQ(harness.Repair(0, 10).result, Result::kCurrent);
  EXPECT_EQ(harness.Push(1, std::vector<float>(kElements, 1), 9).eta,
            harness.options.schedule.At(10));
  const std::vector<float> theta = Theta(harness);
  harness.workers[1].share_ticket = 0;
  EXPECT_EQ(harness.Repair(1, 10).result, Result::kCurrent);
  EXPECT_EQ(Theta(harness), theta);
  // One that is back by a read only holds nobody up at a step that is passed.
  harness.Send({.kind = EventKind::kExpire, .worker = 1, .incarnation = 1}, {});
  EXPECT_EQ(harness.Repair(0, 20).result, Result::kCurrent);
  harness.Read(1);
  EXPECT_EQ(harness.Repair(0, 20).result, Result::kCurrent);
  EXPECT_EQ(harness.Repair(1, 20).result, Result::kCurrent);
}

// Dies between its share and the others': its share stays, nobody waits for it.
TEST(SegmentRepair, AWorkerThatIsLostAfterItsShareLeavesItAtTheNewRate) {
  SegmentHarness harness(StepOptions(3), 3);
  for (uint64_t t = 0; t < 9; ++t) PushOne(harness, t % 3, t);
  std::vector<float> expected = Theta(harness);
  const Schedule& schedule = harness.options.schedule;
  const float factor = (schedule.At(10) - schedule.At(9)) * kGamma;
  for (const uint32_t w : {0u, 1u, 2u}) {
    for (size_t k = 0; k < kElements; ++k) {
      expected[k] -= factor * harness.workers[w].half->momentum()[k];
    }
  }
  harness.Repair(0, 10);
  harness.Send({.kind = EventKind::kExpire, .worker = 0, .incarnation = 1}, {});
  // Its successor in the slot has no momentum.
  ++harness.workers[0].incarnation;
  harness.workers[0].sequence = 0;
  harness.Join(0);
  EXPECT_EQ(harness.Repair(0, 10).result, Result::kPending);
  EXPECT_EQ(harness.segment->MissingShares(10), (std::vector<uint32_t>{1, 2}));
  harness.Repair(1, 10);
  EXPECT_EQ(harness.Repair(2, 10).result, Result::kCurrent);
  EXPECT_EQ(harness.Repair(0, 10).result, Result::kCurrent);
  EXPECT_EQ(Theta(harness), expected);
}

TEST(SegmentRepair, WhoBringsALaterStepMayBeAheadOfTheOthers) {
  SegmentHarness harness(StepOptions(2), 2);
  PushOne(harness, 0, 0);
  PushOne(harness, 1, 1);
  EXPECT_EQ(harness.Repair(0, 20).result, Result::kPending);
  EXPECT_EQ(harness.segment->RepairUnderWay(), 20u);
  EXPECT_EQ(harness.Repair(1, 10).result, Result::kCurrent);
  EXPECT_EQ(harness.segment->clock(), 10u);
  PushOne(harness, 1, 11);
  EXPECT_TRUE(harness.status.ok()) << harness.status;
  EXPECT_EQ(harness.Repair(0, 20).result, Result::kPending);
  EXPECT_EQ(harness.Repair(1, 20).result, Result::kCurrent);
  EXPECT_EQ(harness.Repair(0, 20).result, Result::kCurrent);
  EXPECT_EQ(harness.segment->clock(), 20u);
}

TEST(SegmentRepair, BadRepairsAreRefusedAndChangeNothing) {
  SegmentHarness harness(StepOptions(2), 2);
  PushOne(harness, 0, 0);
  const std::string before = harness.segment->Save();
  const auto expect = [&](Event event, const std::vector<float>& values, const std::string& text) {
    event.kind = EventKind::kLearningRateRepair;
    if (event.incarnation == 0) event.incarnation = 1;
    harness.Send(event, values);
    EXPECT_THAT(std::string(harness.status.message()), HasSubstr(text));
    EXPECT_EQ(harness.segment->Save(), before) << text;
  };
  std::vector<float> v(kElements, 1);
  expect({.ticket = 11}, v, "does not jump at ticket 11, but at 10, 20");
  expect({.ticket = 0}, v, "does not jump at ticket 0");
  expect({.ticket = 10}, {}, "its momentum is needed");
  expect({.worker = 2, .ticket = 10}, v, "beyond the job's 2 slots");
  expect({.codec = static_cast<uint8_t>(CodecId::kFp16), .ticket = 10}, v, "plain fp32");
  v[7] = std::numeric_limits<float>::infinity();
  expect({.ticket = 10}, v, "element 7");
  Event shorter{.kind = EventKind::kLearningRateRepair, .incarnation = 1, .ticket = 10};
  const std::vector<uint8_t> bytes(4);
  const ByteSpan piece(bytes);
  shorter.payload = {absl::MakeConstSpan(&piece, 1), 4};
  EXPECT_THAT(std::string(harness.segment->CheckPayload(shorter).message()), HasSubstr("4 bytes"));

  harness.workers[0].incarnation = 3;
  harness.workers[0].sequence = 0;
  harness.Join(0);
  harness.Send({.kind = EventKind::kLearningRateRepair, .incarnation = 2, .ticket = 10}, {});
  EXPECT_TRUE(absl::IsAborted(harness.status)) << harness.status;

  // Running statistics have no momentum, and no steps.
  SegmentOptions statistics = StepOptions(2);
  statistics.plan.kind = TensorKind::kStatistic;
  SegmentHarness averages(statistics, 2);
  averages.Push(0, std::vector<float>(kElements, 1), 0);
  averages.Send({.kind = EventKind::kLearningRateRepair, .incarnation = 1, .ticket = 10}, {});
  EXPECT_THAT(std::string(averages.status.message()), HasSubstr("nothing to repair"));
  averages.Push(1, std::vector<float>(kElements, 1), 30);
  EXPECT_TRUE(averages.status.ok()) << averages.status;
  // Rules that keep their momentum need none either.
  SegmentHarness zero(StepOptions(2, "dana_zero"), 2);
  PushOne(zero, 0, 0);
  PushOne(zero, 1, 30);
  EXPECT_TRUE(zero.status.ok()) << zero.status;
}

// A share is moved from the rate of its worker's last push, be that long ago.
TEST(SegmentRepair, AShareFromTheWarmUpIsMovedAllTheWay) {
  SegmentOptions options = StepOptions(2);
  options.schedule.warmup_epochs = 0.5;
  SegmentHarness harness(options, 2);
  PushOne(harness, 0, 2);
  for (uint64_t t = 3; t < 10; ++t) PushOne(harness, 1, t);
  std::vector<float> expected = Theta(harness);
  const Schedule& schedule = options.schedule;
  ASSERT_LT(schedule.At(2), schedule.At(9));
  for (const auto& [w, ticket] : {std::pair{0u, 2u}, std::pair{1u, 9u}}) {
    const float factor = (schedule.At(10) - schedule.At(ticket)) * kGamma;
    for (size_t k = 0; k < kElements; ++k) {
      expected[k] -= factor * harness.workers[w].half->momentum()[k];
    }
  }
  harness.Repair(0, 10);
  EXPECT_EQ(harness.Repair(1, 10).result, Result::kCurrent);
  EXPECT_EQ(Theta(harness), expected);
}

// theta, every v_i and the rate at which each is counted, in double: what the server's
// parameters must be, whatever comes and goes.
struct Reference {
  explicit Reference(absl::Span<const float> values, uint32_t workers)
      : theta(values.begin(), values.end()),
        gone(values.size()),
        momentum(workers, std::vector<double>(values.size())),
        rate(workers) {}

  void Push(uint32_t w, const std::vector<float>& gradient, double eta) {
    rate[w] = eta;
    for (size_t k = 0; k < theta.size(); ++k) {
      momentum[w][k] = kGamma * momentum[w][k] + gradient[k];
      theta[k] -= eta * momentum[w][k];
    }
  }
  // A new worker in the slot: what was there stays as it is.
  void Restart(uint32_t w) {
    for (size_t k = 0; k < theta.size(); ++k) gone[k] += kGamma * rate[w] * momentum[w][k];
    momentum[w].assign(theta.size(), 0);
  }
  std::vector<float> Sent() const {
    std::vector<float> sent(theta.size());
    for (size_t k = 0; k < theta.size(); ++k) {
      double value = theta[k] - gone[k];
      for (size_t w = 0; w < rate.size(); ++w) value -= kGamma * rate[w] * momentum[w][k];
      sent[k] = static_cast<float>(value);
    }
    return sent;
  }

  std::vector<double> theta, gone;
  std::vector<std::vector<double>> momentum;
  std::vector<double> rate;
};

// Workers in random order through five steps, with expiries, late returns, restarts,
// and pushes between the shares.
TEST(SegmentRepair, ThetaIsWhatItShouldBeWhateverComesAndGoes) {
  constexpr uint32_t kWorkers = 7;
  constexpr uint64_t kTickets = 400;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    SegmentOptions options = StepOptions(kWorkers);
    options.schedule.decay_epochs = {5, 12, 12.3, 20, 39.9};
    options.schedule.decay_factor = 0.4;
    SegmentHarness harness(options, kWorkers);
    const Schedule& schedule = options.schedule;
    const std::vector<uint64_t> steps = schedule.Steps();
    Reference reference(harness.segment->theta(), kWorkers);
    std::set<uint32_t> away;  // expired
    uint64_t drawn = 0;
    const auto draw = [&](uint64_t below) { return RandomBits(20, seed, drawn++) % below; };
    const auto push = [&](uint32_t w, uint64_t ticket) {
      const std::vector<float> gradient = QuadraticGradient(harness.workers[w].parameters, drawn++);
      const Outcome outcome = harness.Push(w, gradient, ticket);
      ASSERT_TRUE(harness.status.ok()) << harness.status;
      reference.Push(w, gradient, outcome.eta);
      away.erase(w);
    };
    const auto repair = [&](uint32_t w, uint64_t step) {
      const Outcome outcome = harness.Repair(w, step);
      EXPECT_TRUE(harness.status.ok()) << harness.status;
      if (harness.workers[w].last_eta != 0) reference.rate[w] = schedule.At(step);
      away.erase(w);
      return outcome.result;
    };
    const auto expire = [&](uint32_t w) {
      harness.Send({.kind = EventKind::kExpire, .worker = w,
                    .incarnation = harness.workers[w].incarnation}, {});
      away.insert(w);
    };
    const auto restart = [&](uint32_t w) {
      ++harness.workers[w].incarnation;
      harness.workers[w].sequence = 0;
      harness.Join(w);
      reference.Restart(w);
      away.erase(w);
    };
    uint64_t lost = 0, late = 0;
    for (uint64_t ticket = 0; ticket < kTickets; ++ticket) {
      const uint64_t step = NewestStep(steps, ticket);
      if (step == ticket && step > 0) {
        std::vector<uint32_t> left;
        for (uint32_t w = 0; w < kWorkers; ++w) {
          if (away.count(w) == 0) left.push_back(w);
        }
        while (!left.empty()) {
          const uint64_t at = draw(left.size());
          const uint32_t w = left[at];
          const uint64_t what = draw(6);
          if (what < 2) {
            push(w, ticket - 1 - draw(3));
          } else if (what == 2 && draw(3) == 0) {
            expire(w);
            ++lost;
            left.erase(left.begin() + static_cast<int64_t>(at));
          } else {
            repair(w, step);
            left.erase(left.begin() + static_cast<int64_t>(at));
          }
          EXPECT_LT(RelativeDifference(reference.Sent(), harness.segment->theta()), 1e-5);
        }
        for (uint32_t w = 0; w < kWorkers; ++w) {
          if (away.count(w) == 0) {
            EXPECT_EQ(repair(w, step), Result::kCurrent);
          }
        }
      }
      const auto w = static_cast<uint32_t>(draw(kWorkers));
      if (step > 0 && harness.workers[w].share_ticket < step) {
        late += away.count(w);
        EXPECT_EQ(repair(w, step), Result::kCurrent);
      }
      push(w, ticket);
      const uint64_t fate = draw(40);
      if (fate == 0) restart(w);
      if (fate == 1) expire(static_cast<uint32_t>(draw(kWorkers)));
      ASSERT_LT(RelativeDifference(reference.Sent(), harness.segment->theta()), 1e-5)
          << "seed " << seed << " ticket " << ticket;
    }
    EXPECT_GT(lost + late, 0u) << seed;

    // And all of it again from its records.
    const auto copy = Segment::Create(options).value();
    ByteSpan records(reinterpret_cast<const uint8_t*>(harness.records.data()), harness.records.size());
    uint64_t count = 0;
    while (!records.empty()) {
      ByteSpan piece;
      uint64_t size = 0;
      const auto event = ParseRecord(records, &piece, &size);
      ASSERT_TRUE(event.ok()) << event.status();
      ASSERT_TRUE(copy->Replay(*event).ok());
      records.remove_prefix(size);
      // Saved state is whole at any point.
      if (++count % 97 == 0) {
        const std::string saved = copy->Save();
        ASSERT_TRUE(copy->Load(saved).ok());
        ASSERT_EQ(copy->Save(), saved);
      }
    }
    EXPECT_EQ(copy->Save(), harness.segment->Save());
  }
}

}  // namespace
}  // namespace foreshard
