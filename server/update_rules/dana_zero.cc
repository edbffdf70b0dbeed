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

#include "server/update_rules/dana_step.h"
#include "server/update_rules/momentum_sum.h"
#include "server/update_rules/registry.h"

namespace foreshard {
namespace {

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
      return DanaStep(context.eta, momentum_, lambda, gradient, run.elements, v, sum, at, reply);
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
    v_.LookAhead(context.eta * momentum_, run, theta, reply);
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
