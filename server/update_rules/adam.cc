// adam: asynchronous Adam, both moments shared by all workers (Kingma and Ba, arXiv
// 1412.6980), with decoupled weight decay (AdamW, arXiv 1711.05101) and without the
// bias correction.
//
//   m = beta1 * m + (1 - beta1) * g
//   v = beta2 * v + (1 - beta2) * g * g
//   theta -= eta * (m / (sqrt(v) + epsilon) + lambda * theta)    lambda on decayed runs
//   reply: theta
//
// Without the correction the first steps are (1 - beta1) / sqrt(1 - beta2) of eta long,
// 3.2 by default: warm up. State: m and v, one float an element each.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/isa.h"
#include "server/update_rules/registry.h"

namespace foreshard {
namespace {

FORESHARD_ISA_INLINE void StepBody(float eta, float beta1, float beta2, float epsilon,
                                   float lambda, const float* __restrict gradient, uint64_t n,
                                   float* __restrict m, float* __restrict v,
                                   float* __restrict theta, float* __restrict reply) {
  for (uint64_t i = 0; i < n; ++i) {
    const float g = gradient[i];
    const float first = beta1 * m[i] + (1 - beta1) * g;
    const float second = beta2 * v[i] + (1 - beta2) * (g * g);
    float step = first / (std::sqrt(second) + epsilon);
    if (lambda != 0) step += lambda * theta[i];
    const float next = theta[i] - eta * step;
    m[i] = first;
    v[i] = second;
    theta[i] = next;
    if (reply != nullptr) reply[i] = next;
  }
}
FORESHARD_ISA_VARIANTS(void, Step,
                       (float eta, float beta1, float beta2, float epsilon, float lambda,
                        const float* gradient, uint64_t n, float* m, float* v, float* theta,
                        float* reply),
                       (eta, beta1, beta2, epsilon, lambda, gradient, n, m, v, theta, reply))

class Adam final : public UpdateRule {
 public:
  Adam(const RuleSettings& settings, uint64_t elements, Loops loops)
      : beta1_(settings.beta1),
        beta2_(settings.beta2),
        epsilon_(settings.epsilon),
        weight_decay_(settings.weight_decay),
        loops_(loops),
        m_(elements),
        v_(elements) {}

  void Update(const UpdateContext& context, const Run& run, const float* gradient, float* theta,
              float* reply) override {
    const float lambda = run.decayed ? weight_decay_ : 0;
    float* const at = theta + run.offset;
    float* const m = m_.data() + run.offset;
    float* const v = v_.data() + run.offset;
    if (loops_ == Loops::kFused) {
      return Step(context.eta, beta1_, beta2_, epsilon_, lambda, gradient, run.elements, m, v, at,
                  reply);
    }
    for (uint32_t i = 0; i < run.elements; ++i) {
      m[i] = beta1_ * m[i] + (1 - beta1_) * gradient[i];
      v[i] = beta2_ * v[i] + (1 - beta2_) * (gradient[i] * gradient[i]);
      float step = m[i] / (std::sqrt(v[i]) + epsilon_);
      if (lambda != 0) step += lambda * at[i];
      at[i] -= context.eta * step;
    }
    if (reply != nullptr) Reply(context, run, theta, reply);
  }

  void Reply(const UpdateContext& context, const Run& run, const float* theta,
             float* reply) const override {
    std::copy_n(theta + run.offset, run.elements, reply);
  }

  void VisitState(StateVisitor& visitor) override {
    visitor.Visit("first_moment", m_);
    visitor.Visit("second_moment", v_);
  }

 private:
  const float beta1_;
  const float beta2_;
  const float epsilon_;
  const float weight_decay_;
  const Loops loops_;
  std::vector<float> m_;
  std::vector<float> v_;
};

}  // namespace

std::unique_ptr<UpdateRule> MakeAdam(const RuleSettings& settings, uint64_t elements,
                                     Loops loops) {
  return std::make_unique<Adam>(settings, elements, loops);
}

}  // namespace foreshard
