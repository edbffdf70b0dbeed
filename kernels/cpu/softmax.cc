#include "kernels/cpu/softmax.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/cpu/isa.h"

namespace foreshard::kernels::cpu {
namespace {

constexpr uint64_t kLanes = 16;
constexpr uint64_t kBlock = 1024;  // summed in fp32

// exp(x) for x <= 0: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial in r (Cephes'
// coefficients), and n put into the exponent. Adding 1.5 * 2^23 rounds to a whole number and
// leaves it in the lowest bits.
FORESHARD_ISA_INLINE float Exp(float x) {
  constexpr float kRound = 12582912.0f, kLeast = -87.0f;
  const float clamped = x < kLeast ? kLeast : x;
  const float shifted = clamped * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  float r = clamped - n * 0.693359375f;
  r -= n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float y = p * r * r + r + 1.0f;
  const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) << 23) + (127u << 23));
  return x < kLeast ? 0.0f : y * power;
}

FORESHARD_ISA_INLINE float LargestOfBody(const float* row, uint64_t n) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = row[0];
  uint64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (uint64_t l = 0; l < kLanes; ++l) lanes[l] = row[i + l] > lanes[l] ? row[i + l] : lanes[l];
  }
  float largest = lanes[0];
  for (uint64_t l = 1; l < kLanes; ++l) largest = std::max(largest, lanes[l]);
  for (; i < n; ++i) largest = std::max(largest, row[i]);
  return largest;
}
FORESHARD_ISA_VARIANTS(float, LargestOf, (const float* row, uint64_t n), (row, n))

FORESHARD_ISA_INLINE double ExpAndSumOfBody(const float* row, uint64_t n, float shift, float* out) {
  double sum = 0;
  for (uint64_t begin = 0; begin < n; begin += kBlock) {
    const uint64_t end = std::min(n, begin + kBlock);
    float lanes[kLanes] = {};
    uint64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
#pragma GCC ivdep
      for (uint64_t l = 0; l < kLanes; ++l) {
        const float e = Exp(row[i + l] - shift);
        out[i + l] = e;
        lanes[l] += e;
      }
    }
    for (; i < end; ++i) {
      out[i] = Exp(row[i] - shift);
      lanes[i % kLanes] += out[i];
    }
    for (float lane : lanes) sum += lane;
  }
  return sum;
}
FORESHARD_ISA_VARIANTS(double, ExpAndSumOf,
                       (const float* row, uint64_t n, float shift, float* out),
                       (row, n, shift, out))

}  // namespace

float Largest(const float* row, uint64_t n) { return LargestOf(row, n); }

double ExpAndSum(const float* row, uint64_t n, float shift, float* out) {
  return ExpAndSumOf(row, n, shift, out);
}

}  // namespace foreshard::kernels::cpu
