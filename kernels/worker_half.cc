// dana_slim's half (DANA-Slim, arXiv 1907.11612), per element:
//
//   g' = g + lambda * theta                    theta held by the worker, decayed blocks
//   u = gamma * (gamma * v + g') + g' + r * v  pushed; v as it was before
//   v = gamma * v + g'
//   r = gamma * (eta - previous_eta) / eta
//
// The last term of u repairs the look-ahead that Theta = theta - eta * gamma * sum(v)
// holds when the rate changes: applied at eta, it moves Theta by
// -(eta - previous_eta) * gamma * v. It is zero at a constant rate, and where the rate
// jumped and the worker has brought v itself (worker/push_encoder.h).
#include "kernels/worker_half.h"

#include <cassert>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/worker_half_reference.h"

namespace foreshard {
namespace {

FORESHARD_ISA_INLINE void StepBody(float gamma, float lambda, float repair, uint64_t n,
                                   const float* __restrict theta, float* __restrict v,
                                   float* __restrict gradient) {
  for (uint64_t i = 0; i < n; ++i) {
    float g = gradient[i];
    if (lambda != 0) g += lambda * theta[i];
    const float old = v[i];
    const float momentum = gamma * old + g;
    float pushed = gamma * momentum + g;
    if (repair != 0) pushed += repair * old;
    v[i] = momentum;
    gradient[i] = pushed;
  }
}
FORESHARD_ISA_VARIANTS(void, Step,
                       (float gamma, float lambda, float repair, uint64_t n, const float* theta,
                        float* v, float* gradient),
                       (gamma, lambda, repair, n, theta, v, gradient))

class DanaSlimHalf final : public WorkerHalf {
 public:
  DanaSlimHalf(const WorkerHalfSettings& settings, uint64_t trainable_elements)
      : settings_(settings), v_(trainable_elements) {}

  void Transform(absl::Span<const Block> blocks, uint64_t begin, float eta, float previous_eta,
                 const float* parameters, float* gradient) override {
    const float repair = DanaSlimRepair(settings_.momentum, eta, previous_eta);
    for (const Block& block : blocks) {
      assert(begin + block.offset + block.elements <= v_.size());
      Step(settings_.momentum, block.decayed ? settings_.weight_decay : 0, repair,
           block.elements, parameters + block.offset, v_.data() + begin + block.offset,
           gradient + block.offset);
    }
  }

  absl::Span<const float> momentum() const override { return v_; }

 private:
  const WorkerHalfSettings settings_;
  std::vector<float> v_;
};

}  // namespace

float DanaSlimRepair(float gamma, float eta, float previous_eta) {
  return eta > 0 ? gamma * (eta - previous_eta) / eta : 0.0f;
}

void DanaSlimHalfReference(float gamma, float lambda, float repair, uint64_t n,
                           const float* theta, float* v, float* gradient) {
  for (uint64_t i = 0; i < n; ++i) {
    const float g = lambda == 0 ? gradient[i] : gradient[i] + lambda * theta[i];
    const float repaired = repair * v[i];
    v[i] = gamma * v[i] + g;
    gradient[i] = gamma * v[i] + g;
    if (repair != 0) gradient[i] += repaired;
  }
}

std::unique_ptr<WorkerHalf> MakeWorkerHalf(std::string_view rule,
                                           const WorkerHalfSettings& settings,
                                           uint64_t trainable_elements) {
  if (rule == "dana_slim") {
    return std::make_unique<DanaSlimHalf>(settings, trainable_elements);
  }
  return nullptr;
}

}  // namespace foreshard
