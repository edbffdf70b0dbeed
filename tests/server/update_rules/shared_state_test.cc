// Rules with state that all workers share, each against its formula in fp64 over a
// long run in random order of arrival.
#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/update_rules/rule_run.h"

namespace foreshard {
namespace {

constexpr uint64_t kElements = 101;
constexpr uint32_t kWorkers = 4;

TEST(SharedStateTest, AdamAgreesWithDouble) {
  const RuleSettings settings{.rule = "adam", .weight_decay = 1e-2f, .max_workers = kWorkers};
  RuleRun run(settings, kWorkers, kElements);
  Vector theta(run.theta().begin(), run.theta().end()), m(kElements), v(kElements);
  const double beta1 = settings.beta1, beta2 = settings.beta2;
  double worst = 0;
  for (uint64_t push = 0; push < 2000; ++push) {
    const uint32_t worker = RandomWorker(push, kWorkers);
    const std::vector<float> gradient = RandomGradient(push, kElements);
    const float eta = push < 1000 ? 1e-3f : 1e-4f;
    run.Push(worker, gradient, eta);
    for (size_t i = 0; i < kElements; ++i) {
      m[i] = beta1 * m[i] + (1 - beta1) * gradient[i];
      v[i] = beta2 * v[i] + (1 - beta2) * gradient[i] * gradient[i];
      theta[i] -= eta * (m[i] / (std::sqrt(v[i]) + settings.epsilon) +
                         double{settings.weight_decay} * theta[i]);
    }
    worst = std::max(worst, DistanceOf(run.theta(), theta));
    ASSERT_EQ(run.held(worker), run.theta());
  }
  EXPECT_LT(worst, 1e-5);
}

TEST(SharedStateTest, AdamTakesDecayOutsideTheMoments) {
  const RuleSettings settings{.rule = "adam", .weight_decay = 0.5f, .max_workers = 1};
  RuleRun run(settings, 1, kElements);
  const std::vector<float> before = run.theta();
  run.Push(0, std::vector<float>(kElements), 0.25f);  // no gradient: decay alone
  for (size_t i = 0; i < kElements; ++i) EXPECT_EQ(run.theta()[i], before[i] - 0.125f * before[i]);
}

// With a worker that leaves inside a bucket and comes back inside another: N holds
// until the bucket ends.
TEST(SharedStateTest, Smega2AgreesWithDouble) {
  const RuleSettings settings{
      .rule = "smega2", .momentum = 0.9f, .weight_decay = 1e-3f, .max_workers = kWorkers};
  RuleRun run(settings, kWorkers, kElements);
  Vector theta(run.theta().begin(), run.theta().end()), v(kElements), b(kElements);
  const double gamma = settings.momentum;
  uint32_t joined = kWorkers, bucket = 0, s = 0;
  double worst = 0;
  for (uint64_t push = 0; push < 2000; ++push) {
    if (push == 701) run.rule().Leave(3), --joined;
    if (push == 1301) run.rule().Join(3), ++joined;
    const uint32_t worker = RandomWorker(push, joined);
    const std::vector<float> gradient = RandomGradient(push, kElements);
    const float eta = push < 1000 ? 0.01f : 0.001f;
    run.Push(worker, gradient, eta);
    if (s == 0) bucket = joined;
    s = (s + 1) % bucket;
    Vector reply(kElements);
    const double n = s == 0 ? joined : bucket;
    for (size_t i = 0; i < kElements; ++i) {
      const double g = gradient[i] + double{settings.weight_decay} * theta[i];
      b[i] += g;
      theta[i] -= eta * (g + gamma * v[i]);
      if (s == 0) {
        v[i] = gamma * v[i] + b[i] / bucket;
        b[i] = 0;
      }
      reply[i] = theta[i] - eta * gamma * ((n + s * (gamma - 1)) * v[i] + s / n * b[i]);
    }
    worst = std::max({worst, DistanceOf(run.theta(), theta), DistanceOf(run.held(worker), reply)});
  }
  EXPECT_LT(worst, 1e-5);
}

// Oracle 7. Each stamp's gradient is fixed; those of the buckets after the last are
// zero, so that what is still on its way does not matter.
TEST(SharedStateTest, OrmoDaDrainedIsSynchronousMomentumOnBucketSums) {
  for (const uint32_t workers : {1u, 4u, 8u}) {
    constexpr uint64_t kBuckets = 50;
    constexpr float kEta = 0.01f, kGamma = 0.9f;
    RuleRun run({.rule = "ormo_da", .momentum = kGamma, .max_workers = workers, .workers = workers},
                workers, kElements);
    Vector theta(run.theta().begin(), run.theta().end()), u(kElements);
    const auto gradient_of = [&](uint64_t stamp) {
      return stamp <= kBuckets * workers ? RandomGradient(stamp, kElements)
                                         : std::vector<float>(kElements);
    };
    std::vector<uint64_t> stamps(workers);
    for (uint32_t worker = 0; worker < workers; ++worker) stamps[worker] = worker + 1;
    uint64_t last = workers;
    // In each turn every worker pushes once, in an order drawn anew: no lag is beyond 2 N.
    std::vector<uint32_t> order(workers);
    for (uint32_t worker = 0; worker < workers; ++worker) order[worker] = worker;
    for (uint64_t turn = 0; turn < kBuckets + 2; ++turn) {
      for (uint32_t i = workers; i > 1; --i) {
        std::swap(order[i - 1], order[RandomWorker(turn * workers + i, i)]);
      }
      for (const uint32_t worker : order) {
        run.Push(worker, gradient_of(stamps[worker]), kEta);
        stamps[worker] = ++last;
      }
    }
    for (uint64_t bucket = 1; bucket <= (last + workers - 1) / workers; ++bucket) {
      for (size_t i = 0; i < kElements; ++i) {
        theta[i] -= double{kEta} * kGamma * u[i];
        u[i] *= double{kGamma};
      }
      for (uint64_t stamp = (bucket - 1) * workers + 1; stamp <= bucket * workers; ++stamp) {
        const std::vector<float> gradient = gradient_of(stamp);
        for (size_t i = 0; i < kElements; ++i) {
          theta[i] -= double{kEta} * gradient[i];
          u[i] += gradient[i];
        }
      }
    }
    const double distance = DistanceOf(run.theta(), theta);
    EXPECT_LT(distance, 1e-6) << workers << " workers";
    RecordProperty("workers_" + std::to_string(workers), std::to_string(distance * 1e9) + "e-9");
  }
}

}  // namespace
}  // namespace foreshard
