// yellow_fin: rate and momentum tuned on line, per segment, the momentum in a closed
// loop that takes out what asynchrony adds (YellowFin, arXiv 1706.03471); then nag_asgd.
//
//   g' = g + lambda * theta                    lambda on decayed runs
//   h = |g'|^2
//   h_max, h_min: means of the logarithm of the largest and least h of 20 pushes
//   C = mean(h) - |mean(g')|^2;  D = mean(mean(|g'|) / mean(h))
//   p = D^2 h_min^2 / (2 C);  y^3 + p y + p = 0, sqrt(mu_1) = y + 1
//   kappa = h_max / h_min;  mu* = max(mu_1, ((sqrt(kappa) - 1) / (sqrt(kappa) + 1))^2)
//   rate = (1 - sqrt(mu*))^2 / h_min, rising over the first 200 pushes
//   mu_T = median over coordinates of (step_r + rate * g') / step_(r - 1)
//   mu += 0.01 * (mu* - mu_T)
//   v = mu * v + g';  theta -= rate * v
//   reply: theta - (rate * mu) * v
//
// Means forget 0.001 a push and are freed of their bias. r is the version that g was
// computed at, step_r the update that followed it; 64 coordinates spread over the
// segment are looked at, through the last 128 versions; a push of greater lag moves mu
// not. mu stays within [-0.9, 0.99].
//
// The schedule gives no rate, only its course: the tuned one is multiplied by
// eta / eta_max. Until something is measured eta itself is used, and mu = 0. A push is
// one pass over memory, so what it measures tunes the pushes after it.
//
// State: v and the mean of g', one float an element each; the tuner's numbers; the
// coordinates' history, 64 KiB.
#include <algorithm>
#include <cmath>
#include <vector>

#include "common/core/block.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/vector_math.h"
#include "server/update_rules/power.h"
#include "server/update_rules/registry.h"
#include "server/update_rules/yellow_fin_tuner.h"

namespace foreshard {
namespace {

constexpr float kForget = 0.999f;
constexpr uint64_t kRamp = 200;
constexpr uint64_t kSamples = 64;
constexpr uint64_t kHistory = 128;
constexpr double kGain = 0.01;
constexpr double kLeast = -0.9;
constexpr double kMost = 0.99;

FORESHARD_ISA_INLINE void StepBody(float rate, float mu, float lambda,
                                   const float* __restrict gradient, uint64_t n,
                                   float* __restrict decayed, float* __restrict mean,
                                   float* __restrict v, float* __restrict theta,
                                   float* __restrict reply) {
  const float ahead = rate * mu;
  for (uint64_t i = 0; i < n; ++i) {
    float g = gradient[i];
    if (lambda != 0) g += lambda * theta[i];
    const float momentum = mu * v[i] + g;
    const float next = theta[i] - rate * momentum;
    decayed[i] = g;
    mean[i] = kForget * mean[i] + (1 - kForget) * g;
    v[i] = momentum;
    theta[i] = next;
    if (reply != nullptr) reply[i] = next - ahead * momentum;
  }
}
FORESHARD_ISA_VARIANTS(void, Step,
                       (float rate, float mu, float lambda, const float* gradient, uint64_t n,
                        float* decayed, float* mean, float* v, float* theta, float* reply),
                       (rate, mu, lambda, gradient, n, decayed, mean, v, theta, reply))

class YellowFin final : public UpdateRule {
 public:
  YellowFin(const RuleSettings& settings, uint64_t elements, Loops loops)
      : weight_decay_(settings.weight_decay),
        peak_(settings.peak_eta),
        loops_(loops),
        v_(elements),
        mean_(elements) {
    const uint64_t samples = std::min(elements, kSamples);
    for (uint64_t k = 0; k < samples; ++k) coordinates_.push_back(k * elements / samples);
    gradients_.resize(samples);
    history_.resize(samples * kHistory);
    numbers_[kScale] = 1.0 / kRamp;
  }

  void Begin(const UpdateContext& context) override {
    if (numbers_[kPushes] > 0) Tune();
    const double ramp =
        std::min(1.0, static_cast<double>(context.version + 1) / static_cast<double>(kRamp));
    numbers_[kScale] = ramp * (tuner_.empty() ? 1 : tuner_.rate() / peak_);
    ++numbers_[kPushes];
    numbers_[kVersion] = static_cast<double>(context.version);
    numbers_[kLag] = static_cast<double>(context.lag);
    numbers_[kUsedRate] = Rate(context);
    numbers_[kSquare] = numbers_[kMeanSquare] = 0;
  }

