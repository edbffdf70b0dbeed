// dana_zero: a momentum for each worker, and a reply that looks ahead at all of
// them: where theta will be once every worker has reported once more (DANA-Zero,
// arXiv 1907.11612).
//
//   v_i' = gamma * v_i + g + lambda * theta    lambda on decayed runs
//   S += v_i' - v_i;  v_i = v_i'
//   theta -= eta * v_i
//   reply: theta - (eta * gamma) * S           S = sum over workers of v_j
//
// State: S, and v_i for each joined worker. A worker that leaves takes its v_i out
// of S; one that joins starts at v_i = 0.
//
// The running sum S costs O(d) a push instead of O(N d), and drifts in fp32: after a
// thousandfold drop of the gradients its error would be 5.5e-3 of it. So push t
// recomputes slice t mod K of S from the v_j, in fp64 in the order of slots. With
// K = 4 * max_workers a full house reads N d / K = d / 4 floats more a push, 1 of
// the 28 bytes an element that a push with its reply moves anyway; K is at least 16.
#include <algorithm>
#include <vector>

#include "kernels/cpu/isa.h"
#include "server/update_rules/registry.h"
#include "server/update_rules/worker_vectors.h"

namespace foreshard {
namespace {

FORESHARD_ISA_INLINE void StepBody(float eta, float gamma, float lambda,
                                   const float* __restrict gradient, uint64_t n,
                                   float* __restrict v, float* __restrict sum,
                                   float* __restrict theta, float* __restrict reply) {
  const float ahead = eta * gamma;
  for (uint64_t i = 0; i < n; ++i) {
    float g = gradient[i];
    if (lambda != 0) g += lambda * theta[i];
    const float momentum = gamma * v[i] + g;
    const float all = sum[i] + (momentum - v[i]);
    const float next = theta[i] - eta * momentum;
    v[i] = momentum;
    sum[i] = all;
    theta[i] = next;
    if (reply != nullptr) reply[i] = next - ahead * all;
  }
}
FORESHARD_ISA_VARIANTS(void, Step,
                       (float eta, float gamma, float lambda, const float* gradient, uint64_t n,
                        float* v, float* sum, float* theta, float* reply),
                       (eta, gamma, lambda, gradient, n, v, sum, theta, reply))

FORESHARD_ISA_INLINE void AddWideBody(const float* __restrict values, uint64_t n,
                                      double* __restrict sums) {
  for (uint64_t i = 0; i < n; ++i) sums[i] += values[i];
}
FORESHARD_ISA_VARIANTS(void, AddWide, (const float* values, uint64_t n, double* sums),
                       (values, n, sums))

class DanaZero final : public UpdateRule {
 public:
  DanaZero(const RuleSettings& settings, uint64_t elements, Loops loops)
      : momentum_(settings.momentum),
        weight_decay_(settings.weight_decay),
        loops_(loops),
        slices_(std::max(16u, 4 * settings.max_workers)),
        slice_elements_((elements + slices_ - 1) / slices_),
        v_(settings.max_workers, elements),
        sum_(elements) {}

  void Join(uint32_t worker) override {
    if (v_.joined(worker)) Leave(worker);
    v_.Join(worker);
  }

  // S -= v_i by recomputing S: a worker whose v_i dwarfs the others' would leave its
  // rounding error behind.
  void Leave(uint32_t worker) override {
    if (!v_.joined(worker)) return;
    v_.Leave(worker);
    Recompute(0, sum_.size());
  }

  void Begin(const UpdateContext& context) override {
    const uint64_t begin = context.version % slices_ * slice_elements_;
    Recompute(std::min<uint64_t>(begin, sum_.size()),
              std::min<uint64_t>(begin + slice_elements_, sum_.size()));
  }

  void Update(const UpdateContext& context, const Run& run, const float* gradient, float* theta,
              float* reply) override {
    assert(v_.joined(context.worker));
    const float lambda = run.decayed ? weight_decay_ : 0;
    float* const at = theta + run.offset;
    float* const v = v_[context.worker] + run.offset;
    float* const sum = sum_.data() + run.offset;
    if (loops_ == Loops::kFused) {
      return Step(context.eta, momentum_, lambda, gradient, run.elements, v, sum, at, reply);
    }
    for (uint32_t i = 0; i < run.elements; ++i) {
      const float g = lambda == 0 ? gradient[i] : gradient[i] + lambda * at[i];
      const float next = momentum_ * v[i] + g;
      sum[i] += next - v[i];
      v[i] = next;
      at[i] -= context.eta * v[i];
    }
    if (reply != nullptr) Reply(context, run, theta, reply);
  }

  void Reply(const UpdateContext& context, const Run& run, const float* theta,
             float* reply) const override {
    const float ahead = context.eta * momentum_;
    const float* const at = theta + run.offset;
    const float* const sum = sum_.data() + run.offset;
    for (uint32_t i = 0; i < run.elements; ++i) reply[i] = at[i] - ahead * sum[i];
  }

  void VisitState(StateVisitor& visitor) override {
    visitor.Visit("momentum_sum", sum_);
    v_.VisitState(visitor);
  }

 private:
  // S = sum of the v_j on [begin, end).
  void Recompute(uint64_t begin, uint64_t end) {
    constexpr uint64_t kPiece = 512;
    for (uint64_t at = begin; at < end; at += kPiece) {
      const uint64_t n = std::min(kPiece, end - at);
      double sums[kPiece] = {};
      for (uint32_t worker = 0; worker < v_.slots(); ++worker) {
        if (!v_.joined(worker)) continue;
        const float* const v = v_[worker] + at;
        if (loops_ == Loops::kFused) {
          AddWide(v, n, sums);
        } else {
          for (uint64_t i = 0; i < n; ++i) sums[i] += v[i];
        }
      }
      for (uint64_t i = 0; i < n; ++i) sum_[at + i] = static_cast<float>(sums[i]);
    }
  }

  const float momentum_;
  const float weight_decay_;
  const Loops loops_;
  const uint32_t slices_;  // K
  const uint64_t slice_elements_;
  WorkerVectors v_;
  std::vector<float> sum_;  // S
};

}  // namespace

std::unique_ptr<UpdateRule> MakeDanaZero(const RuleSettings& settings, uint64_t elements,
                                         Loops loops) {
  return std::make_unique<DanaZero>(settings, elements, loops);
}

}  // namespace foreshard
