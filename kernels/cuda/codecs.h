// The codecs on the GPU, block formats as kernels/codecs/README.md says, byte for byte what the
// CPU makes. segment_codec.h chooses among these by a Codec; only it and tests call them.
//
// One thread block of 256 threads encodes or decodes one block of at most 4096 elements. Each float
// is read once and written once, in 16-byte words; the bytes come and go in coalesced words. What
// is summed over a whole block lies in between in shared memory (16 KiB), what is selected from it
// (top_k) in registers. The compiler takes 32 to 40 registers for an encode on sm_80, 90 and 100
// (64 for top_k, up to 64 elsewhere; kernels/README.md), so 6 to 8 thread blocks fit a
// multiprocessor (4 where they must): while some wait for memory, or for the 512 dependent fp64
// additions of a scale, others move data. Those additions take a few microseconds a block, and
// their order is part of the format (eight lanes), so they cannot be spread over threads. Asking
// for 8 blocks at any price (__launch_bounds__) would spill.
#pragma once

#include "absl/status/status.h"
#include "kernels/cuda/block_table.h"
#include "kernels/cuda/memory.h"

namespace FORESHARD_CUDA_NAMESPACE {

// none, fp16, bf16.
enum class WordFormat : uint8_t { kFp32, kFp16, kBf16 };
absl::Status EncodeWords(WordFormat format, const EncodeArguments& arguments, NativeStream stream);
absl::Status DecodeWords(WordFormat format, const DecodeArguments& arguments, NativeStream stream);

// one_bit (scale ||c||_2 / sqrt n) and one_bit_mean (mean |c|).
enum class SignScale : uint8_t { kRootMeanSquare, kMeanMagnitude };
absl::Status EncodeSigns(SignScale scale, const EncodeArguments& arguments, NativeStream stream);
absl::Status DecodeSigns(const DecodeArguments& arguments, NativeStream stream);

absl::Status EncodeTopK(const EncodeArguments& arguments, NativeStream stream);
absl::Status DecodeTopK(const DecodeArguments& arguments, NativeStream stream);

absl::Status EncodeRandomK(const EncodeArguments& arguments, NativeStream stream);
absl::Status DecodeRandomK(const DecodeArguments& arguments, NativeStream stream);

// 2 to 8 bits an element.
absl::Status EncodeQuantized(uint32_t bits, const EncodeArguments& arguments, NativeStream stream);
absl::Status DecodeQuantized(uint32_t bits, const DecodeArguments& arguments, NativeStream stream);

}  // namespace FORESHARD_CUDA_NAMESPACE
