#include "server/update_rules/momentum_sum.h"

#include <algorithm>

#include "kernels/cpu/isa.h"

namespace foreshard {
namespace {

FORESHARD_ISA_INLINE void AddWideBody(const float* __restrict values, uint64_t n,
                                      double* __restrict sums) {
  for (uint64_t i = 0; i < n; ++i) sums[i] += values[i];
}
FORESHARD_ISA_VARIANTS(void, AddWide, (const float* values, uint64_t n, double* sums),
                       (values, n, sums))

}  // namespace

MomentumSum::MomentumSum(uint32_t max_workers, uint64_t elements, Loops loops)
    : loops_(loops),
      slices_(std::max(16u, 4 * max_workers)),
      slice_elements_((elements + slices_ - 1) / slices_),
      v_(max_workers, elements),
      sum_(elements) {}

void MomentumSum::Join(uint32_t worker) {
  if (v_.joined(worker)) Leave(worker);
  v_.Join(worker);
}

// S -= v_i by recomputing S: a worker whose v_i dwarfs the others' would leave its
// rounding error behind.
void MomentumSum::Leave(uint32_t worker) {
  if (!v_.joined(worker)) return;
  v_.Leave(worker);
  Recompute(0, sum_.size());
}

void MomentumSum::Begin(uint64_t version) {
  const uint64_t begin = version % slices_ * slice_elements_;
  Recompute(std::min<uint64_t>(begin, sum_.size()),
            std::min<uint64_t>(begin + slice_elements_, sum_.size()));
}

void MomentumSum::LookAhead(float ahead, const Run& run, const float* theta,
                            float* reply) const {
  const float* const at = theta + run.offset;
  const float* const sum = sum_.data() + run.offset;
  for (uint32_t i = 0; i < run.elements; ++i) reply[i] = at[i] - ahead * sum[i];
}

void MomentumSum::VisitState(StateVisitor& visitor) {
  visitor.Visit("momentum_sum", sum_);
  v_.VisitState(visitor);
}

void MomentumSum::Recompute(uint64_t begin, uint64_t end) {
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

}  // namespace foreshard
