// ormo_da: ordered momentum with a delay-adaptive rate: each gradient enters the
// momentum where it would have stood, had it come in the order in which parameters were
// given out (OrMo-DA, NeurIPS 2024).
//
//   Parameters given out are stamped j = 1, 2, ...; bucket(j) = ceil(j / N), N the
//   workers as planned. When the newest stamped bucket advances by k:
//     k times: theta -= (eta * gamma) * u;  u *= gamma
//   On a gradient whose bucket is a buckets old and whose lag is tau:
//     g' = min(1, 2 N / tau) * (g + lambda * theta)        lambda on decayed runs
//     u += gamma^a * g'
//     theta -= eta * (1 - gamma^(a + 1)) / (1 - gamma) * g'
//   reply: theta
//
// A worker's first stamp is given when it joins, the others with its pushes; the reply
// to a push is stamped first, so that its theta has the advance in it. An advance that a
// join makes waits for the next push. The k advances are one step with the sum of the
// geometric series.
//
// State: u, one float an element; the last stamp, the bucket theta is at, and the stamp
// each worker holds.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <vector>

#include "kernels/cpu/isa.h"
#include "server/update_rules/power.h"
#include "server/update_rules/registry.h"

namespace foreshard {
namespace {

// An update is this for every element.
struct Factors {
  float advance = 0;  // eta * (gamma + ... + gamma^k)
  float keep = 1;     // gamma^k
  float rate = 1;     // min(1, 2 N / tau)
  float enter = 1;    // gamma^a
  float move = 0;     // eta * (1 + ... + gamma^a)
};

FORESHARD_ISA_INLINE void StepBody(const Factors& factors, float lambda,
                                   const float* __restrict gradient, uint64_t n,
                                   float* __restrict u, float* __restrict theta,
                                   float* __restrict reply) {
  const float advance = factors.advance, keep = factors.keep, rate = factors.rate;
  const float enter = factors.enter, move = factors.move;
  for (uint64_t i = 0; i < n; ++i) {
    const float advanced = theta[i] - advance * u[i];
    float g = gradient[i];
    if (lambda != 0) g += lambda * advanced;
    g *= rate;
    const float next = advanced - move * g;
    u[i] = keep * u[i] + enter * g;
    theta[i] = next;
    if (reply != nullptr) reply[i] = next;
  }
}
FORESHARD_ISA_VARIANTS(void, Step,
                       (const Factors& factors, float lambda, const float* gradient, uint64_t n,
                        float* u, float* theta, float* reply),
                       (factors, lambda, gradient, n, u, theta, reply))

class OrmoDa final : public UpdateRule {
 public:
  OrmoDa(const RuleSettings& settings, uint64_t elements, Loops loops)
      : momentum_(settings.momentum),
        weight_decay_(settings.weight_decay),
        workers_(std::max(settings.workers, 1u)),
        loops_(loops),
        u_(elements),
        stamps_(settings.max_workers) {}

  void Join(uint32_t worker) override { stamps_[worker] = NextStamp(); }
  void Leave(uint32_t worker) override { stamps_[worker] = 0; }

  void Begin(const UpdateContext& context) override {
    assert(stamps_[context.worker] > 0);
    const double bucket = Bucket(stamps_[context.worker]);
    stamps_[context.worker] = NextStamp();
    const double newest = Bucket(clock_[kStamp]);
    const auto advances = static_cast<uint64_t>(newest - clock_[kBucket]);
    const auto age = static_cast<uint64_t>(newest - bucket);
    clock_[kBucket] = newest;

    const double gamma = momentum_;
    const double eta = context.eta;
    const double full_until = 2.0 * workers_;
    factors_.keep = static_cast<float>(Power(gamma, advances));
    factors_.advance = static_cast<float>(eta * gamma * Series(advances));
    factors_.rate = static_cast<float>(
        std::min(1.0, full_until / static_cast<double>(std::max<uint64_t>(context.lag, 1))));
    factors_.enter = static_cast<float>(Power(gamma, age));
    factors_.move = static_cast<float>(eta * Series(age + 1));
  }

  void Update(const UpdateContext& context, const Run& run, const float* gradient, float* theta,
              float* reply) override {
    const float lambda = run.decayed ? weight_decay_ : 0;
    float* const at = theta + run.offset;
    float* const u = u_.data() + run.offset;
    if (loops_ == Loops::kFused) {
      return Step(factors_, lambda, gradient, run.elements, u, at, reply);
    }
    for (uint32_t i = 0; i < run.elements; ++i) {
      at[i] -= factors_.advance * u[i];
      u[i] *= factors_.keep;
      const float decayed = lambda == 0 ? gradient[i] : gradient[i] + lambda * at[i];
      const float g = factors_.rate * decayed;
      u[i] += factors_.enter * g;
      at[i] -= factors_.move * g;
    }
    if (reply != nullptr) Reply(context, run, theta, reply);
  }

  void Reply(const UpdateContext& context, const Run& run, const float* theta,
             float* reply) const override {
    std::copy_n(theta + run.offset, run.elements, reply);
  }

  void VisitState(StateVisitor& visitor) override {
    visitor.Visit("momentum", u_);
    visitor.VisitNumbers("clock", clock_);
    visitor.VisitNumbers("stamps", stamps_);
  }

 private:
  enum { kStamp, kBucket };

  double NextStamp() { return ++clock_[kStamp]; }
  double Bucket(double stamp) const { return std::ceil(stamp / workers_); }

  // 1 + gamma + ... + gamma^(n - 1)
  double Series(uint64_t n) const {
    return (1 - Power(momentum_, n)) / (1 - static_cast<double>(momentum_));
  }

  const float momentum_;
  const float weight_decay_;
  const uint32_t workers_;  // N
  const Loops loops_;
  Factors factors_;  // of the update at hand
  std::vector<float> u_;
  std::vector<double> clock_ = {0, 1};  // the first bucket needs no advance
  std::vector<double> stamps_;          // 0: the slot is free
};

}  // namespace

std::unique_ptr<UpdateRule> MakeOrmoDa(const RuleSettings& settings, uint64_t elements,
                                       Loops loops) {
  return std::make_unique<OrmoDa>(settings, elements, loops);
}

}  // namespace foreshard
