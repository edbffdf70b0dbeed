// gap_aware: gradients shrink by how far theta has gone from x_i, what the worker held,
// in units of a usual step (Gap-Aware, arXiv 1909.10802), then one momentum shared by
// all workers.
//
//   C = eta_max * (sqrt(A / (1 - 0.999^t)) + 1e-8)         t: updates before this one
//   P = 1 + abs(theta - x_i) / C;  P = 1 while A = 0
//   v = gamma * v + g / P + lambda * theta                 lambda on decayed runs
//   theta -= eta * v
//   A = 0.999 * A + 0.001 * v * v                          for the steps to come
//   reply: theta
//
// eta_max is the schedule's peak, so P does not grow as the rate falls.
// State: v and A, one float an element each.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/isa.h"
#include "server/update_rules/held_values.h"
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
                                   float* __restrict v, float* __restrict usual,
                                   float* __restrict theta, float* __restrict reply) {
  for (uint64_t i = 0; i < n; ++i) {
    const float unit = peak * (std::sqrt(usual[i] * correction) + kFloor);
    const float penalty = 1 + std::abs(theta[i] - held[i]) / unit;
    float g = gradient[i] / (usual[i] == 0 ? 1.0f : penalty);
    if (lambda != 0) g += lambda * theta[i];
    const float momentum = gamma * v[i] + g;
    const float next = theta[i] - eta * momentum;
    v[i] = momentum;
    usual[i] = kForget * usual[i] + kNew * (momentum * momentum);
    theta[i] = next;
    if (reply != nullptr) reply[i] = next;
  }
}
FORESHARD_ISA_VARIANTS(void, Step,
                       (float eta, float gamma, float lambda, float peak, float correction,
                        const float* gradient, const float* held, uint64_t n, float* v,
                        float* usual, float* theta, float* reply),
                       (eta, gamma, lambda, peak, correction, gradient, held, n, v, usual, theta,
                        reply))

class GapAware final : public UpdateRule {
 public:
  GapAware(const RuleSettings& settings, uint64_t elements, Loops loops)
      : momentum_(settings.momentum),
        weight_decay_(settings.weight_decay),
        peak_(settings.peak_eta),
        loops_(loops),
        v_(elements),
        usual_(elements) {}

  void Begin(const UpdateContext& context) override {
    correction_ = context.version == 0
                      ? 1
                      : static_cast<float>(1 / (1 - Power(kForget, context.version)));
  }

  void Update(const UpdateContext& context, const Run& run, const float* gradient, float* theta,
              float* reply) override {
    const float lambda = run.decayed ? weight_decay_ : 0;
    float* const at = theta + run.offset;
    float* const v = v_.data() + run.offset;
    float* const usual = usual_.data() + run.offset;
    const HeldValues held(run, at);
    const float* const x = held.values();
    if (loops_ == Loops::kFused) {
      return Step(context.eta, momentum_, lambda, peak_, correction_, gradient, x, run.elements, v,
                  usual, at, reply);
    }
    for (uint32_t i = 0; i < run.elements; ++i) {
      float g = gradient[i];
      if (usual[i] != 0) {
        const float unit = peak_ * (std::sqrt(usual[i] * correction_) + kFloor);
        g /= 1 + std::abs(at[i] - x[i]) / unit;
      }
      if (lambda != 0) g += lambda * at[i];
      v[i] = momentum_ * v[i] + g;
      at[i] -= context.eta * v[i];
      usual[i] = kForget * usual[i] + kNew * (v[i] * v[i]);
    }
    if (reply != nullptr) Reply(context, run, theta, reply);
  }

  void Reply(const UpdateContext& context, const Run& run, const float* theta,
             float* reply) const override {
    std::copy_n(theta + run.offset, run.elements, reply);
  }

  void VisitState(StateVisitor& visitor) override {
    visitor.Visit("momentum", v_);
    visitor.Visit("mean_square_momentum", usual_);
  }

 private:
  const float momentum_;
  const float weight_decay_;
  const float peak_;  // eta_max
  const Loops loops_;
  float correction_ = 1;
  std::vector<float> v_;
  std::vector<float> usual_;  // A
};

}  // namespace

std::unique_ptr<UpdateRule> MakeGapAware(const RuleSettings& settings, uint64_t elements,
                                         Loops loops) {
  return std::make_unique<GapAware>(settings, elements, loops);
}

}  // namespace foreshard
