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

}  // namespace
}  // namespace foreshard
