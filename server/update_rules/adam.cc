// adam: Adam with both moments shared by all workers, asynchronous, or once a round with
// the workers' mean gradient (update.synchronous). The step is in adam_step.h; without the
// bias correction unless update.bias_correction asks for it.
//
//   reply: theta
//
// Without the correction the first steps are (1 - beta1) / sqrt(1 - beta2) of eta long,
// 3.2 by default: warm up. State: m and v, one float an element each.
#include <algorithm>
#include <vector>

#include "server/update_rules/adam_step.h"
#include "server/update_rules/registry.h"

namespace foreshard {
namespace {

class Adam final : public UpdateRule {
 public:
  Adam(const RuleSettings& settings, uint64_t elements, Loops loops)
      : settings_(settings), loops_(loops), bias_(settings), m_(elements), v_(elements) {}

  void Begin(const UpdateContext& context) override { bias_.Advance(); }

  void Update(const UpdateContext& context, const Run& run, const float* gradient, float* theta,
              float* reply) override {
    const AdamStep step = {.eta = context.eta,
                           .beta1 = settings_.beta1,
                           .beta2 = settings_.beta2,
                           .epsilon = settings_.epsilon,
                           .lambda = run.decayed ? settings_.weight_decay : 0,
                           .first_correction = bias_.first_correction(),
                           .second_correction = bias_.second_correction()};
    float* const m = m_.data() + run.offset;
    float* const v = v_.data() + run.offset;
    if (loops_ == Loops::kFused) {
      return AdamLoop(step, gradient, run.elements, m, v, theta + run.offset, reply);
    }
    AdamLoopReference(step, gradient, run.elements, m, v, theta + run.offset);
    if (reply != nullptr) Reply(context, run, theta, reply);
  }

  void Reply(const UpdateContext& context, const Run& run, const float* theta,
             float* reply) const override {
    std::copy_n(theta + run.offset, run.elements, reply);
  }

  void VisitState(StateVisitor& visitor) override {
    visitor.Visit("first_moment", m_);
    visitor.Visit("second_moment", v_);
    visitor.VisitNumbers("bias", bias_.powers());
  }

 private:
  const RuleSettings settings_;
  const Loops loops_;
  AdamBias bias_;
  std::vector<float> m_;
  std::vector<float> v_;
};

}  // namespace

std::unique_ptr<UpdateRule> MakeAdam(const RuleSettings& settings, uint64_t elements,
                                     Loops loops) {
  return std::make_unique<Adam>(settings, elements, loops);
}

}  // namespace foreshard
