// yellow_fin's cubic, its tuner and its closed loop against a reference in fp64 on a
// noisy quadratic, and what the loop is for.
#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/update_rules/yellow_fin_tuner.h"
#include "tests/server/update_rules/rule_run.h"

namespace foreshard {
namespace {

constexpr uint64_t kElements = 100;

// Curvatures from 0.05 to 1.
std::vector<float> Gradient(uint64_t push, const std::vector<float>& x) {
  std::vector<float> gradient(x.size());
  for (uint64_t i = 0; i < x.size(); ++i) {
    const double curvature = std::pow(20.0, -static_cast<double>(i) / kElements);
    gradient[i] = static_cast<float>(curvature * x[i] + 0.01 * RandomNormal(5, push, i));
  }
  return gradient;
}

double Loss(const std::vector<float>& theta) {
  double loss = 0;
  for (uint64_t i = 0; i < theta.size(); ++i) {
    loss += 0.5 * std::pow(20.0, -static_cast<double>(i) / kElements) * theta[i] * theta[i];
  }
  return loss;
}

TEST(YellowFinTest, TheCubicIsSolved) {
  for (double p = 1e-12; p < 1e13; p *= 3.7) {
    const double x = YellowFinRoot(p);
    const double y = x - 1;
    EXPECT_GE(x, 0);
    EXPECT_LE(x, 1);
    // Against the size of its terms: the root itself is known to 2^-60 or its rounding.
    EXPECT_NEAR(y * y * y + p * y + p, 0, 1e-15 * (1 + p)) << p;
  }
  EXPECT_NEAR(YellowFinRoot(std::numeric_limits<double>::infinity()), 0, 1e-15);
}

// The tuner and the loop written anew, in fp64, with whole vectors kept.
class Reference {
 public:
  Reference(const std::vector<float>& theta, double lambda)
      : lambda_(lambda), v_(theta.size()), mean_(theta.size()) {
    history_.emplace_back(theta.begin(), theta.end());
  }

  void Push(const std::vector<float>& gradient, uint64_t lag, double eta, double peak) {
    const size_t version = history_.size() - 1;
    Vector theta = history_.back();
    double square = 0, norm_of_mean = 0;
    const double t = static_cast<double>(version) + 1;
    rate = std::min(1.0, t / 200) * (version == 0 ? eta : eta / peak * tuned_);
    Vector g(theta.size());
    for (size_t i = 0; i < theta.size(); ++i) {
      g[i] = gradient[i] + lambda_ * theta[i];
      mean_[i] = 0.999 * mean_[i] + 0.001 * g[i];
      square += g[i] * g[i];
      norm_of_mean += mean_[i] * mean_[i];
      v_[i] = mu * v_[i] + g[i];
      theta[i] -= rate * v_[i];
    }
    history_.push_back(theta);

    // Tunes the pushes to come.
    squares_.push_back(square);
    if (squares_.size() > 20) squares_.pop_front();
    const double unbias = 1 / (1 - std::pow(0.999, t));
    const auto average = [&](double value, double* mean) {
      *mean = 0.999 * *mean + 0.001 * value;
      return *mean * unbias;
    };
    const double largest = *std::max_element(squares_.begin(), squares_.end());
    const double least = *std::min_element(squares_.begin(), squares_.end());
    const double h_max = std::exp(average(std::log(largest), &log_max_));
    const double h_min = std::exp(average(std::log(least), &log_min_));
    const double norm = average(std::sqrt(square), &norm_);
    const double h = average(square, &square_);
    const double c = std::max(h - norm_of_mean * unbias * unbias, 1e-12 * h);
    const double d = average(norm / h, &distance_);
    const double p = d * d * h_min * h_min / (2 * c);
    // Cardano: y = w - p / (3 w), w^3 = -(p + sqrt(p^2 + 4 p^3 / 27)) / 2.
    const double w = -std::cbrt((p + std::sqrt(p * p + 4.0 / 27 * p * p * p)) / 2);
    const double mu1 = std::pow(w - p / (3 * w) + 1, 2);
    const double kappa = std::sqrt(h_max / h_min);
    target = std::max(mu1, std::pow((kappa - 1) / (kappa + 1), 2));
    tuned_ = std::pow(1 - std::sqrt(target), 2) / h_min;

    const size_t r = version - lag;
    if (r == 0) return;
    std::vector<double> ratios;
    const size_t samples = std::min<size_t>(64, theta.size());
    for (size_t k = 0; k < samples; ++k) {
      const size_t i = k * theta.size() / samples;
      const double before = history_[r][i] - history_[r - 1][i];
      ratios.push_back((history_[r + 1][i] - history_[r][i] + rate * g[i]) / before);
    }
    std::sort(ratios.begin(), ratios.end());
    mu = std::clamp(mu + 0.01 * (target - ratios[samples / 2]), -0.9, 0.99);
  }

