// easgd, eamsgd: elastic averaging, the server's half of both (EASGD and EAMSGD, arXiv
// 1412.6651). Workers step on parameters of their own (kernels/local_sgd.h) and now and
// then push e = alpha * (x_i - center), by which they move themselves the other way.
// theta is the center:
//
//   theta += n * e                             e the mean of n pushes; asynchronous: n = 1
//   reply: theta
//
// The rate and weight decay are the workers'. State: none.
#include <algorithm>

#include "server/update_rules/registry.h"
#include "server/update_rules/sgd_step.h"

namespace foreshard {
namespace {

class Easgd final : public UpdateRule {
 public:
  explicit Easgd(Loops loops) : loops_(loops) {}

  void Update(const UpdateContext& context, const Run& run, const float* pushed, float* theta,
              float* reply) override {
    const auto contributors = static_cast<float>(context.contributors);
    float* const at = theta + run.offset;
    if (loops_ == Loops::kFused) return SgdStep(-contributors, 0, pushed, run.elements, at, reply);
    for (uint32_t i = 0; i < run.elements; ++i) {
      at[i] += contributors * pushed[i];
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

std::unique_ptr<UpdateRule> MakeEasgd(const RuleSettings& settings, uint64_t elements,
                                      Loops loops) {
  return std::make_unique<Easgd>(loops);
}

}  // namespace foreshard
