// dana_ga: gap_aware's penalty on the gradient (arXiv 1909.10802) in dana_zero (arXiv
// 1907.11612).
//
//   C = eta_max * (sqrt(A / (1 - 0.999^t)) + 1e-8)         t: updates before this one
//   P = 1 + abs(theta - x_i) / C;  P = 1 while A = 0       x_i: what worker i held
//   v_i' = gamma * v_i + g / P + lambda * theta            lambda on decayed runs
//   S += v_i' - v_i;  v_i = v_i'
//   theta -= eta * v_i
//   A = 0.999 * A + 0.001 * v_i * v_i                      for the steps to come
//   reply: theta - (eta * gamma) * S                       S = sum over workers of v_j
//
// eta_max is the schedule's peak. One A for all workers.
// State: S and the v_i, see momentum_sum.h; A, one float an element.
#include <cassert>
#include <cmath>
#include <vector>

#include "kernels/cpu/isa.h"
#include "server/update_rules/held_values.h"
#include "server/update_rules/momentum_sum.h"
#include "server/update_rules/power.h"
#include "server/update_rules/registry.h"

namespace foreshard {
namespace {

constexpr float kForget = 0.999f;
constexpr float kNew = 0.001f;
constexpr float kFloor = 1e-8f;

// `correction`: 1 / (1 - 0.999^t), any number while t = 0.
FORESHARD_ISA_INLINE void StepBody(float eta, float gamma, float lambda, float peak,
                                   float correction, const float* __restrict gradient,
                                   const float* __restrict held, uint64_t n,
                                   float* __restrict v, float* __restrict sum,
                                   float* __restrict usual, float* __restrict theta,
                                   float* __restrict reply) {
  const float ahead = eta * gamma;
  for (uint64_t i = 0; i < n; ++i) {
    const float unit = peak * (std::sqrt(usual[i] * correction) + kFloor);
    const float penalty = 1 + std::abs(theta[i] - held[i]) / unit;
    float g = gradient[i] / (usual[i] == 0 ? 1.0f : penalty);
    if (lambda != 0) g += lambda * theta[i];
    const float momentum = gamma * v[i] + g;
    const float all = sum[i] + (momentum - v[i]);
    const float next = theta[i] - eta * momentum;
    v[i] = momentum;
    sum[i] = all;
    usual[i] = kForget * usual[i] + kNew * (momentum * momentum);
    theta[i] = next;
    if (reply != nullptr) reply[i] = next - ahead * all;
  }
}
FORESHARD_ISA_VARIANTS(void, Step,
                       (float eta, float gamma, float lambda, float peak, float correction,
                        const float* gradient, const float* held, uint64_t n, float* v, float* sum,
                        float* usual, float* theta, float* reply),
                       (eta, gamma, lambda, peak, correction, gradient, held, n, v, sum, usual,
                        theta, reply))

class DanaGa final : public UpdateRule {
 public:
  DanaGa(const RuleSettings& settings, uint64_t elements, Loops loops)
      : momentum_(settings.momentum),
        weight_decay_(settings.weight_decay),
        peak_(settings.peak_eta),
        loops_(loops),
        v_(settings.max_workers, elements, loops),
        usual_(elements) {}

  void Join(uint32_t worker) override { v_.Join(worker); }
  void Leave(uint32_t worker) override { v_.Leave(worker); }

  void Begin(const UpdateContext& context) override {
    v_.Begin(context.version);
    correction_ = context.version == 0
                      ? 1
                      : static_cast<float>(1 / (1 - Power(kForget, context.version)));
  }

  void Update(const UpdateContext& context, const Run& run, const float* gradient, float* theta,
              float* reply) override {
    assert(v_.joined(context.worker));
    const float lambda = run.decayed ? weight_decay_ : 0;
    float* const at = theta + run.offset;
    float* const v = v_.momentum(context.worker) + run.offset;
    float* const sum = v_.sum() + run.offset;
    float* const usual = usual_.data() + run.offset;
    const HeldValues held(run, at);
    const float* const x = held.values();
    if (loops_ == Loops::kFused) {
      return Step(context.eta, momentum_, lambda, peak_, correction_, gradient, x, run.elements, v,
                  sum, usual, at, reply);
    }
    for (uint32_t i = 0; i < run.elements; ++i) {
      float g = gradient[i];
      if (usual[i] != 0) {
        const float unit = peak_ * (std::sqrt(usual[i] * correction_) + kFloor);
        g /= 1 + std::abs(at[i] - x[i]) / unit;
      }
      if (lambda != 0) g += lambda * at[i];
      const float next = momentum_ * v[i] + g;
      sum[i] += next - v[i];
      v[i] = next;
      at[i] -= context.eta * v[i];
      usual[i] = kForget * usual[i] + kNew * (v[i] * v[i]);
    }
    if (reply != nullptr) Reply(context, run, theta, reply);
  }

  void Reply(const UpdateContext& context, const Run& run, const float* theta,
             float* reply) const override {
    v_.LookAhead(context.eta * momentum_, run, theta, reply);
  }

  void VisitState(StateVisitor& visitor) override {
    v_.VisitState(visitor);
    visitor.Visit("mean_square_momentum", usual_);
  }

 private:
  const float momentum_;
  const float weight_decay_;
  const float peak_;  // eta_max
  const Loops loops_;
  float correction_ = 1;
  MomentumSum v_;
  std::vector<float> usual_;  // A
};

}  // namespace

std::unique_ptr<UpdateRule> MakeDanaGa(const RuleSettings& settings, uint64_t elements,
                                       Loops loops) {
  return std::make_unique<DanaGa>(settings, elements, loops);
}

}  // namespace foreshard
