#include "kernels/cpu/sum.h"

#include <algorithm>

#include "kernels/cpu/isa.h"

namespace foreshard::kernels::cpu {
namespace {

constexpr uint64_t kPiece = 1 << 14;  // what a thread takes at once

FORESHARD_ISA_INLINE void PlainBody(const float* a, const float* b, float* to, uint64_t n) {
#pragma GCC ivdep
  for (uint64_t i = 0; i < n; ++i) to[i] = a[i] + b[i];
}
FORESHARD_ISA_VARIANTS(void, Plain, (const float* a, const float* b, float* to, uint64_t n),
                       (a, b, to, n))

FORESHARD_ISA_INLINE void RectifiedBody(const float* a, const float* b, float* to, uint64_t n) {
#pragma GCC ivdep
  for (uint64_t i = 0; i < n; ++i) {
    const float sum = a[i] + b[i];
    to[i] = sum < 0 ? 0.0f : sum;
  }
}
FORESHARD_ISA_VARIANTS(void, Rectified, (const float* a, const float* b, float* to, uint64_t n),
                       (a, b, to, n))

}  // namespace

void Sum(const float* a, const float* b, float* to, uint64_t n, bool relu) {
  const uint64_t pieces = (n + kPiece - 1) / kPiece;
#pragma omp parallel for
  for (uint64_t piece = 0; piece < pieces; ++piece) {
    const uint64_t at = piece * kPiece, count = std::min(kPiece, n - at);
    if (relu) {
      Rectified(a + at, b + at, to + at, count);
    } else {
      Plain(a + at, b + at, to + at, count);
    }
  }
}

}  // namespace foreshard::kernels::cpu
