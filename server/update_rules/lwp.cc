// lwp: linear weight prediction. One momentum shared by all workers, and a reply that
// looks tau updates ahead along it, for as many as will come before the worker's own
// (Kosson et al., arXiv 2003.11666; as a baseline of DANA, arXiv 1907.11612).
//
//   v = gamma * v + g + lambda * theta         lambda on decayed runs
//   theta -= eta * v
//   reply: theta - (tau * eta) * v
//
// tau is N - 1, N the number of joined workers, or with measured_lag the mean lag of
// late: that of push t weighs 0.99 of that of push t + 1.
//
// State: v, one float an element; the joined slots; sum and weight of the lags.
#include <algorithm>
#include <vector>

#include "kernels/cpu/isa.h"
#include "server/update_rules/joined_slots.h"
#include "server/update_rules/registry.h"

namespace foreshard {
namespace {

constexpr double kForget = 0.99;

FORESHARD_ISA_INLINE void StepBody(float eta, float ahead, float gamma, float lambda,
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
    if (reply != nullptr) reply[i] = next - ahead * momentum;
  }
}
FORESHARD_ISA_VARIANTS(void, Step,
                       (float eta, float ahead, float gamma, float lambda, const float* gradient,
                        uint64_t n, float* v, float* theta, float* reply),
                       (eta, ahead, gamma, lambda, gradient, n, v, theta, reply))

class Lwp final : public UpdateRule {
 public:
  Lwp(const RuleSettings& settings, uint64_t elements, Loops loops)
      : momentum_(settings.momentum),
        weight_decay_(settings.weight_decay),
        measured_(settings.measured_lag),
        loops_(loops),
        joined_(settings.max_workers),
        v_(elements) {}

  void Join(uint32_t worker) override { joined_.Join(worker); }
  void Leave(uint32_t worker) override { joined_.Leave(worker); }

  void Begin(const UpdateContext& context) override {
    lags_[kSum] = kForget * lags_[kSum] + static_cast<double>(context.lag);
    lags_[kWeight] = kForget * lags_[kWeight] + 1;
  }

  void Update(const UpdateContext& context, const Run& run, const float* gradient, float* theta,
              float* reply) override {
    const float lambda = run.decayed ? weight_decay_ : 0;
    float* const at = theta + run.offset;
    float* const v = v_.data() + run.offset;
    if (loops_ == Loops::kFused) {
      return Step(context.eta, Ahead(context), momentum_, lambda, gradient, run.elements, v, at,
                  reply);
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
    const float ahead = Ahead(context);
    const float* const at = theta + run.offset;
    const float* const v = v_.data() + run.offset;
    for (uint32_t i = 0; i < run.elements; ++i) reply[i] = at[i] - ahead * v[i];
  }

  void VisitState(StateVisitor& visitor) override {
    visitor.Visit("momentum", v_);
    joined_.VisitState(visitor);
    visitor.VisitNumbers("lags", lags_);
  }

 private:
  enum { kSum, kWeight };

  // tau * eta
  float Ahead(const UpdateContext& context) const {
    const double mean = lags_[kWeight] == 0 ? 0 : lags_[kSum] / lags_[kWeight];
    const double tau = measured_ ? mean : std::max(joined_.count(), 1u) - 1;
    return static_cast<float>(tau * context.eta);
  }

  const float momentum_;
  const float weight_decay_;
  const bool measured_;
  const Loops loops_;
  JoinedSlots joined_;
  std::vector<float> v_;
  std::vector<double> lags_ = {0, 0};
};

}  // namespace

std::unique_ptr<UpdateRule> MakeLwp(const RuleSettings& settings, uint64_t elements,
                                    Loops loops) {
  return std::make_unique<Lwp>(settings, elements, loops);
}

}  // namespace foreshard
