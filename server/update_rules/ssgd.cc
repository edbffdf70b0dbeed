// ssgd: synchronous SGD with Nesterov momentum, one step a round with the workers'
// mean gradient, in the form whose parameters are the look-ahead point (Sutskever et
// al., ICML 2013, after the change of variable theta - (eta * gamma) * v; also
// PyTorch's SGD with nesterov=True):
//
//   g' = g + lambda * theta                    lambda on decayed runs
//   v = gamma * v + g'
//   theta -= eta * (gamma * v + g')            with the new v
//   reply: theta
//
// The gradient is taken at theta itself, so the reply needs no look-ahead, and one
// worker under ssgd is one worker under dana_slim. State: v, one float an element.
#include <algorithm>
#include <vector>

#include "kernels/cpu/isa.h"
#include "server/update_rules/registry.h"

namespace foreshard {
namespace {

FORESHARD_ISA_INLINE void StepBody(float eta, float gamma, float lambda,
                                   const float* __restrict gradient, uint64_t n,
                                   float* __restrict v, float* __restrict theta,
                                   float* __restrict reply) {
  for (uint64_t i = 0; i < n; ++i) {
    float g = gradient[i];
    if (lambda != 0) g += lambda * theta[i];
    const float momentum = gamma * v[i] + g;
    const float next = theta[i] - eta * (gamma * momentum + g);
    v[i] = momentum;
    theta[i] = next;
    if (reply != nullptr) reply[i] = next;
  }
}
FORESHARD_ISA_VARIANTS(void, Step,
                       (float eta, float gamma, float lambda, const float* gradient, uint64_t n,
                        float* v, float* theta, float* reply),
                       (eta, gamma, lambda, gradient, n, v, theta, reply))

class Ssgd final : public UpdateRule {
 public:
  Ssgd(const RuleSettings& settings, uint64_t elements, Loops loops)
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
      at[i] -= context.eta * (momentum_ * v[i] + g);
    }
    if (reply != nullptr) Reply(context, run, theta, reply);
  }

  void Reply(const UpdateContext& context, const Run& run, const float* theta,
             float* reply) const override {
    std::copy_n(theta + run.offset, run.elements, reply);
  }

  void VisitState(StateVisitor& visitor) override { visitor.Visit("momentum", v_); }

 private:
  const float momentum_;
  const float weight_decay_;
  const Loops loops_;
  std::vector<float> v_;
};

}  // namespace

std::unique_ptr<UpdateRule> MakeSsgd(const RuleSettings& settings, uint64_t elements,
                                     Loops loops) {
  return std::make_unique<Ssgd>(settings, elements, loops);
}

}  // namespace foreshard
