// dc_asgd: asgd with delay compensation: the gradient is moved from x_i, what the
// worker held, to theta along the diagonal of its outer product, a cheap guess at the
// Hessian (DC-ASGD, arXiv 1609.08326).
//
//   constant: rate = dc_lambda                             (0.04 by default)
//   adaptive: MS = m * MS + (1 - m) * g * g
//             rate = dc_lambda / sqrt(MS + 1e-7)           (2 and m = 0.95 by default)
//   g^ = g + rate * (theta - x_i) * g * g
//   theta -= eta * (g^ + lambda * theta)                   lambda on decayed runs
//   reply: theta
//
// The products run from the left, so where theta = x_i the gradient is untouched,
// however large. State: MS, one float an element, in the adaptive form.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/isa.h"
#include "server/update_rules/held_values.h"
#include "server/update_rules/registry.h"

namespace foreshard {
namespace {

constexpr float kFloor = 1e-7f;

FORESHARD_ISA_INLINE void ConstantBody(float eta, float lambda, float dc,
                                       const float* __restrict gradient,
                                       const float* __restrict held, uint64_t n,
                                       float* __restrict theta, float* __restrict reply) {
  for (uint64_t i = 0; i < n; ++i) {
    const float raw = gradient[i];
    float g = raw + dc * (theta[i] - held[i]) * raw * raw;
    if (lambda != 0) g += lambda * theta[i];
    const float next = theta[i] - eta * g;
    theta[i] = next;
    if (reply != nullptr) reply[i] = next;
  }
}
FORESHARD_ISA_VARIANTS(void, Constant,
                       (float eta, float lambda, float dc, const float* gradient,
                        const float* held, uint64_t n, float* theta, float* reply),
                       (eta, lambda, dc, gradient, held, n, theta, reply))

FORESHARD_ISA_INLINE void AdaptiveBody(float eta, float lambda, float dc, float m,
                                       const float* __restrict gradient,
                                       const float* __restrict held, uint64_t n,
                                       float* __restrict mean_square, float* __restrict theta,
                                       float* __restrict reply) {
  for (uint64_t i = 0; i < n; ++i) {
    const float raw = gradient[i];
    const float mean = m * mean_square[i] + (1 - m) * (raw * raw);
    const float rate = dc / std::sqrt(mean + kFloor);
    float g = raw + rate * (theta[i] - held[i]) * raw * raw;
    if (lambda != 0) g += lambda * theta[i];
    const float next = theta[i] - eta * g;
    mean_square[i] = mean;
    theta[i] = next;
    if (reply != nullptr) reply[i] = next;
  }
}
FORESHARD_ISA_VARIANTS(void, Adaptive,
                       (float eta, float lambda, float dc, float m, const float* gradient,
                        const float* held, uint64_t n, float* mean_square, float* theta,
                        float* reply),
                       (eta, lambda, dc, m, gradient, held, n, mean_square, theta, reply))

class DcAsgd final : public UpdateRule {
 public:
  DcAsgd(const RuleSettings& settings, uint64_t elements, Loops loops)
      : weight_decay_(settings.weight_decay),
        dc_lambda_(settings.dc_lambda),
        dc_decay_(settings.dc_decay),
        adaptive_(settings.dc_adaptive),
        loops_(loops),
        mean_square_(adaptive_ ? elements : 0) {}

  void Update(const UpdateContext& context, const Run& run, const float* gradient, float* theta,
              float* reply) override {
    const float lambda = run.decayed ? weight_decay_ : 0;
    float* const at = theta + run.offset;
    float* const mean = adaptive_ ? mean_square_.data() + run.offset : nullptr;
    const HeldValues held(run, at);
    const float* const x = held.values();
    if (loops_ == Loops::kFused) {
      if (!adaptive_) {
        return Constant(context.eta, lambda, dc_lambda_, gradient, x, run.elements, at, reply);
      }
      return Adaptive(context.eta, lambda, dc_lambda_, dc_decay_, gradient, x, run.elements, mean,
                      at, reply);
    }
    for (uint32_t i = 0; i < run.elements; ++i) {
      float rate = dc_lambda_;
      if (adaptive_) {
        mean[i] = dc_decay_ * mean[i] + (1 - dc_decay_) * (gradient[i] * gradient[i]);
        rate /= std::sqrt(mean[i] + kFloor);
      }
      float g = gradient[i] + rate * (at[i] - x[i]) * gradient[i] * gradient[i];
      if (lambda != 0) g += lambda * at[i];
      at[i] -= context.eta * g;
    }
    if (reply != nullptr) Reply(context, run, theta, reply);
  }

  void Reply(const UpdateContext& context, const Run& run, const float* theta,
             float* reply) const override {
    std::copy_n(theta + run.offset, run.elements, reply);
  }

  void VisitState(StateVisitor& visitor) override {
    visitor.Visit("mean_square", mean_square_);
  }

 private:
  const float weight_decay_;
  const float dc_lambda_;
  const float dc_decay_;  // m
  const bool adaptive_;
  const Loops loops_;
  std::vector<float> mean_square_;  // MS
};

}  // namespace

std::unique_ptr<UpdateRule> MakeDcAsgd(const RuleSettings& settings, uint64_t elements,
                                       Loops loops) {
  return std::make_unique<DcAsgd>(settings, elements, loops);
}

}  // namespace foreshard
