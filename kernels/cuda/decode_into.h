// What every decode does with an element (internal to .cu files): DecodeInto, a quad at a
// time. kFrozenAdam is a kernel of its own, since its pointers would cost the others half of
// their occupancy (56 registers a thread against 32).
#pragma once

#include "kernels/cuda/frozen_adam_step.h"
#include "kernels/cuda/quads.h"

namespace FORESHARD_CUDA_NAMESPACE {

struct Decode {
  explicit Decode(const DecodeArguments& from)
      : blocks(from.table.blocks),
        in(from.in),
        values(from.values),
        momentum(from.momentum),
        denominator(from.denominator),
        into(from.into),
        step{from.eta, from.beta1, from.weight_decay, from.of_gradients},
        shared_key(from.key.shared) {}

  Pointer<const DeviceBlock> blocks;
  Pointer<const uint8_t> in;
  Pointer<float> values;
  Pointer<float> momentum;
  Pointer<const float> denominator;
  DecodeInto into;
  AdamStep step;
  uint64_t shared_key;
};

// One block of it.
template <bool kAdam>
struct DecodeBlock {
  __device__ DecodeBlock(const Decode& decode, const DeviceBlock& block)
      : in(decode.in + block.position),
        values(decode.values + block.offset),
        n(block.elements),
        into(decode.into),
        step(decode.step) {
    if (kAdam) {
      momentum = decode.momentum + block.offset;
      denominator = decode.denominator + block.offset;
      if (!block.decayed) step.weight_decay = 0;
    } else if (into == DecodeInto::kDifference) {
      into = block.plain ? DecodeInto::kValues : DecodeInto::kSum;
    }
    aligned = QuadsAligned(values, momentum, denominator);
  }

  Pointer<const uint8_t> in;
  Pointer<float> values;
  Pointer<float> momentum = nullptr;
  Pointer<const float> denominator = nullptr;
  uint32_t n;
  DecodeInto into;
  AdamStep step;
  bool aligned;

  // The decoded quad q.
  __device__ __forceinline__ void Put(uint32_t q, const Quad& decoded) const {
    if (!kAdam && into == DecodeInto::kValues) {
      StoreQuad(values, q, n, aligned, decoded);
      return;
    }
    Quad value = LoadQuad(values, q, n, aligned);
    if (!kAdam) {
#pragma unroll
      for (uint32_t k = 0; k < kQuad; ++k) value.x[k] = value.x[k] + decoded.x[k];
    } else {
      Quad m = {};
      if (step.of_gradients) m = LoadQuad(momentum, q, n, aligned);
      const Quad d = LoadQuad(denominator, q, n, aligned);
#pragma unroll
      for (uint32_t k = 0; k < kQuad; ++k) {
        StepOfAdam(step, decoded.x[k], d.x[k], &m.x[k], &value.x[k]);
      }
      StoreQuad(momentum, q, n, aligned, m);
    }
    StoreQuad(values, q, n, aligned, value);
  }
};

}  // namespace FORESHARD_CUDA_NAMESPACE
