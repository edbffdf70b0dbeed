// Oracle 4: without compensation or penalty, rules that need what a worker holds are
// their base, by value; and their formulas against fp64 over a long run.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/update_rules/rule_run.h"

namespace foreshard {
namespace {

constexpr uint64_t kElements = 101;
constexpr uint32_t kWorkers = 4;
constexpr float kEta = 0.01f;

RuleSettings Settings(const char* rule) {
  return {.rule = rule,
          .momentum = 0.9f,
          .weight_decay = 1e-3f,
          .max_workers = kWorkers,
          .peak_eta = 0.02f};
}

// Both see the same gradients; `replies` too must be equal, not theta alone.
void ExpectSameRun(const RuleSettings& with, const RuleSettings& base, bool knows_held,
                   bool replies) {
  RuleRun a(with, kWorkers, kElements), b(base, kWorkers, kElements);
  for (uint64_t push = 0; push < 1000; ++push) {
    const uint32_t worker = RandomWorker(push, kWorkers);
    const std::vector<float> gradient = RandomGradient(push, kElements);
    a.Push(worker, gradient, kEta, knows_held);
    b.Push(worker, gradient, kEta, knows_held);
    ASSERT_EQ(a.theta(), b.theta()) << with.rule << ", push " << push;
    if (replies) {
      ASSERT_EQ(a.held(worker), b.held(worker)) << with.rule << ", push " << push;
    }
  }
}

TEST(CompensationTest, WithoutCoefficientItIsTheBase) {
  for (const bool adaptive : {false, true}) {
    RuleSettings dc_asgd = Settings("dc_asgd");
    RuleSettings dana_dc = Settings("dana_dc");
    for (RuleSettings* settings : {&dc_asgd, &dana_dc}) {
      settings->dc_adaptive = adaptive;
      settings->dc_lambda = 0;
    }
    ExpectSameRun(dc_asgd, Settings("asgd"), true, true);
    ExpectSameRun(dana_dc, Settings("dana_zero"), true, true);
  }
}

// Where x_i is not known the distance counts as none: no compensation, P = 1.
TEST(CompensationTest, WithoutDistanceItIsTheBase) {
  ExpectSameRun(Settings("dc_asgd"), Settings("asgd"), false, true);
  ExpectSameRun(Settings("dana_dc"), Settings("dana_zero"), false, true);
  ExpectSameRun(Settings("dana_ga"), Settings("dana_zero"), false, true);
  // gap_aware sends theta itself, nag_asgd its look-ahead.
  ExpectSameRun(Settings("gap_aware"), Settings("nag_asgd"), false, false);
}

TEST(CompensationTest, WithItTheyDiffer) {
  for (const auto& [rule, base] : {std::pair{"dc_asgd", "asgd"}, {"dana_dc", "dana_zero"},
                                   {"gap_aware", "nag_asgd"}, {"dana_ga", "dana_zero"}}) {
    RuleRun a(Settings(rule), kWorkers, kElements), b(Settings(base), kWorkers, kElements);
    for (uint64_t push = 0; push < 50; ++push) {
      const uint32_t worker = RandomWorker(push, kWorkers);
      a.Push(worker, RandomGradient(push, kElements), kEta);
      b.Push(worker, RandomGradient(push, kElements), kEta);
    }
    EXPECT_GT(DistanceOf(a.theta(), b.theta()), 1e-4) << rule;
  }
}

// In fp64, element by element, from the page's formulas.
class Reference {
 public:
  Reference(const RuleSettings& settings, const std::vector<float>& theta)
      : settings_(settings),
        theta(theta.begin(), theta.end()),
        held_(settings.max_workers, this->theta),
        v_(settings.max_workers, Vector(theta.size())),
        mean_(theta.size()) {}

  void Push(uint32_t worker, const std::vector<float>& gradient, double eta) {
    const bool dc = settings_.rule == "dc_asgd" || settings_.rule == "dana_dc";
    const bool dana = settings_.rule == "dana_dc" || settings_.rule == "dana_ga";
    const double gamma = settings_.rule == "dc_asgd" ? 0 : double{settings_.momentum};
    for (size_t i = 0; i < theta.size(); ++i) {
      double g = gradient[i];
      const double distance = theta[i] - held_[worker][i];
      if (dc) {
        double rate = settings_.dc_lambda;
        if (settings_.dc_adaptive) {
          mean_[i] = settings_.dc_decay * mean_[i] + (1 - settings_.dc_decay) * g * g;
          rate /= std::sqrt(mean_[i] + 1e-7);
        }
        g += rate * g * g * distance;
      } else if (mean_[i] != 0) {
        const double a = mean_[i] / (1 - std::pow(0.999, pushes_));
        g /= 1 + std::abs(distance) / (settings_.peak_eta * (std::sqrt(a) + 1e-8));
      }
      double& v = v_[dana ? worker : 0][i];
      v = gamma * v + g + settings_.weight_decay * theta[i];
      theta[i] -= eta * v;
      if (!dc) mean_[i] = 0.999 * mean_[i] + 0.001 * v * v;
      double sum = 0;
      if (dana) {
        for (const Vector& other : v_) sum += other[i];
      }
      held_[worker][i] = theta[i] - eta * gamma * sum;
    }
    ++pushes_;
  }

 private:
  const RuleSettings settings_;

 public:
  Vector theta;
  const Vector& held(uint32_t worker) const { return held_[worker]; }

 private:
  std::vector<Vector> held_, v_;
  Vector mean_;  // MS or A
  double pushes_ = 0;
};

TEST(CompensationTest, AgreesWithTheFormulasInDouble) {
  for (const char* rule : {"dc_asgd", "dana_dc", "gap_aware", "dana_ga"}) {
    for (const bool adaptive : {false, true}) {
      RuleSettings settings = Settings(rule);
      settings.dc_adaptive = adaptive;
      RuleRun run(settings, kWorkers, kElements);
      Reference reference(settings, run.theta());
      double worst = 0;
      for (uint64_t push = 0; push < 1000; ++push) {
        const uint32_t worker = RandomWorker(push, kWorkers);
        const std::vector<float> gradient = RandomGradient(push, kElements);
        const float eta = push < 500 ? kEta : kEta / 10;
        run.Push(worker, gradient, eta);
        reference.Push(worker, gradient, eta);
        worst = std::max({worst, DistanceOf(run.theta(), reference.theta),
                          DistanceOf(run.held(worker), reference.held(worker))});
      }
      EXPECT_LT(worst, 1e-5) << rule;
      RecordProperty(std::string(rule) + (adaptive ? "_adaptive" : ""), std::to_string(worst));
    }
  }
}

}  // namespace
}  // namespace foreshard
