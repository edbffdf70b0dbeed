// Attention on the GPU (kernels/device.h, Attention): softmax(Q K' / sqrt(d)) V of each head, with
// padding by length and dropout by number, forward and backward, in tiles of 64 x 64 that live in
// registers and shared memory only (Dao et al., arXiv 2205.14135). Of positions x positions nothing
// reaches memory: forward keeps a running maximum and sum a row, backward computes each tile again
// from one kept number a row. Tiles beyond an example's length are not computed.
//
// Our own kernels, not cuDNN's fused attention: its dropout draws from a generator of its own, and
// ours must drop what the CPU drops; its backward adds dQ in whatever order tiles come to an end,
// and ours must give the same bits each time; and it takes no fp32. The price is that backward
// computes the scores twice, once by rows for dQ, once by columns for dK and dV.
//
// Products run on tensor cores from sm_80 on (bf16, or TF32, or fp32 as three products of TF32
// parts: tile_products.h); on older GPUs the lanes of a warp multiply.
//
//   AttentionForward(arguments, y, logarithms, stream);
//   AttentionBackward(arguments, y, logarithms, dy, delta, dqkv, stream);
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/text.h"

namespace FORESHARD_CUDA_NAMESPACE {

// Of one head.
inline constexpr uint32_t kMostHeadChannels = 64;

struct AttentionArguments {
  Storage storage = Storage::kFp32;
  bool round_products = false;         // of fp32 to TF32
  uint32_t examples = 0, positions = 0;
  uint32_t heads = 0, head_channels = 0;
  const void* qkv = nullptr;           // [examples, positions, 3, heads, head_channels]
  const int32_t* lengths = nullptr;    // [examples], 1..positions
  DropArguments drop;                  // rate 0: nothing
};

// INVALID_ARGUMENT: heads of more than kMostHeadChannels. Ask before the calls below.
absl::Status CheckAttention(uint32_t head_channels);

// y [examples, positions, heads, head_channels]; `logarithms` fp32 [examples, heads, positions]:
// for backward, null in inference, where nothing is dropped either.
absl::Status AttentionForward(const AttentionArguments& arguments, void* y, float* logarithms,
                              NativeStream stream);
// `y` and `logarithms` as forward left them, `delta` scratch of the latter's size; dqkv is written
// whole.
absl::Status AttentionBackward(const AttentionArguments& arguments, const void* y,
                               const float* logarithms, const void* dy, float* delta, void* dqkv,
                               NativeStream stream);

}  // namespace FORESHARD_CUDA_NAMESPACE
