// Counter-based random numbers: a pure function of (seed, stream, counter), so
// that every process and device draws the same ones in any order.
#pragma once

#include <cstdint>
#include <vector>

namespace foreshard {

// SplitMix64's finaliser over the three words (Steele, Lea, Flood 2014).
uint64_t RandomBits(uint64_t seed, uint64_t stream, uint64_t counter);

// Uniform in [0, 1), 53 bits.
double RandomUniform(uint64_t seed, uint64_t stream, uint64_t counter);

// Standard normal, Box-Muller on two uniforms.
double RandomNormal(uint64_t seed, uint64_t stream, uint64_t counter);

// Fisher-Yates permutation of 0..elements-1.
std::vector<uint32_t> RandomPermutation(uint64_t seed, uint64_t stream, uint32_t elements);

}  // namespace foreshard
