// staleness_aware: asgd whose rate falls with the push's lag tau (Zhang et al., arXiv
// 1511.05950).
//
//   theta -= (eta / max(1, tau)) * (g + lambda * theta)    lambda on decayed runs
//   reply: theta
//
// State: none.
#include <algorithm>

#include "server/update_rules/registry.h"
#include "server/update_rules/sgd_step.h"

namespace foreshard {
namespace {

class StalenessAware final : public UpdateRule {
 public:
  StalenessAware(const RuleSettings& settings, Loops loops)
      : weight_decay_(settings.weight_decay), loops_(loops) {}

  void Update(const UpdateContext& context, const Run& run, const float* gradient, float* theta,
              float* reply) override {
    const float rate = context.eta / static_cast<float>(std::max<uint64_t>(1, context.lag));
    const float lambda = run.decayed ? weight_decay_ : 0;
    float* const at = theta + run.offset;
    if (loops_ == Loops::kFused) {
      return SgdStep(rate, lambda, gradient, run.elements, at, reply);
    }
    for (uint32_t i = 0; i < run.elements; ++i) {
      const float g = lambda == 0 ? gradient[i] : gradient[i] + lambda * at[i];
      at[i] -= rate * g;
    }
    if (reply != nullptr) Reply(context, run, theta, reply);
  }

  void Reply(const UpdateContext& context, const Run& run, const float* theta,
             float* reply) const override {
    std::copy_n(theta + run.offset, run.elements, reply);
  }

 private:
  const float weight_decay_;
  const Loops loops_;
};

}  // namespace

std::unique_ptr<UpdateRule> MakeStalenessAware(const RuleSettings& settings, uint64_t elements,
                                               Loops loops) {
  return std::make_unique<StalenessAware>(settings, loops);
}

}  // namespace foreshard
