// random_k: the elements that the shared key chooses, one in each of k strata
// (kernels/codecs/random_k.cc).
//
// Encode with error feedback: all threads leave c in shared memory; k threads take what is
// chosen, and leave c - c in its place; all threads write the error from there. Without it,
// nothing but the chosen elements is read. Decode puts the words at their places in a block of
// zeros in shared memory: x + 0 is computed for the others, as on the CPU, where it makes +0 of
// -0.
#include "kernels/cuda/codec_kernel.h"
#include "kernels/cuda/codecs.h"
#include "kernels/cuda/draws.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

__device__ __forceinline__ uint32_t Below(uint32_t draw, uint32_t bound) {
  return __umulhi(draw, bound);
}

// Element number j of k that are chosen of n.
__device__ __forceinline__ uint32_t Chosen(uint64_t key, uint32_t j, uint32_t n, uint32_t k) {
  const uint32_t begin = j * n / k;
  const uint32_t length = (j + 1) * n / k - begin;
  const uint32_t at = begin + Below(Draw(key, j + 1), length) + Below(Draw(key, 0), n);
  return at >= n ? at - n : at;
}

__global__ void __launch_bounds__(kBlockThreads) EncodeRandomKKernel(Encode encode) {
  FORESHARD_SHARED(float, shared_c, kMaxBlockElements);
  if (encode.stopped()) return;
  const DeviceBlock described = encode.blocks[blockIdx.x];
  const EncodeBlock block(encode, described);
  if (described.plain) {
    EncodePlainBlock(block);
    return;
  }
  const uint64_t key = KeyOfBlock(encode.shared_key, described.offset);
  if (block.has_error) {
    for (uint32_t q = threadIdx.x; q < QuadsOf(block.n); q += kBlockThreads) {
      StoreShared(shared_c, q, block.C(q));
    }
    __syncthreads();
  }
  for (uint32_t j = threadIdx.x; j < described.selected; j += kBlockThreads) {
    const uint32_t place = Chosen(key, j, block.n, described.selected);
    const float value = block.has_error ? static_cast<float>(shared_c[place])
                                        : static_cast<float>(block.values[place]);
    StoreWord(block.out + j * sizeof(float), __float_as_uint(value));
    if (block.has_error) shared_c[place] = value - value;
  }
  if (!block.has_error) return;
  __syncthreads();
  for (uint32_t q = threadIdx.x; q < QuadsOf(block.n); q += kBlockThreads) {
    block.SetError(q, LoadShared(shared_c, q));
  }
}

template <bool kAdam>
__global__ void __launch_bounds__(kBlockThreads) DecodeRandomKKernel(Decode decode) {
  FORESHARD_SHARED(float, decoded, kMaxBlockElements);
  const DeviceBlock described = decode.blocks[blockIdx.x];
  const DecodeBlock<kAdam> block(decode, described);
  if (described.plain) {
    DecodePlainBlock(block);
    return;
  }
  const uint64_t key = KeyOfBlock(decode.shared_key, described.offset);
  for (uint32_t q = threadIdx.x; q < QuadsOf(block.n); q += kBlockThreads)
    StoreShared(decoded, q, {});
  __syncthreads();
  for (uint32_t j = threadIdx.x; j < described.selected; j += kBlockThreads) {
    decoded[Chosen(key, j, block.n, described.selected)] =
        __uint_as_float(LoadWord<uint32_t>(block.in + j * sizeof(float)));
  }
  __syncthreads();
  for (uint32_t q = threadIdx.x; q < QuadsOf(block.n); q += kBlockThreads) {
    block.Put(q, LoadShared(decoded, q));
  }
}

}  // namespace

absl::Status EncodeRandomK(const EncodeArguments& arguments, NativeStream stream) {
  return LaunchEncode("EncodeRandomK", EncodeRandomKKernel, arguments, stream);
}

absl::Status DecodeRandomK(const DecodeArguments& arguments, NativeStream stream) {
  const bool adam = arguments.into == DecodeInto::kFrozenAdam;
  return LaunchDecode("DecodeRandomK",
                      adam ? DecodeRandomKKernel<true> : DecodeRandomKKernel<false>, arguments,
                      stream);
}

}  // namespace FORESHARD_CUDA_NAMESPACE
