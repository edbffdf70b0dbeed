// dana_slim: DANA without the server knowing of it (DANA-Slim, arXiv 1907.11612).
// The worker keeps v and pushes u = gamma * v + g (kernels/worker_half.h), the server
// keeps Theta = theta - (eta * gamma) * S of dana_zero, which is also the reply:
//
//   Theta -= eta * u
//   reply: Theta
//
// Weight decay is inside u: the worker adds it. State: none here.
#include <algorithm>

#include "kernels/cpu/isa.h"
#include "server/update_rules/registry.h"

namespace foreshard {
namespace {

FORESHARD_ISA_INLINE void StepBody(float eta, const float* __restrict pushed, uint64_t n,
                                   float* __restrict theta, float* __restrict reply) {
  for (uint64_t i = 0; i < n; ++i) {
    const float next = theta[i] - eta * pushed[i];
    theta[i] = next;
    if (reply != nullptr) reply[i] = next;
  }
}
FORESHARD_ISA_VARIANTS(void, Step,
                       (float eta, const float* pushed, uint64_t n, float* theta, float* reply),
                       (eta, pushed, n, theta, reply))

class DanaSlim final : public UpdateRule {
 public:
  explicit DanaSlim(Loops loops) : loops_(loops) {}

  void Update(const UpdateContext& context, const Run& run, const float* pushed, float* theta,
              float* reply) override {
    float* const at = theta + run.offset;
    if (loops_ == Loops::kFused) return Step(context.eta, pushed, run.elements, at, reply);
    for (uint32_t i = 0; i < run.elements; ++i) {
      at[i] -= context.eta * pushed[i];
      if (reply != nullptr) reply[i] = at[i];
    }
  }

  void Reply(const UpdateContext& context, const Run& run, const float* theta,
             float* reply) const override {
    std::copy_n(theta + run.offset, run.elements, reply);
  }

 private:
  const Loops loops_;
};

}  // namespace

std::unique_ptr<UpdateRule> MakeDanaSlim(const RuleSettings& settings, uint64_t elements,
                                         Loops loops) {
  return std::make_unique<DanaSlim>(loops);
}

}  // namespace foreshard
