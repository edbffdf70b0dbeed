// Arithmetic shared by the update rules, on runs of a few thousand floats that
// are in cache. No operation is contracted into a fused multiply-add, so every
// instruction set gives the same bits; each function has the plain loop as its
// definition. Pointers need no alignment and must not overlap unless they are
// the same array.
#pragma once

#include <cstdint>

namespace foreshard::kernels {

// Whether all n values are finite.
bool AllFinite(const float* values, uint64_t n);

// sum of values[i]^2 in fp64, eight lanes as the codecs sum.
double SumOfSquares(const float* values, uint64_t n);

// sum of (a[i]-b[i])^2, the difference taken in fp32, summed as above.
double SumOfSquaredDifferences(const float* a, const float* b, uint64_t n);

// values[i] *= factor.
void Scale(float* values, float factor, uint64_t n);

// sum[i] += values[i].
void Add(float* sum, const float* values, uint64_t n);

// values[i] -= other[i]. Whether all of the differences are finite.
bool SubtractFinite(float* values, const float* other, uint64_t n);

}  // namespace foreshard::kernels
