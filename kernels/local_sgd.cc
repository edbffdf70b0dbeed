#include "kernels/local_sgd.h"

#include <algorithm>
#include <cassert>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/local_sgd_reference.h"

namespace foreshard {
namespace {

FORESHARD_ISA_INLINE void AheadBody(float factor, uint64_t n, const float* __restrict x,
                                    const float* __restrict v, float* __restrict ahead) {
  for (uint64_t i = 0; i < n; ++i) ahead[i] = x[i] - factor * v[i];
}
FORESHARD_ISA_VARIANTS(void, Ahead,
                       (float factor, uint64_t n, const float* x, const float* v, float* ahead),
                       (factor, n, x, v, ahead))

FORESHARD_ISA_INLINE void PlainStepBody(float lambda, float eta, uint64_t n,
                                        const float* __restrict gradient, float* __restrict x) {
  for (uint64_t i = 0; i < n; ++i) {
    float g = gradient[i];
    if (lambda != 0) g += lambda * x[i];
    x[i] -= eta * g;
  }
}
FORESHARD_ISA_VARIANTS(void, PlainStep,
                       (float lambda, float eta, uint64_t n, const float* gradient, float* x),
                       (lambda, eta, n, gradient, x))

FORESHARD_ISA_INLINE void MomentumStepBody(float delta, float lambda, float eta, uint64_t n,
                                           const float* __restrict gradient, float* __restrict v,
                                           float* __restrict x) {
  for (uint64_t i = 0; i < n; ++i) {
    float g = gradient[i];
    if (lambda != 0) g += lambda * x[i];
    const float velocity = delta * v[i] + g;
    v[i] = velocity;
    x[i] -= eta * velocity;
  }
}
FORESHARD_ISA_VARIANTS(void, MomentumStep,
                       (float delta, float lambda, float eta, uint64_t n, const float* gradient,
                        float* v, float* x),
                       (delta, lambda, eta, n, gradient, v, x))

FORESHARD_ISA_INLINE void MoveBody(float alpha, uint64_t n, const float* __restrict center,
                                   float* __restrict x, float* __restrict difference) {
  for (uint64_t i = 0; i < n; ++i) {
    const float e = alpha * (x[i] - center[i]);
    difference[i] = e;
    x[i] -= e;
  }
}
FORESHARD_ISA_VARIANTS(void, Move,
                       (float alpha, uint64_t n, const float* center, float* x, float* difference),
                       (alpha, n, center, x, difference))

}  // namespace

LocalSgd::LocalSgd(const LocalSgdSettings& settings, uint64_t trainable_elements,
                   uint64_t elements)
    : settings_(settings), x_(elements) {
  assert(trainable_elements <= elements);
  if (momentum()) {
    v_.resize(trainable_elements);
    ahead_.resize(elements);
  }
}

void LocalSgd::Restart(const float* parameters) {
  std::copy_n(parameters, x_.size(), x_.data());
  if (!momentum()) return;
  std::fill(v_.begin(), v_.end(), 0.0f);
  ahead_ = x_;
}

void LocalSgd::LookAhead(uint64_t begin, uint64_t elements, float eta) {
  if (!momentum()) return;
  assert(begin + elements <= v_.size());
  Ahead(eta * settings_.momentum, elements, x_.data() + begin, v_.data() + begin,
        ahead_.data() + begin);
}

void LocalSgd::Step(absl::Span<const Block> blocks, uint64_t begin, float eta,
                    const float* gradient) {
  for (const Block& block : blocks) {
    const uint64_t at = begin + block.offset;
    assert(at + block.elements <= x_.size());
    const float lambda = block.decayed ? settings_.weight_decay : 0;
    if (momentum()) {
      MomentumStep(settings_.momentum, lambda, eta, block.elements, gradient + block.offset,
                   v_.data() + at, x_.data() + at);
    } else {
      PlainStep(lambda, eta, block.elements, gradient + block.offset, x_.data() + at);
    }
  }
}

bool LocalSgd::Difference(uint64_t begin, uint64_t elements, float alpha, const float* center,
                          float* difference) {
  assert(begin + elements <= x_.size());
  // In pieces that stay in the cache between the two loops.
  bool finite = true;
  for (uint64_t at = 0; at < elements; at += kMaxBlockElements) {
    const uint64_t n = std::min<uint64_t>(kMaxBlockElements, elements - at);
    Move(alpha, n, center + at, x_.data() + begin + at, difference + at);
    finite = finite && kernels::AllFinite(difference + at, n);
  }
  return finite;
}

void LookAheadReference(float delta, float eta, uint64_t n, const float* x, const float* v,
                        float* ahead) {
  const float factor = eta * delta;
  for (uint64_t i = 0; i < n; ++i) ahead[i] = x[i] - factor * v[i];
}

void LocalStepReference(float delta, float lambda, float eta, uint64_t n, const float* gradient,
                        float* v, float* x) {
  for (uint64_t i = 0; i < n; ++i) {
    const float g = lambda == 0 ? gradient[i] : gradient[i] + lambda * x[i];
    if (v != nullptr) {
      v[i] = delta * v[i] + g;
      x[i] -= eta * v[i];
    } else {
      x[i] -= eta * g;
    }
  }
}

void ElasticDifferenceReference(float alpha, uint64_t n, const float* center, float* x,
                                float* difference) {
  for (uint64_t i = 0; i < n; ++i) {
    difference[i] = alpha * (x[i] - center[i]);
    x[i] -= difference[i];
  }
}

}  // namespace foreshard
