// Oracles 1, 2 and 5 of the update rules, on the very objects that the daemons run.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/server/segment_harness.h"

namespace foreshard {
namespace {

constexpr uint64_t kElements = 300;

// Which worker pushes next: equal workers in random order, or unequal ones.
uint32_t NextWorker(uint32_t workers, bool unequal, uint64_t step) {
  const double u = RandomUniform(9, unequal, step);
  return std::min<uint32_t>(workers - 1, static_cast<uint32_t>(workers * (unequal ? u * u * u : u)));
}

// Oracle 1: DANA-Zero with one worker is Nesterov momentum, gradient taken at
// theta - eta gamma v.
TEST(Oracle, DanaZeroAloneIsNesterov) {
  SegmentHarness harness(MakeSegmentOptions("dana_zero", kElements, 1), 1);
  std::vector<double> theta(harness.segment->theta().begin(), harness.segment->theta().end());
  std::vector<double> v(kElements);
  const double eta = 0.05f, gamma = 0.9f;
  for (uint64_t step = 0; step < 1000; ++step) {
    std::vector<float> at(kElements);
    for (size_t k = 0; k < kElements; ++k) at[k] = static_cast<float>(theta[k] - eta * gamma * v[k]);
    const std::vector<float> reference = QuadraticGradient(at, step);
    for (size_t k = 0; k < kElements; ++k) {
      v[k] = gamma * v[k] + reference[k];
      theta[k] -= eta * v[k];
    }
    harness.Push(0, QuadraticGradient(harness.workers[0].parameters, step), step);
    ASSERT_TRUE(harness.status.ok()) << harness.status;
  }
  const std::vector<float> expected(theta.begin(), theta.end());
  EXPECT_LT(RelativeDifference(expected, harness.segment->theta()), 1e-6);
}


// Brings every worker's momentum for the step, in random order; meanwhile those that
// have not brought theirs yet push at the old rate, with tickets dealt before it.
void GatherShares(SegmentHarness& slim, SegmentHarness& zero, uint64_t step, bool pushes_between) {
  std::vector<uint32_t> left(slim.workers.size());
  std::iota(left.begin(), left.end(), 0);
  for (uint64_t drawn = 0; !left.empty(); ++drawn) {
    const uint64_t at = RandomBits(11, step, drawn) % left.size();
    const uint32_t w = left[at];
    if (pushes_between && RandomBits(12, step, drawn) % 2 == 0) {
      const std::vector<float> gradient = QuadraticGradient(zero.workers[w].parameters, ~drawn);
      zero.Push(w, gradient, step - 1);
      slim.Push(w, gradient, step - 1);
    } else {
      left.erase(left.begin() + static_cast<int64_t>(at));
      EXPECT_EQ(slim.Repair(w, step).result, left.empty() ? Result::kCurrent : Result::kPending);
    }
    EXPECT_TRUE(zero.status.ok() && slim.status.ok()) << zero.status << slim.status;
  }
  // All go on from fresh parameters at the new rate; so does Zero, whose clock is moved
  // there by a batch that is skipped.
  zero.Send({.kind = EventKind::kSkip, .worker = 0, .incarnation = 1,
             .sequence = ++zero.workers[0].sequence, .ticket = step,
             .held_version = zero.workers[0].held_version}, {});
  EXPECT_TRUE(zero.status.ok()) << zero.status;
  for (uint32_t w = 0; w < slim.workers.size(); ++w) {
    zero.Read(w);
    EXPECT_EQ(slim.Repair(w, step).result, Result::kCurrent);
  }
}

struct SlimRun {
  bool bring = false;    // at steps of the rate every worker brings its momentum
  bool between = false;  // pushes between one worker's momentum and another's
  bool cheap = true;     // the worker's correction of its push is in force
  // Each computes its gradients at what it holds; otherwise Slim is given Zero's, so
  // that a deviation adds up instead of being trained away.
  bool closed_loop = true;
};

// Runs Zero and Slim side by side under one schedule and arrival order: the largest
// difference of what they would send.
double ZeroAgainstSlim(uint32_t workers, const Schedule& schedule, bool unequal, const SlimRun& run,
                       uint64_t pushes) {
  SegmentOptions zero_options = MakeSegmentOptions("dana_zero", kElements, workers);
  SegmentOptions slim_options = MakeSegmentOptions("dana_slim", kElements, workers);
  zero_options.schedule = slim_options.schedule = schedule;
  SegmentHarness zero(zero_options, workers), slim(slim_options, workers);
  const std::vector<uint64_t> steps = schedule.Steps();
  for (uint64_t ticket = 0; ticket < pushes; ++ticket) {
    const uint32_t w = NextWorker(workers, unequal, ticket);
    if (std::binary_search(steps.begin(), steps.end(), ticket)) {
      if (run.bring) {
        GatherShares(slim, zero, ticket, run.between);
      } else {
        // Brings nothing, as if there were no repair.
        for (uint32_t other = 0; other < workers; ++other) {
          slim.Send({.kind = EventKind::kLearningRateRepair, .worker = other, .incarnation = 1,
                     .ticket = ticket}, std::vector<float>(kElements));
          EXPECT_TRUE(slim.status.ok()) << slim.status;
        }
      }
    }
    if (!run.cheap) {
      for (auto& worker : slim.workers) worker.last_eta = 0;
    }
    const std::vector<float> gradient = QuadraticGradient(zero.workers[w].parameters, ticket);
    zero.Push(w, gradient, ticket);
    slim.Push(w, run.closed_loop ? QuadraticGradient(slim.workers[w].parameters, ticket) : gradient,
              ticket);
    EXPECT_TRUE(zero.status.ok() && slim.status.ok()) << zero.status << slim.status;
  }
  double worst = 0;
  for (uint32_t w = 0; w < workers; ++w) {
    zero.Read(w);
    slim.Read(w);
    worst = std::max(worst, RelativeDifference(zero.workers[w].parameters, slim.workers[w].parameters));
  }
  return worst;
}

// A rate at which each N is stable: algorithms' noisy quadratic bounds shrink with N.
float StableRate(uint32_t workers) { return workers == 1 ? 0.05f : workers == 8 ? 0.02f : 0.005f; }

TEST(Oracle, DanaZeroIsDanaSlimAtAConstantRate) {
  for (const uint32_t workers : {1u, 8u, 32u}) {
    for (const bool unequal : {false, true}) {
      const Schedule schedule{.learning_rate = StableRate(workers), .workers = workers};
      EXPECT_LT(ZeroAgainstSlim(workers, schedule, unequal, {}, 1000), 1e-5)
          << workers << (unequal ? " unequal" : " equal");
    }
  }
}

// Oracle 2 through a step decay.
TEST(Oracle, BroughtMomentumKeepsZeroAndSlimEqualThroughStepDecays) {
  for (const uint32_t workers : {1u, 8u, 32u}) {
    for (const bool unequal : {false, true}) {
      const Schedule schedule{.learning_rate = StableRate(workers), .workers = workers, .decay = Decay::kStep,
                              .decay_epochs = {5, 7}, .decay_factor = 0.1, .batches_per_epoch = 100};
      const double repaired = ZeroAgainstSlim(workers, schedule, unequal, {.bring = true}, 1000);
      EXPECT_LT(repaired, 1e-5) << workers;
      // While momentum is being gathered what is sent holds some of it at either rate, so
      // that gradients of these pushes would differ; theirs apart, nothing does.
      EXPECT_LT(ZeroAgainstSlim(workers, schedule, unequal,
                                {.bring = true, .between = true, .closed_loop = false}, 1000), 1e-5)
          << workers;
      // The step itself is seen: without any repair the two part.
      EXPECT_GT(ZeroAgainstSlim(workers, schedule, unequal, {.cheap = false}, 520), 100 * repaired)
          << workers;
    }
  }
}

TEST(Oracle, CheapRepairCutsTheDeviationThroughAWarmUp) {
  for (const uint32_t workers : {8u, 32u}) {
    const Schedule schedule{.learning_rate = StableRate(workers), .warmup_epochs = 5, .workers = workers,
                            .batches_per_epoch = 100};
    for (const bool closed_loop : {false, true}) {
      const double with = ZeroAgainstSlim(workers, schedule, false, {.closed_loop = closed_loop}, 500);
      const double without =
          ZeroAgainstSlim(workers, schedule, false, {.cheap = false, .closed_loop = closed_loop}, 500);
      // Measured 220 and 31 in the open loop, 5.6 and 4.0 in the closed one.
      EXPECT_GT(without / with, closed_loop ? 3 : 9)
          << workers << ": " << without << " without, " << with << " with";
    }
  }
}

// The two together: past a warm-up and a step Slim is as near to Zero as past the
// warm-up alone.
TEST(Oracle, BothRepairsTogether) {
  for (const uint32_t workers : {8u, 32u}) {
    const Schedule warm_up{.learning_rate = StableRate(workers), .warmup_epochs = 3, .workers = workers,
                           .batches_per_epoch = 100};
    Schedule both = warm_up;
    both.decay = Decay::kStep;
    both.decay_epochs = {5};
    both.decay_factor = 0.1;
    const double before = ZeroAgainstSlim(workers, warm_up, false, {.closed_loop = false}, 500);
    // Right behind the step, which the cheap form alone repairs only push by push.
    const double after = ZeroAgainstSlim(workers, both, false, {.bring = true, .closed_loop = false}, 501);
    const double without = ZeroAgainstSlim(workers, both, false, {.closed_loop = false}, 501);
    EXPECT_LT(after, 1.5 * before) << workers << ": " << without << " without";
    EXPECT_GT(without, 5 * after) << workers;
  }
}

// Oracle 5: the sum over updates of (lag + 1) is the sum over workers of the
// version last sent, whatever the speeds.
TEST(Oracle, LagsAddUpToVersionsSent) {
  for (const bool unequal : {false, true}) {
    for (const uint32_t workers : {1u, 3u, 8u}) {
      SegmentHarness harness(MakeSegmentOptions("asgd", 50, workers), workers);
      uint64_t lags = 0;
      constexpr uint64_t kPushes = 500;
      for (uint64_t step = 0; step < kPushes; ++step) {
        const uint32_t w = NextWorker(workers, unequal, step);
        const Outcome outcome = harness.Push(w, QuadraticGradient(harness.workers[w].parameters, step), step);
        ASSERT_EQ(outcome.result, Result::kApplied);
        lags += outcome.lag + 1;
      }
      uint64_t sent = 0;
      for (uint32_t w = 0; w < workers; ++w) sent += harness.segment->version_sent(w);
      EXPECT_EQ(lags, sent);
      EXPECT_EQ(harness.segment->version(), kPushes);
      if (!unequal) {
        EXPECT_NEAR(static_cast<double>(lags) / kPushes - 1, workers - 1, 0.1 * workers);
      }
    }
  }
}

// Nothing comes between a lone worker's reply and its push, so whatever a rule sends,
// it would send it again.
TEST(Oracle, SurpriseIsZeroAloneUnderEveryRule) {
  for (const RuleTraits& traits : Rules()) {
    if (traits.synchronous) continue;
    SegmentHarness harness(MakeSegmentOptions(std::string(traits.name), kElements, 1, 0.01f), 1);
    for (uint64_t step = 0; step < 50; ++step) {
      const Outcome outcome =
          harness.Push(0, QuadraticGradient(harness.workers[0].parameters, step), step);
      EXPECT_EQ(outcome.sampled_elements, kElements);
      EXPECT_EQ(outcome.surprise_squares, 0) << traits.name << ", push " << step;
    }
  }
}

// The surprise is nothing for a lone worker and the same for Zero and Slim.
TEST(Oracle, SurpriseIsZeroAloneAndEqualForZeroAndSlim) {
  SegmentHarness alone(MakeSegmentOptions("dana_zero", kElements, 1), 1);
  SegmentHarness zero(MakeSegmentOptions("dana_zero", kElements, 4, 0.02f), 4);
  SegmentHarness slim(MakeSegmentOptions("dana_slim", kElements, 4, 0.02f), 4);
  for (uint64_t step = 0; step < 200; ++step) {
    const Outcome one = alone.Push(0, QuadraticGradient(alone.workers[0].parameters, step), step);
    EXPECT_EQ(one.sampled_elements, kElements);
    // Up to the rounding of the slice of S that is summed anew.
    EXPECT_LT(std::sqrt(one.surprise_squares / kElements), 1e-7);
    if (step > 0) {
      EXPECT_GT(one.gap_squares, 0);  // x_i is ahead of theta by design
    }
    const uint32_t w = NextWorker(4, false, step);
    const Outcome a = zero.Push(w, QuadraticGradient(zero.workers[w].parameters, step), step);
    const Outcome b = slim.Push(w, QuadraticGradient(slim.workers[w].parameters, step), step);
    EXPECT_NEAR(std::sqrt(a.surprise_squares), std::sqrt(b.surprise_squares),
                1e-4 * std::sqrt(b.surprise_squares) + 1e-5);
  }
}

}  // namespace
}  // namespace foreshard
