// nag_asgd: one Nesterov momentum shared by all workers (the baseline of DANA,
// arXiv 1907.11612).
//
//   v = gamma * v + g + lambda * theta         lambda on decayed runs
//   theta -= eta * v
//   reply: theta - (eta * gamma) * v           the look-ahead at the shared momentum
//
// State: v, one float an element. eta * gamma is rounded to fp32 once a push.
#include <vector>

#include "kernels/cpu/isa.h"
#include "server/update_rules/registry.h"

namespace foreshard {
namespace {

FORESHARD_ISA_INLINE void StepBody(float eta, float gamma, float lambda,
                                   const float* __restrict gradient, uint64_t n,
                                   float* __restrict v, float* __restrict theta,
                                   float* __restrict reply) {
  const float ahead = eta * gamma;
  for (uint64_t i = 0; i < n; ++i) {
    float g = gradient[i];
    if (lambda != 0) g += lambda * theta[i];
    const float momentum = gamma * v[i] + g;
    const float next = theta[i] - eta * momentum;
    v[i] = momentum;
    theta[i] = next;
    if (reply != nullptr) reply[i] = next - ahead * momentum;
  }
}
FORESHARD_ISA_VARIANTS(void, Step,
                       (float eta, float gamma, float lambda, const float* gradient, uint64_t n,
                        float* v, float* theta, float* reply),
                       (eta, gamma, lambda, gradient, n, v, theta, reply))

class NagAsgd final : public UpdateRule {
 public:
  NagAsgd(const RuleSettings& settings, uint64_t elements, Loops loops)
      : momentum_(settings.momentum),
        weight_decay_(settings.weight_decay),
        loops_(loops),
        v_(elements) {}

  void Update(const UpdateContext& context, const Run& run, const float* gradient, float* theta,
              float* reply) override {
    const float lambda = run.decayed ? weight_decay_ : 0;
    float* const at = theta + run.offset;
    float* const v = v_.data() + run.offset;
    if (loops_ == Loops::kFused) {
      return Step(context.eta, momentum_, lambda, gradient, run.elements, v, at, reply);
    }
    for (uint32_t i = 0; i < run.elements; ++i) {
      const float g = lambda == 0 ? gradient[i] : gradient[i] + lambda * at[i];
      v[i] = momentum_ * v[i] + g;
      at[i] -= context.eta * v[i];
    }
    if (reply != nullptr) Reply(context, run, theta, reply);
  }

  void Reply(const UpdateContext& context, const Run& run, const float* theta,
             float* reply) const override {
    const float ahead = context.eta * momentum_;
    const float* const at = theta + run.offset;
    const float* const v = v_.data() + run.offset;
    for (uint32_t i = 0; i < run.elements; ++i) reply[i] = at[i] - ahead * v[i];
  }

  void VisitState(StateVisitor& visitor) override { visitor.Visit("momentum", v_); }

 private:
  const float momentum_;
  const float weight_decay_;
  const Loops loops_;
  std::vector<float> v_;
};

}  // namespace

std::unique_ptr<UpdateRule> MakeNagAsgd(const RuleSettings& settings, uint64_t elements,
                                        Loops loops) {
  return std::make_unique<NagAsgd>(settings, elements, loops);
}

}  // namespace foreshard
