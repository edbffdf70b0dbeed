// Rows of a softmax in fp32: what attention and the loss over a vocabulary have in common.
// Sums are taken in sixteen lanes a block, blocks in fp64, so every instruction set gives the
// same bits. exp() is within 2 units in the last place of its fp32 value; below -87 it is 0.
#pragma once

#include <cstdint>

namespace foreshard::kernels::cpu {

// Largest of n >= 1 values that are numbers.
float Largest(const float* row, uint64_t n);

// out[i] = exp(row[i] - shift), which may be `row`; returns their sum. row[i] <= shift, or not a
// number, and then neither is the sum.
double ExpAndSum(const float* row, uint64_t n, float shift, float* out);

}  // namespace foreshard::kernels::cpu
