// Oracle 4 for rate-aware DANA: with n = 1 everywhere it is dana_zero. And for unequal
// workers: their classes, and the reply against its formula in fp64.
#include <array>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/update_rules/rule_run.h"

namespace foreshard {
namespace {

constexpr uint64_t kElements = 101;
constexpr float kEta = 0.01f;
constexpr float kGamma = 0.9f;

RuleSettings Settings(const char* rule, uint32_t workers) {
  return {.rule = rule, .momentum = kGamma, .weight_decay = 1e-3f, .max_workers = workers};
}

TEST(DanaRateAwareTest, WithEqualWorkersItIsDanaZero) {
  constexpr uint32_t kWorkers = 5;
  RuleRun aware(Settings("dana_rate_aware", kWorkers), kWorkers, kElements);
  RuleRun zero(Settings("dana_zero", kWorkers), kWorkers, kElements);
  for (uint64_t push = 0; push < 1000; ++push) {
    const auto worker = static_cast<uint32_t>(push / 3 % kWorkers);  // three each in a row
    aware.Push(worker, RandomGradient(push, kElements), kEta);
    zero.Push(worker, RandomGradient(push, kElements), kEta);
    ASSERT_EQ(aware.theta(), zero.theta()) << push;
    ASSERT_EQ(aware.held(worker), zero.held(worker)) << push;
  }
}

class Classes : public StateVisitor {
 public:
  explicit Classes(UpdateRule& rule) { rule.VisitState(*this); }
  void Visit(std::string_view name, std::vector<float>& values) override {}
  void VisitNumbers(std::string_view name, std::vector<double>& values) override {
    if (name == "classes") classes = values;
  }
  std::vector<double> classes;
};

// In each period worker 0 pushes three times and worker 1 once: 1.5 and 0.5 of the mean
// rate, so 1.17 and -2 half octaves, classes 1 and -2: n is 2.8 for a true 3.
TEST(DanaRateAwareTest, ClassesAreTheRatesAndRepliesTheFormula) {
  constexpr uint32_t kWorkers = 2;
  RuleRun run(Settings("dana_rate_aware", kWorkers), kWorkers, kElements);
  Vector theta(run.theta().begin(), run.theta().end());
  std::array<Vector, kWorkers> v = {Vector(kElements), Vector(kElements)};
  double worst = 0;
  bool settled = false;
  for (uint64_t push = 0; push < 2000; ++push) {
    const uint32_t worker = push % 4 == 3;
    const std::vector<float> gradient = RandomGradient(push, kElements);
    run.Push(worker, gradient, kEta);
    const std::vector<double> classes = Classes(run.rule()).classes;
    Vector reply(kElements);
    for (size_t i = 0; i < kElements; ++i) {
      v[worker][i] = double{kGamma} * v[worker][i] + gradient[i] + double{1e-3f} * theta[i];
      theta[i] -= double{kEta} * v[worker][i];
      reply[i] = theta[i];
      for (uint32_t j = 0; j < kWorkers; ++j) {
        const double n = std::min(4.0, std::pow(2, (classes[j] - classes[worker]) / 2));
        const double gamma = kGamma;
        reply[i] -= double{kEta} * gamma * (1 - std::pow(gamma, n)) / (1 - gamma) * v[j][i];
      }
    }
    worst = std::max({worst, DistanceOf(run.theta(), theta), DistanceOf(run.held(worker), reply)});
    settled = classes == std::vector<double>{1, -2};
  }
  EXPECT_TRUE(settled) << Classes(run.rule()).classes[0] << ", " << Classes(run.rule()).classes[1];
  EXPECT_LT(worst, 1e-5);
  RecordProperty("worst", std::to_string(worst * 1e9) + "e-9");
}

// The one that is left after the fast one went returns to the mean.
TEST(DanaRateAwareTest, ALeaverTakesItsMomentumAlong) {
  RuleRun run(Settings("dana_rate_aware", 2), 2, kElements);
  for (uint64_t push = 0; push < 1000; ++push) {
    run.Push(push % 5 == 4, RandomGradient(push, kElements), kEta);
  }
  run.rule().Leave(0);
  const std::vector<float> zero(kElements);
  run.Push(1, zero, kEta);
  EXPECT_EQ(Classes(run.rule()).classes, (std::vector<double>{0, 0}));
  run.rule().Leave(1);
  std::vector<float> reply(kElements);
  run.rule().Reply({.worker = ~uint32_t{0}, .eta = kEta}, {0, kElements, true},
                   run.theta().data(), reply.data());
  EXPECT_EQ(reply, run.theta());
}

}  // namespace
}  // namespace foreshard
