#include "kernels/cpu/vector_math.h"

#include <bit>

#include "kernels/codecs/lanes.h"
#include "kernels/cpu/isa.h"

namespace foreshard::kernels {
namespace {

FORESHARD_ISA_INLINE bool FiniteBody(const float* values, uint64_t n) {
  uint32_t found = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<uint32_t>(values[i]);
    found |= (bits & 0x7f800000) == 0x7f800000 ? 1 : 0;
  }
  return found == 0;
}
FORESHARD_ISA_VARIANTS(bool, Finite, (const float* values, uint64_t n), (values, n))

FORESHARD_ISA_INLINE double SquaresBody(const float* values, uint64_t n) {
  double lanes[8] = {};
  const uint64_t whole = n / 8 * 8;
  for (uint64_t i = 0; i < whole; i += 8) {
    for (uint64_t lane = 0; lane < 8; ++lane) {
      const double wide = values[i + lane];
      lanes[lane] += wide * wide;
    }
  }
  for (uint64_t i = whole; i < n; ++i) {
    const double wide = values[i];
    lanes[i - whole] += wide * wide;
  }
  return JoinLanes(lanes);
}
FORESHARD_ISA_VARIANTS(double, Squares, (const float* values, uint64_t n), (values, n))

FORESHARD_ISA_INLINE double SquaredDifferencesBody(const float* a, const float* b, uint64_t n) {
  double lanes[8] = {};
  const uint64_t whole = n / 8 * 8;
  for (uint64_t i = 0; i < whole; i += 8) {
    for (uint64_t lane = 0; lane < 8; ++lane) {
      const double wide = a[i + lane] - b[i + lane];
      lanes[lane] += wide * wide;
    }
  }
  for (uint64_t i = whole; i < n; ++i) {
    const double wide = a[i] - b[i];
    lanes[i - whole] += wide * wide;
  }
  return JoinLanes(lanes);
}
FORESHARD_ISA_VARIANTS(double, SquaredDifferences, (const float* a, const float* b, uint64_t n),
                       (a, b, n))

FORESHARD_ISA_INLINE void ScaleAllBody(float* values, float factor, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) values[i] *= factor;
}
FORESHARD_ISA_VARIANTS(void, ScaleAll, (float* values, float factor, uint64_t n),
                       (values, factor, n))

// `sum` and `values` may be the same array, so no __restrict.
FORESHARD_ISA_INLINE void AddAllBody(float* sum, const float* values, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) sum[i] += values[i];
}
FORESHARD_ISA_VARIANTS(void, AddAll, (float* sum, const float* values, uint64_t n),
                       (sum, values, n))

FORESHARD_ISA_INLINE bool SubtractAllBody(float* __restrict values, const float* __restrict other,
                                          uint64_t n) {
  uint32_t found = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const float difference = values[i] - other[i];
    values[i] = difference;
    found |= (std::bit_cast<uint32_t>(difference) & 0x7f800000) == 0x7f800000 ? 1 : 0;
  }
  return found == 0;
}
FORESHARD_ISA_VARIANTS(bool, SubtractAll, (float* values, const float* other, uint64_t n),
                       (values, other, n))

}  // namespace

bool AllFinite(const float* values, uint64_t n) { return Finite(values, n); }

double SumOfSquares(const float* values, uint64_t n) { return Squares(values, n); }

double SumOfSquaredDifferences(const float* a, const float* b, uint64_t n) {
  return SquaredDifferences(a, b, n);
}

void Scale(float* values, float factor, uint64_t n) { ScaleAll(values, factor, n); }

void Add(float* sum, const float* values, uint64_t n) { AddAll(sum, values, n); }

bool SubtractFinite(float* values, const float* other, uint64_t n) {
  return SubtractAll(values, other, n);
}

}  // namespace foreshard::kernels
