// Sums of activations or gradients, element by element: where branches meet. Ours and not
// oneDNN's: its sum loses a following max(0, .) where channels do not fill a block (2.6.3).
#pragma once

#include <cstdint>

namespace foreshard::kernels::cpu {

// to[i] = a[i] + b[i]; `relu`: max(0, .) of it, which keeps what is no number. `to` may be a or
// b, and overlaps neither otherwise. Uses OpenMP's threads.
void Sum(const float* a, const float* b, float* to, uint64_t n, bool relu);

}  // namespace foreshard::kernels::cpu
