// The second step of sums over many rows (internal to .cu files): each thread block of the first
// has left the sums of its chunk of rows.
#pragma once

#include "kernels/cuda/device_code.h"

namespace FORESHARD_CUDA_NAMESPACE {

// Rows of a chunk: small enough that a few thousand rows fill a GPU, and the second step is short.
inline constexpr uint32_t kChunkRows = 128;
inline uint32_t ChunksOf(uint32_t rows) { return (rows + kChunkRows - 1) / kChunkRows; }

// A block of the first step: 32 columns, and eight warps that share the rows of its chunk.
inline constexpr uint32_t kSumThreads = 256;
inline constexpr uint32_t kSumWays = kSumThreads / kWarpSize;
inline uint32_t SumColumns(uint32_t channels) { return (channels + kWarpSize - 1) / kWarpSize; }

// to [sets, channels] = (accumulate: to +) the sums of partial [sets, chunks, channels], in the
// order of the chunks. `to` of set s begins `s * stride` elements behind the first.
absl::Status JoinRowSums(uint32_t sets, uint32_t chunks, uint32_t channels, const float* partial,
                         bool accumulate, float* to, uint64_t stride, NativeStream stream);

}  // namespace FORESHARD_CUDA_NAMESPACE
