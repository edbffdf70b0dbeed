// asgd: plain asynchronous SGD (Downpour SGD of DistBelief, Dean et al., NIPS 2012),
// what the other rules are measured against.
//
//   theta -= eta * (g + lambda * theta)        lambda on decayed runs
//   reply: theta
//
// State: none.
#include <algorithm>

#include "server/update_rules/registry.h"
#include "server/update_rules/sgd_step.h"

namespace foreshard {
namespace {

class Asgd final : public UpdateRule {
 public:
  Asgd(const RuleSettings& settings, Loops loops)
      : weight_decay_(settings.weight_decay), loops_(loops) {}

  void Update(const UpdateContext& context, const Run& run, const float* gradient, float* theta,
              float* reply) override {
    const float lambda = run.decayed ? weight_decay_ : 0;
    float* const at = theta + run.offset;
    if (loops_ == Loops::kFused) {
      return SgdStep(context.eta, lambda, gradient, run.elements, at, reply);
    }
    for (uint32_t i = 0; i < run.elements; ++i) {
      const float g = lambda == 0 ? gradient[i] : gradient[i] + lambda * at[i];
      at[i] -= context.eta * g;
      if (reply != nullptr) reply[i] = at[i];
    }
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

std::unique_ptr<UpdateRule> MakeAsgd(const RuleSettings& settings, uint64_t elements,
                                     Loops loops) {
  return std::make_unique<Asgd>(settings, loops);
}

}  // namespace foreshard
