// statistics_average: the rule of segments that hold running statistics (batch
// norm's means and variances), whatever the job's rule is. An exponential average
// of what workers push; never momentum, never weight decay, no learning rate.
//
//   s += w * (pushed - s)                      w = statistics_weight
//   reply: s
//
// State: none.
#include <algorithm>

#include "kernels/cpu/isa.h"
#include "server/update_rules/registry.h"

namespace foreshard {
namespace {

FORESHARD_ISA_INLINE void StepBody(float weight, const float* __restrict pushed, uint64_t n,
                                   float* __restrict s, float* __restrict reply) {
  for (uint64_t i = 0; i < n; ++i) {
    const float next = s[i] + weight * (pushed[i] - s[i]);
    s[i] = next;
    if (reply != nullptr) reply[i] = next;
  }
}
FORESHARD_ISA_VARIANTS(void, Step,
                       (float weight, const float* pushed, uint64_t n, float* s, float* reply),
                       (weight, pushed, n, s, reply))

class Statistics final : public UpdateRule {
 public:
  Statistics(const RuleSettings& settings, Loops loops)
      : weight_(settings.statistics_weight), loops_(loops) {}

  void Update(const UpdateContext& context, const Run& run, const float* pushed, float* theta,
              float* reply) override {
    float* const s = theta + run.offset;
    if (loops_ == Loops::kFused) return Step(weight_, pushed, run.elements, s, reply);
    for (uint32_t i = 0; i < run.elements; ++i) {
      s[i] += weight_ * (pushed[i] - s[i]);
      if (reply != nullptr) reply[i] = s[i];
    }
  }

  void Reply(const UpdateContext& context, const Run& run, const float* theta,
             float* reply) const override {
    std::copy_n(theta + run.offset, run.elements, reply);
  }

 private:
  const float weight_;
  const Loops loops_;
};

}  // namespace

std::unique_ptr<UpdateRule> MakeStatistics(const RuleSettings& settings, uint64_t elements,
                                           Loops loops) {
  return std::make_unique<Statistics>(settings, loops);
}

}  // namespace foreshard
