// multi_asgd: a momentum for each worker, no look-ahead (the baseline of DANA,
// arXiv 1907.11612).
//
//   v_i = gamma * v_i + g + lambda * theta     lambda on decayed runs
//   theta -= eta * v_i
//   reply: theta
//
// State: v_i, one float an element and joined worker.
#include <algorithm>

#include "kernels/cpu/isa.h"
#include "server/update_rules/registry.h"
#include "server/update_rules/worker_vectors.h"

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
    const float next = theta[i] - eta * momentum;
    v[i] = momentum;
    theta[i] = next;
    if (reply != nullptr) reply[i] = next;
  }
}
FORESHARD_ISA_VARIANTS(void, Step,
                       (float eta, float gamma, float lambda, const float* gradient, uint64_t n,
                        float* v, float* theta, float* reply),
                       (eta, gamma, lambda, gradient, n, v, theta, reply))

class MultiAsgd final : public UpdateRule {
 public:
  MultiAsgd(const RuleSettings& settings, uint64_t elements, Loops loops)
      : momentum_(settings.momentum),
        weight_decay_(settings.weight_decay),
        loops_(loops),
        v_(settings.max_workers, elements) {}

  void Join(uint32_t worker) override { v_.Join(worker); }
  void Leave(uint32_t worker) override { v_.Leave(worker); }

  void Update(const UpdateContext& context, const Run& run, const float* gradient, float* theta,
              float* reply) override {
    assert(v_.joined(context.worker));
    const float lambda = run.decayed ? weight_decay_ : 0;
    float* const at = theta + run.offset;
    float* const v = v_[context.worker] + run.offset;
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
    std::copy_n(theta + run.offset, run.elements, reply);
  }

  void VisitState(StateVisitor& visitor) override { v_.VisitState(visitor); }

 private:
  const float momentum_;
  const float weight_decay_;
  const Loops loops_;
  WorkerVectors v_;
};

}  // namespace

std::unique_ptr<UpdateRule> MakeMultiAsgd(const RuleSettings& settings, uint64_t elements,
                                          Loops loops) {
  return std::make_unique<MultiAsgd>(settings, elements, loops);
}

}  // namespace foreshard
