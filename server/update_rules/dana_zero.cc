// dana_zero: a momentum for each worker, and a reply that looks ahead at all of
// them: where theta will be once every worker has reported once more (DANA-Zero,
// arXiv 1907.11612).
//
//   v_i' = gamma * v_i + g + lambda * theta    lambda on decayed runs
//   S += v_i' - v_i;  v_i = v_i'
//   theta -= eta * v_i
//   reply: theta - (eta * gamma) * S           S = sum over workers of v_j
//
// State: S and the v_i, see momentum_sum.h.
#include <cassert>

#include "kernels/cpu/isa.h"
#include "server/update_rules/momentum_sum.h"
#include "server/update_rules/registry.h"

namespace foreshard {
namespace {

FORESHARD_ISA_INLINE void StepBody(float eta, float gamma, float lambda,
                                   const float* __restrict gradient, uint64_t n,
                                   float* __restrict v, float* __restrict sum,
                                   float* __restrict theta, float* __restrict reply) {
  const float ahead = eta * gamma;
  for (uint64_t i = 0; i < n; ++i) {
    float g = gradient[i];
    if (lambda != 0) g += lambda * theta[i];
    const float momentum = gamma * v[i] + g;
    const float all = sum[i] + (momentum - v[i]);
    const float next = theta[i] - eta * momentum;
    v[i] = momentum;
    sum[i] = all;
    theta[i] = next;
    if (reply != nullptr) reply[i] = next - ahead * all;
  }
}
FORESHARD_ISA_VARIANTS(void, Step,
                       (float eta, float gamma, float lambda, const float* gradient, uint64_t n,
                        float* v, float* sum, float* theta, float* reply),
                       (eta, gamma, lambda, gradient, n, v, sum, theta, reply))

class DanaZero final : public UpdateRule {
 public:
  DanaZero(const RuleSettings& settings, uint64_t elements, Loops loops)
      : momentum_(settings.momentum),
        weight_decay_(settings.weight_decay),
        loops_(loops),
        v_(settings.max_workers, elements, loops) {}

  void Join(uint32_t worker) override { v_.Join(worker); }
  void Leave(uint32_t worker) override { v_.Leave(worker); }
  void Begin(const UpdateContext& context) override { v_.Begin(context.version); }

  void Update(const UpdateContext& context, const Run& run, const float* gradient, float* theta,
              float* reply) override {
    assert(v_.joined(context.worker));
    const float lambda = run.decayed ? weight_decay_ : 0;
    float* const at = theta + run.offset;
    float* const v = v_.momentum(context.worker) + run.offset;
    float* const sum = v_.sum() + run.offset;
    if (loops_ == Loops::kFused) {
      return Step(context.eta, momentum_, lambda, gradient, run.elements, v, sum, at, reply);
    }
    for (uint32_t i = 0; i < run.elements; ++i) {
      const float g = lambda == 0 ? gradient[i] : gradient[i] + lambda * at[i];
      const float next = momentum_ * v[i] + g;
      sum[i] += next - v[i];
      v[i] = next;
      at[i] -= context.eta * v[i];
    }
    if (reply != nullptr) Reply(context, run, theta, reply);
  }

  void Reply(const UpdateContext& context, const Run& run, const float* theta,
             float* reply) const override {
    const float ahead = context.eta * momentum_;
    const float* const at = theta + run.offset;
    const float* const sum = v_.sum() + run.offset;
    for (uint32_t i = 0; i < run.elements; ++i) reply[i] = at[i] - ahead * sum[i];
  }

  void VisitState(StateVisitor& visitor) override { v_.VisitState(visitor); }

 private:
  const float momentum_;
  const float weight_decay_;
  const Loops loops_;
  MomentumSum v_;
};

}  // namespace

std::unique_ptr<UpdateRule> MakeDanaZero(const RuleSettings& settings, uint64_t elements,
                                         Loops loops) {
  return std::make_unique<DanaZero>(settings, elements, loops);
}

}  // namespace foreshard
