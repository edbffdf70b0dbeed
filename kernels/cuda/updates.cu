#include "kernels/cuda/updates.h"

#include "kernels/cuda/frozen_adam_step.h"
#include "kernels/cuda/quads.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

__device__ __forceinline__ bool Stops(const Pointer<const uint32_t>& stop) {
  return !(stop == nullptr) && *stop != 0;
}

// Vectors without blocks are cut into pieces of so many elements, a thread block each.
__device__ __forceinline__ uint64_t PieceBegin() {
  return uint64_t{blockIdx.x} * kMaxBlockElements;
}
__device__ __forceinline__ uint32_t PieceElements(uint64_t n) {
  const uint64_t left = n - PieceBegin();
  return left < kMaxBlockElements ? static_cast<uint32_t>(left) : kMaxBlockElements;
}

Grid PiecesOf(uint64_t n) {
  const auto pieces = static_cast<uint32_t>((n + kMaxBlockElements - 1) / kMaxBlockElements);
  return {.blocks = {pieces}, .threads = {kBlockThreads}};
}
Grid BlocksOf(const BlockTable& table) {
  return {.blocks = {table.count}, .threads = {kBlockThreads}};
}

__global__ void __launch_bounds__(kBlockThreads)
    DanaSlimKernel(Pointer<const DeviceBlock> blocks, DanaSlimStep step,
                   Pointer<const float> all_theta, Pointer<float> all_v,
                   Pointer<float> all_gradients, Pointer<const uint32_t> stop) {
  if (Stops(stop)) return;
  const DeviceBlock block = blocks[blockIdx.x];
  const Pointer<const float> theta = all_theta + block.offset;
  const Pointer<float> v = all_v + block.offset;
  const Pointer<float> gradient = all_gradients + block.offset;
  const bool aligned = QuadsAligned(theta, v, gradient);
  const float lambda = block.decayed ? step.weight_decay : 0;
  for (uint32_t q = threadIdx.x; q < QuadsOf(block.elements); q += kBlockThreads) {
    Quad g = LoadQuad(gradient, q, block.elements, aligned);
    Quad old = LoadQuad(v, q, block.elements, aligned);
    Quad t = {};
    if (lambda != 0) t = LoadQuad(theta, q, block.elements, aligned);
#pragma unroll
    for (uint32_t k = 0; k < kQuad; ++k) {
      if (lambda != 0) g.x[k] = g.x[k] + lambda * t.x[k];
      const float momentum = step.momentum * old.x[k] + g.x[k];
      float pushed = step.momentum * momentum + g.x[k];
      if (step.repair != 0) pushed = pushed + step.repair * old.x[k];
      old.x[k] = momentum;
      g.x[k] = pushed;
    }
    StoreQuad(v, q, block.elements, aligned, old);
    StoreQuad(gradient, q, block.elements, aligned, g);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    MixMomentumKernel(float beta1, uint64_t all, Pointer<const float> momentum,
                      Pointer<float> gradient, Pointer<const uint32_t> stop) {
  if (Stops(stop)) return;
  const uint32_t n = PieceElements(all);
  momentum = momentum + PieceBegin();
  gradient = gradient + PieceBegin();
  const bool aligned = QuadsAligned(momentum, gradient);
  for (uint32_t q = threadIdx.x; q < QuadsOf(n); q += kBlockThreads) {
    const Quad m = LoadQuad(momentum, q, n, aligned);
    Quad g = LoadQuad(gradient, q, n, aligned);
#pragma unroll
    for (uint32_t k = 0; k < kQuad; ++k) g.x[k] = beta1 * m.x[k] + (1 - beta1) * g.x[k];
    StoreQuad(gradient, q, n, aligned, g);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    TakeResultKernel(Pointer<const DeviceBlock> blocks, AdamStep step,
                     Pointer<const float> all_results, Pointer<float> all_momentum,
                     Pointer<const float> all_denominators, Pointer<float> all_theta) {
  const DeviceBlock block = blocks[blockIdx.x];
  const Pointer<const float> result = all_results + block.offset;
  const Pointer<float> momentum = all_momentum + block.offset;
  const Pointer<const float> denominator = all_denominators + block.offset;
  const Pointer<float> theta = all_theta + block.offset;
  const bool aligned = QuadsAligned(result, momentum, denominator, theta);
  if (!block.decayed) step.weight_decay = 0;
  for (uint32_t q = threadIdx.x; q < QuadsOf(block.elements); q += kBlockThreads) {
    const Quad r = LoadQuad(result, q, block.elements, aligned);
    const Quad d = LoadQuad(denominator, q, block.elements, aligned);
    Quad m = {};
    if (step.of_gradients) m = LoadQuad(momentum, q, block.elements, aligned);
    Quad t = LoadQuad(theta, q, block.elements, aligned);
#pragma unroll
    for (uint32_t k = 0; k < kQuad; ++k) StepOfAdam(step, r.x[k], d.x[k], &m.x[k], &t.x[k]);
    StoreQuad(momentum, q, block.elements, aligned, m);
    StoreQuad(theta, q, block.elements, aligned, t);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    AddScaledKernel(uint64_t all, float factor, Pointer<const float> values, Pointer<float> sum) {
  const uint32_t n = PieceElements(all);
  values = values + PieceBegin();
  sum = sum + PieceBegin();
  const bool aligned = QuadsAligned(values, sum);
  for (uint32_t q = threadIdx.x; q < QuadsOf(n); q += kBlockThreads) {
    const Quad v = LoadQuad(values, q, n, aligned);
    Quad s = LoadQuad(sum, q, n, aligned);
#pragma unroll
    for (uint32_t k = 0; k < kQuad; ++k) s.x[k] = s.x[k] + factor * v.x[k];
    StoreQuad(sum, q, n, aligned, s);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    ScaleKernel(uint64_t all, float factor, Pointer<float> values) {
  const uint32_t n = PieceElements(all);
  values = values + PieceBegin();
  const bool aligned = QuadsAligned(values);
  for (uint32_t q = threadIdx.x; q < QuadsOf(n); q += kBlockThreads) {
    Quad v = LoadQuad(values, q, n, aligned);
#pragma unroll
    for (uint32_t k = 0; k < kQuad; ++k) v.x[k] = v.x[k] * factor;
    StoreQuad(values, q, n, aligned, v);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    LookAheadKernel(float factor, uint64_t all, Pointer<const float> x, Pointer<const float> v,
                    Pointer<float> ahead) {
  const uint32_t n = PieceElements(all);
  x = x + PieceBegin();
  v = v + PieceBegin();
  ahead = ahead + PieceBegin();
  const bool aligned = QuadsAligned(x, v, ahead);
  for (uint32_t q = threadIdx.x; q < QuadsOf(n); q += kBlockThreads) {
    Quad at = LoadQuad(x, q, n, aligned);
    const Quad velocity = LoadQuad(v, q, n, aligned);
#pragma unroll
    for (uint32_t k = 0; k < kQuad; ++k) at.x[k] = at.x[k] - factor * velocity.x[k];
    StoreQuad(ahead, q, n, aligned, at);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    LocalSgdStepKernel(Pointer<const DeviceBlock> blocks, LocalStep step,
                       Pointer<const float> gradients, Pointer<float> all_v, Pointer<float> all_x,
                       Pointer<const uint32_t> stop) {
  if (Stops(stop)) return;
  const DeviceBlock block = blocks[blockIdx.x];
  const bool keeps_v = step.momentum != 0;
  const Pointer<const float> gradient = gradients + block.offset;
  Pointer<float> v = nullptr;
  if (keeps_v) v = all_v + block.offset;
  const Pointer<float> x = all_x + block.offset;
  const bool aligned = QuadsAligned(gradient, v, x);
  const float lambda = block.decayed ? step.weight_decay : 0;
  for (uint32_t q = threadIdx.x; q < QuadsOf(block.elements); q += kBlockThreads) {
    Quad move = LoadQuad(gradient, q, block.elements, aligned);
    Quad at = LoadQuad(x, q, block.elements, aligned);
    Quad velocity = {};
    if (keeps_v) velocity = LoadQuad(v, q, block.elements, aligned);
#pragma unroll
    for (uint32_t k = 0; k < kQuad; ++k) {
      if (lambda != 0) move.x[k] = move.x[k] + lambda * at.x[k];
      if (keeps_v) move.x[k] = step.momentum * velocity.x[k] + move.x[k];
      at.x[k] = at.x[k] - step.eta * move.x[k];
    }
    if (keeps_v) StoreQuad(v, q, block.elements, aligned, move);
    StoreQuad(x, q, block.elements, aligned, at);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    ElasticDifferenceKernel(float alpha, uint64_t all, Pointer<const float> center,
                            Pointer<float> x, Pointer<float> difference,
                            Pointer<uint32_t> not_finite) {
  const uint32_t n = PieceElements(all);
  center = center + PieceBegin();
  x = x + PieceBegin();
  difference = difference + PieceBegin();
  const bool aligned = QuadsAligned(center, x, difference);
  bool bad = false;
  for (uint32_t q = threadIdx.x; q < QuadsOf(n); q += kBlockThreads) {
    const Quad c = LoadQuad(center, q, n, aligned);
    Quad at = LoadQuad(x, q, n, aligned);
    Quad e;
#pragma unroll
    for (uint32_t k = 0; k < kQuad; ++k) {
      e.x[k] = alpha * (at.x[k] - c.x[k]);
      at.x[k] = at.x[k] - e.x[k];
      bad = bad || (__float_as_uint(e.x[k]) & 0x7f800000) == 0x7f800000;
    }
    StoreQuad(difference, q, n, aligned, e);
    StoreQuad(x, q, n, aligned, at);
  }
  if (bad) atomicOr(not_finite, 1u);
}

}  // namespace

absl::Status DanaSlimHalf(const BlockTable& table, const DanaSlimStep& step, const float* theta,
                          float* v, float* gradient, const uint32_t* stop, NativeStream stream) {
  if (table.count == 0) return absl::OkStatus();
  return Launch("DanaSlimHalf", DanaSlimKernel, BlocksOf(table), stream,
                Pointer<const DeviceBlock>(table.blocks), step, Pointer<const float>(theta),
                Pointer<float>(v), Pointer<float>(gradient), Pointer<const uint32_t>(stop));
}

absl::Status MixMomentum(float beta1, uint64_t n, const float* momentum, float* gradient,
                         const uint32_t* stop, NativeStream stream) {
  if (n == 0) return absl::OkStatus();
  return Launch("MixMomentum", MixMomentumKernel, PiecesOf(n), stream, beta1, n,
                Pointer<const float>(momentum), Pointer<float>(gradient),
                Pointer<const uint32_t>(stop));
}

absl::Status TakeResult(const BlockTable& table, const FrozenAdamStep& step, const float* result,
                        float* momentum, const float* denominator, float* theta,
                        NativeStream stream) {
  if (table.count == 0) return absl::OkStatus();
  const AdamStep same = {step.eta, step.beta1, step.weight_decay, step.of_gradients};
  return Launch("TakeResult", TakeResultKernel, BlocksOf(table), stream,
                Pointer<const DeviceBlock>(table.blocks), same, Pointer<const float>(result),
                Pointer<float>(momentum), Pointer<const float>(denominator), Pointer<float>(theta));
}

absl::Status AddScaled(uint64_t n, float factor, const float* values, float* sum,
                       NativeStream stream) {
  if (n == 0) return absl::OkStatus();
  return Launch("AddScaled", AddScaledKernel, PiecesOf(n), stream, n, factor,
                Pointer<const float>(values), Pointer<float>(sum));
}

absl::Status Scale(uint64_t n, float factor, float* values, NativeStream stream) {
  if (n == 0) return absl::OkStatus();
  return Launch("Scale", ScaleKernel, PiecesOf(n), stream, n, factor, Pointer<float>(values));
}

absl::Status LookAhead(float delta, float eta, uint64_t n, const float* x, const float* v,
                       float* ahead, NativeStream stream) {
  if (n == 0) return absl::OkStatus();
  return Launch("LookAhead", LookAheadKernel, PiecesOf(n), stream, eta * delta, n,
                Pointer<const float>(x), Pointer<const float>(v), Pointer<float>(ahead));
}

absl::Status LocalSgdStep(const BlockTable& table, const LocalStep& step, const float* gradient,
                          float* v, float* x, const uint32_t* stop, NativeStream stream) {
  if (table.count == 0) return absl::OkStatus();
  return Launch("LocalSgdStep", LocalSgdStepKernel, BlocksOf(table), stream,
                Pointer<const DeviceBlock>(table.blocks), step, Pointer<const float>(gradient),
                Pointer<float>(v), Pointer<float>(x), Pointer<const uint32_t>(stop));
}

absl::Status ElasticDifference(float alpha, uint64_t n, const float* center, float* x,
                               float* difference, uint32_t* not_finite, NativeStream stream) {
  if (n == 0) return absl::OkStatus();
  return Launch("ElasticDifference", ElasticDifferenceKernel, PiecesOf(n), stream, alpha, n,
                Pointer<const float>(center), Pointer<float>(x), Pointer<float>(difference),
                Pointer<uint32_t>(not_finite));
}

}  // namespace FORESHARD_CUDA_NAMESPACE