  double rate = 0, mu = 0, target = 0;
  const Vector& theta() const { return history_.back(); }

 private:
  const double lambda_;
  Vector v_, mean_;
  std::vector<Vector> history_;
  std::deque<double> squares_;
  double log_max_ = 0, log_min_ = 0, norm_ = 0, square_ = 0, distance_ = 0, tuned_ = 0;
};

class Numbers : public StateVisitor {
 public:
  explicit Numbers(UpdateRule& rule) { rule.VisitState(*this); }
  void Visit(std::string_view name, std::vector<float>& values) override {}
  void VisitNumbers(std::string_view name, std::vector<double>& values) override {
    if (name == "yellow_fin") scale = values[1], mu = values[2];
  }
  double scale = 0, mu = 0;
};

constexpr float kPeak = 0.1f;

RuleSettings Settings(uint32_t workers) {
  return {.rule = "yellow_fin", .weight_decay = 1e-3f, .max_workers = workers, .peak_eta = kPeak};
}

TEST(YellowFinTest, AgreesWithTheFormulasInDouble) {
  for (const uint32_t workers : {1u, 4u}) {
    RuleRun run(Settings(workers), workers, kElements);
    Reference reference(run.theta(), double{1e-3f});
    std::vector<uint64_t> sent(workers);
    double worst_theta = 0, worst_rate = 0, worst_mu = 0;
    for (uint64_t push = 0; push < 600; ++push) {
      const uint32_t worker = RandomWorker(push, workers);
      const float eta = push < 400 ? kPeak : kPeak / 2;
      const double mu = reference.mu;  // in force at this push
      const std::vector<float> gradient = Gradient(push, run.held(worker));
      reference.Push(gradient, push - sent[worker], eta, double{kPeak});
      run.Push(worker, gradient, eta);
      sent[worker] = push + 1;
      const Numbers numbers(run.rule());
      worst_rate = std::max(worst_rate, std::abs(numbers.scale * eta / reference.rate - 1));
      worst_mu = std::max(worst_mu, std::abs(numbers.mu - mu));
      worst_theta = std::max(worst_theta, DistanceOf(run.theta(), reference.theta()));
    }
    const std::string name = std::to_string(workers) + "_workers";
    RecordProperty(name + "_rate", std::to_string(worst_rate * 1e6) + "e-6");
    RecordProperty(name + "_mu", std::to_string(worst_mu * 1e6) + "e-6");
    RecordProperty(name + "_theta", std::to_string(worst_theta * 1e6) + "e-6");
    EXPECT_LT(worst_rate, 1e-4) << workers;
    EXPECT_LT(worst_mu, 1e-4) << workers;
    EXPECT_LT(worst_theta, 1e-3) << workers;
  }
}

// Asynchrony adds momentum; the loop takes out of the rule's what it added. Untuned,
// the same job learns with any number of workers.
TEST(YellowFinTest, LearnsWithLessMomentumWhereThereAreMoreWorkers) {
  double mu[2];
  for (const uint32_t workers : {1u, 8u}) {
    RuleRun run(Settings(workers), workers, kElements);
    const double before = Loss(run.theta());
    for (uint64_t push = 0; push < 3000; ++push) {
      const uint32_t worker = RandomWorker(push, workers);
      run.Push(worker, Gradient(push, run.held(worker)), kPeak);
    }
    mu[workers > 1] = Numbers(run.rule()).mu;
    RecordProperty("mu_" + std::to_string(workers), std::to_string(mu[workers > 1]));
    RecordProperty("loss_" + std::to_string(workers), std::to_string(Loss(run.theta()) / before));
    EXPECT_LT(Loss(run.theta()), 0.1 * before) << workers;
  }
  EXPECT_LT(mu[1], mu[0]);
}

TEST(YellowFinTest, AGradientOfZeroTunesNothing) {
  RuleRun run({.rule = "yellow_fin", .max_workers = 1, .peak_eta = kPeak}, 1, kElements);
  for (uint64_t push = 0; push < 10; ++push) run.Push(0, Gradient(push, run.held(0)), kPeak);
  run.Push(0, std::vector<float>(kElements), kPeak);
  const double scale = Numbers(run.rule()).scale;
  run.Push(0, std::vector<float>(kElements), kPeak);
  EXPECT_DOUBLE_EQ(Numbers(run.rule()).scale, scale / 11 * 12);  // the ramp goes on
  for (const float value : run.theta()) ASSERT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace foreshard
