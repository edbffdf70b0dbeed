// dana_dc: dc_asgd's compensated gradient in dana_zero (DANA-DC, arXiv 1907.11612;
// delay compensation from arXiv 1609.08326).
//
//   constant: rate = dc_lambda                             (0.04 by default)
//   adaptive: MS = m * MS + (1 - m) * g * g
//             rate = dc_lambda / sqrt(MS + 1e-7)           (2 and m = 0.95 by default)
//   g^ = g + rate * (theta - x_i) * g * g                  x_i: what worker i held
//   v_i' = gamma * v_i + g^ + lambda * theta               lambda on decayed runs
//   S += v_i' - v_i;  v_i = v_i'
//   theta -= eta * v_i
//   reply: theta - (eta * gamma) * S                       S = sum over workers of v_j
//
// The constant form does next to nothing: gradients are small when it matters.
// State: S and the v_i, see momentum_sum.h; MS in the adaptive form.
#include <cassert>
#include <cmath>
#include <vector>

#include "kernels/cpu/isa.h"
#include "server/update_rules/dana_step.h"
#include "server/update_rules/held_values.h"
#include "server/update_rules/momentum_sum.h"
#include "server/update_rules/registry.h"

namespace foreshard {
namespace {

constexpr float kFloor = 1e-7f;

// The gradient at theta into `compensated`, by the constant rate.
FORESHARD_ISA_INLINE void ConstantBody(float dc, const float* __restrict gradient,
                                       const float* __restrict held,
                                       const float* __restrict theta, uint64_t n,
                                       float* __restrict compensated) {
  for (uint64_t i = 0; i < n; ++i) {
    const float raw = gradient[i];
    compensated[i] = raw + dc * (theta[i] - held[i]) * raw * raw;
  }
}
FORESHARD_ISA_VARIANTS(void, Constant,
                       (float dc, const float* gradient, const float* held, const float* theta,
                        uint64_t n, float* compensated),
                       (dc, gradient, held, theta, n, compensated))

FORESHARD_ISA_INLINE void AdaptiveBody(float dc, float m, const float* __restrict gradient,
                                       const float* __restrict held,
                                       const float* __restrict theta, uint64_t n,
                                       float* __restrict mean_square,
                                       float* __restrict compensated) {
  for (uint64_t i = 0; i < n; ++i) {
    const float raw = gradient[i];
    const float mean = m * mean_square[i] + (1 - m) * (raw * raw);
    const float rate = dc / std::sqrt(mean + kFloor);
    mean_square[i] = mean;
    compensated[i] = raw + rate * (theta[i] - held[i]) * raw * raw;
  }
}
FORESHARD_ISA_VARIANTS(void, Adaptive,
                       (float dc, float m, const float* gradient, const float* held,
                        const float* theta, uint64_t n, float* mean_square, float* compensated),
                       (dc, m, gradient, held, theta, n, mean_square, compensated))

class DanaDc final : public UpdateRule {
 public:
  DanaDc(const RuleSettings& settings, uint64_t elements, Loops loops)
      : momentum_(settings.momentum),
        weight_decay_(settings.weight_decay),
        dc_lambda_(settings.dc_lambda),
        dc_decay_(settings.dc_decay),
        adaptive_(settings.dc_adaptive),
        loops_(loops),
        v_(settings.max_workers, elements, loops),
        mean_square_(adaptive_ ? elements : 0) {}

  void Join(uint32_t worker) override { v_.Join(worker); }
  void Leave(uint32_t worker) override { v_.Leave(worker); }
  void Begin(const UpdateContext& context) override { v_.Begin(context.version); }

  void Update(const UpdateContext& context, const Run& run, const float* gradient, float* theta,
              float* reply) override {
    assert(v_.joined(context.worker));
    const float lambda = run.decayed ? weight_decay_ : 0;
    float* const at = theta + run.offset;
    float* const v = v_.momentum(context.worker) + run.offset;
    float* const sum = v_.sum() + run.offset;
    float* const mean = adaptive_ ? mean_square_.data() + run.offset : nullptr;
    const HeldValues held(run, at);
    const float* const x = held.values();
    if (loops_ == Loops::kFused) {
      // Two loops over a run that is in cache; one would be too long to vectorise.
      alignas(64) float compensated[kMaxBlockElements];
      if (adaptive_) {
        Adaptive(dc_lambda_, dc_decay_, gradient, x, at, run.elements, mean, compensated);
      } else {
        Constant(dc_lambda_, gradient, x, at, run.elements, compensated);
      }
      return DanaStep(context.eta, momentum_, lambda, compensated, run.elements, v, sum, at, reply);
    }
    for (uint32_t i = 0; i < run.elements; ++i) {
      float rate = dc_lambda_;
      if (adaptive_) {
        mean[i] = dc_decay_ * mean[i] + (1 - dc_decay_) * (gradient[i] * gradient[i]);
        rate /= std::sqrt(mean[i] + kFloor);
      }
      float g = gradient[i] + rate * (at[i] - x[i]) * gradient[i] * gradient[i];
      if (lambda != 0) g += lambda * at[i];
      const float next = momentum_ * v[i] + g;
      sum[i] += next - v[i];
      v[i] = next;
      at[i] -= context.eta * v[i];
    }
    if (reply != nullptr) Reply(context, run, theta, reply);
  }

  void Reply(const UpdateContext& context, const Run& run, const float* theta,
             float* reply) const override {
    v_.LookAhead(context.eta * momentum_, run, theta, reply);
  }

  void VisitState(StateVisitor& visitor) override {
    v_.VisitState(visitor);
    visitor.Visit("mean_square", mean_square_);
  }

 private:
  const float momentum_;
  const float weight_decay_;
  const float dc_lambda_;
  const float dc_decay_;  // m
  const bool adaptive_;
  const Loops loops_;
  MomentumSum v_;
  std::vector<float> mean_square_;  // MS
};

}  // namespace

std::unique_ptr<UpdateRule> MakeDanaDc(const RuleSettings& settings, uint64_t elements,
                                       Loops loops) {
  return std::make_unique<DanaDc>(settings, elements, loops);
}

}  // namespace foreshard
