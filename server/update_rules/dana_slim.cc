// dana_slim: DANA without the server knowing of it (DANA-Slim, arXiv 1907.11612).
// The worker keeps v and pushes u = gamma * v + g (kernels/worker_half.h), the server
// keeps Theta = theta - (eta * gamma) * S of dana_zero, which is also the reply:
//
//   Theta -= eta * u
//   reply: Theta
//
// Weight decay is inside u: the worker adds it. State: none here.
#include <algorithm>

#include "server/update_rules/registry.h"
#include "server/update_rules/sgd_step.h"

namespace foreshard {
namespace {

class DanaSlim final : public UpdateRule {
 public:
  explicit DanaSlim(Loops loops) : loops_(loops) {}

  void Update(const UpdateContext& context, const Run& run, const float* pushed, float* theta,
              float* reply) override {
    float* const at = theta + run.offset;
    if (loops_ == Loops::kFused) return SgdStep(context.eta, 0, pushed, run.elements, at, reply);
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
