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
    TakeAdamStep(settings_, bias_, loops_, context, run, gradient, m_.data(), v_.data(), theta, reply);
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
