#include "common/core/random.h"

#include <cmath>
#include <numbers>
#include <utility>

namespace foreshard {
namespace {

uint64_t Mix(uint64_t word) {
  word ^= word >> 30;
  word *= 0xbf58476d1ce4e5b9ull;
  word ^= word >> 27;
  word *= 0x94d049bb133111ebull;
  word ^= word >> 31;
  return word;
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;

}  // namespace

uint64_t RandomBits(uint64_t seed, uint64_t stream, uint64_t counter) {
  return Mix(Mix(Mix(seed + kGolden) + stream + kGolden) + (counter + 1) * kGolden);
}

double RandomUniform(uint64_t seed, uint64_t stream, uint64_t counter) {
  return static_cast<double>(RandomBits(seed, stream, counter) >> 11) * 0x1.0p-53;
}

double RandomNormal(uint64_t seed, uint64_t stream, uint64_t counter) {
  // 1 - u is in (0, 1], so the logarithm is finite.
  const double radius = std::sqrt(-2 * std::log(1 - RandomUniform(seed, stream, 2 * counter)));
  return radius * std::cos(2 * std::numbers::pi * RandomUniform(seed, stream, 2 * counter + 1));
}

std::vector<uint32_t> RandomPermutation(uint64_t seed, uint64_t stream, uint32_t elements) {
  std::vector<uint32_t> permutation(elements);
  for (uint32_t i = 0; i < elements; ++i) permutation[i] = i;
  for (uint32_t i = elements; i > 1; --i) {
    // The high half of a 32 x 32-bit product: uniform to 2^-32, without division.
    const uint64_t draw = RandomBits(seed, stream, i) >> 32;
    std::swap(permutation[i - 1], permutation[(draw * i) >> 32]);
  }
  return permutation;
}

}  // namespace foreshard