  void Update(const UpdateContext& context, const Run& run, const float* gradient, float* theta,
              float* reply) override {
    const float rate = Rate(context);
    const auto mu = static_cast<float>(numbers_[kMu]);
    const float lambda = run.decayed ? weight_decay_ : 0;
    float* const at = theta + run.offset;
    float* const v = v_.data() + run.offset;
    float* const mean = mean_.data() + run.offset;
    alignas(64) float decayed[kMaxBlockElements];
    Remember(run, context.version, theta);
    if (loops_ == Loops::kFused) {
      Step(rate, mu, lambda, gradient, run.elements, decayed, mean, v, at, reply);
    } else {
      for (uint32_t i = 0; i < run.elements; ++i) {
        const float g = lambda == 0 ? gradient[i] : gradient[i] + lambda * at[i];
        decayed[i] = g;
        mean[i] = kForget * mean[i] + (1 - kForget) * g;
        v[i] = mu * v[i] + g;
        at[i] -= rate * v[i];
      }
      if (reply != nullptr) Reply(context, run, theta, reply);
    }
    numbers_[kSquare] += kernels::SumOfSquares(decayed, run.elements);
    numbers_[kMeanSquare] += kernels::SumOfSquares(mean, run.elements);
    Remember(run, context.version + 1, theta);
    for (size_t k = FirstIn(run); k < coordinates_.size() && Contains(run, coordinates_[k]); ++k) {
      gradients_[k] = decayed[coordinates_[k] - run.offset];
    }
  }

  void Reply(const UpdateContext& context, const Run& run, const float* theta,
             float* reply) const override {
    const float ahead = Rate(context) * static_cast<float>(numbers_[kMu]);
    const float* const at = theta + run.offset;
    const float* const v = v_.data() + run.offset;
    for (uint32_t i = 0; i < run.elements; ++i) reply[i] = at[i] - ahead * v[i];
  }

  void VisitState(StateVisitor& visitor) override {
    visitor.Visit("momentum", v_);
    visitor.Visit("mean_gradient", mean_);
    visitor.VisitNumbers("yellow_fin", numbers_);
    tuner_.VisitState(visitor);
    visitor.VisitNumbers("sampled_gradient", gradients_);
    visitor.VisitNumbers("sampled_history", history_);
  }

 private:
  // kPushes counts; kScale times eta is the rate; kMu the momentum in force. The others
  // are of the last push: what it measured.
  enum { kPushes, kScale, kMu, kVersion, kLag, kUsedRate, kSquare, kMeanSquare, kNumbers };

  float Rate(const UpdateContext& context) const {
    return static_cast<float>(numbers_[kScale] * context.eta);
  }

  // Of the coordinates, the first at or behind the run's begin.
  size_t FirstIn(const Run& run) const {
    return static_cast<size_t>(
        std::lower_bound(coordinates_.begin(), coordinates_.end(), run.offset) -
        coordinates_.begin());
  }
  static bool Contains(const Run& run, uint64_t at) { return at < run.offset + run.elements; }

  void Remember(const Run& run, uint64_t version, const float* theta) {
    double* const now = Theta(version);
    for (size_t k = FirstIn(run); k < coordinates_.size() && Contains(run, coordinates_[k]); ++k) {
      now[k] = theta[coordinates_[k]];
    }
  }
  double* Theta(uint64_t version) {
    return history_.data() + version % kHistory * coordinates_.size();
  }

  // What the last push measured.
  void Tune() {
    if (numbers_[kSquare] == 0) return;
    const double unbias = 1 / (1 - Power(kForget, static_cast<uint64_t>(numbers_[kPushes])));
    tuner_.Measure(numbers_[kSquare], numbers_[kMeanSquare] * unbias * unbias);

    const auto version = static_cast<uint64_t>(numbers_[kVersion]);
    const auto lag = static_cast<uint64_t>(numbers_[kLag]);
    if (lag + 1 > version || lag + 3 > kHistory) return;
    const uint64_t r = version - lag;
    const double* const before = Theta(r - 1);
    const double* const at = Theta(r);
    const double* const after = Theta(r + 1);
    std::vector<double> ratios;
    for (size_t k = 0; k < coordinates_.size(); ++k) {
      const double step = at[k] - before[k];
      if (step == 0) continue;
      const double ratio = (after[k] - at[k] + numbers_[kUsedRate] * gradients_[k]) / step;
      if (std::isfinite(ratio)) ratios.push_back(ratio);
    }
    if (ratios.empty()) return;
    const auto middle = ratios.begin() + static_cast<ptrdiff_t>(ratios.size() / 2);
    std::nth_element(ratios.begin(), middle, ratios.end());
    numbers_[kMu] =
        std::clamp(numbers_[kMu] + kGain * (tuner_.momentum() - *middle), kLeast, kMost);
  }

  const float weight_decay_;
  const float peak_;  // eta_max
  const Loops loops_;
  std::vector<float> v_;
  std::vector<float> mean_;
  YellowFinTuner tuner_;
  std::vector<double> numbers_ = std::vector<double>(kNumbers);
  std::vector<uint64_t> coordinates_;
  std::vector<double> gradients_;  // g' at the coordinates
  std::vector<double> history_;    // theta at the coordinates, by version
};

}  // namespace

std::unique_ptr<UpdateRule> MakeYellowFin(const RuleSettings& settings, uint64_t elements,
                                          Loops loops) {
  return std::make_unique<YellowFin>(settings, elements, loops);
}

}  // namespace foreshard
