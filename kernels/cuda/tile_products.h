// Products of small tiles by a warp, c [16, 8] += a [16, 16] b [16, 8] (internal to .cu files). How
// elements are shared among lanes is that of the PTX instruction mma.m16n8k16: with g = lane / 4 and
// t = lane % 4 a lane has
//
//   c: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
//   a: those columns of rows g and g + 8, and the same 8 columns further on
//   b: rows 2t, 2t + 1, 2t + 8, 2t + 9 of column g
//
// so the sums of two neighbouring products are the a of a next one, without a move between lanes.
// Three kinds of products have this interface:
//
//   Bf16Products   elements bf16, sums fp32
//   Tf32Products   elements fp32, rounded to TF32
//   Fp32Products   elements fp32: each is a TF32 number and a rest, three products make one
//                  (about 2^-21 of the largest term is lost)
//
// On tensor cores from sm_80 on; before that, lanes fetch from each other and multiply in fp32.
#pragma once

#include "kernels/cuda/stored.h"

namespace FORESHARD_CUDA_NAMESPACE {

// Elements in the order that the head of this file lists them.
struct LeftLane {
  float x[8];
};
struct RightLane {
  float x[4];
};

// x as TF32, 10 bits of mantissa: to nearest, ties away from 0.
__device__ __forceinline__ float RoundToTf32(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
  return __uint_as_float(rounded);
#else
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return x;
  return __uint_as_float((bits + 0x1000u) & 0xffffe000u);
#endif
}

// The same, of a value that a loop does not change, made anew each time: both parts of everything
// that a warp holds would be more registers than there are.
__device__ __forceinline__ float RoundToTf32Here(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t rounded;
  asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
  return __uint_as_float(rounded);
#else
  return RoundToTf32(x);
#endif
}

// c as a value, for the call below.
struct ProductSums {
  float x[4];
};

// Code that each product calls, since it is long.
#if defined(FORESHARD_CUDA_EMULATION)
#define FORESHARD_APART inline
#else
#define FORESHARD_APART inline __device__ __noinline__
#endif

// By what lanes hold alone: every element is fetched from the lane that has it.
FORESHARD_APART ProductSums AddByShuffles(ProductSums c, LeftLane a, RightLane b) {
  const uint32_t lane = LaneOfThread(), row = lane / 4 * 4, column = lane % 4 * 8;
#pragma unroll
  for (uint32_t k = 0; k < 16; ++k) {
    const uint32_t within = k % 8 / 2, half = k / 8, odd = k % 2;
    const float a_low = __shfl_sync(kAllLanes, a.x[half * 4 + odd], row + within);
    const float a_high = __shfl_sync(kAllLanes, a.x[half * 4 + 2 + odd], row + within);
    const float b_even = __shfl_sync(kAllLanes, b.x[half * 2 + odd], column + within);
    const float b_odd = __shfl_sync(kAllLanes, b.x[half * 2 + odd], column + 4 + within);
    c.x[0] = fmaf(a_low, b_even, c.x[0]);
    c.x[1] = fmaf(a_low, b_odd, c.x[1]);
    c.x[2] = fmaf(a_high, b_even, c.x[2]);
    c.x[3] = fmaf(a_high, b_odd, c.x[3]);
  }
  return c;
}

#if defined(FORESHARD_CUDA_EMULATION)

// What the lanes of each warp brought; a block's threads are fibers of one thread.
struct BroughtByLanes {
  LeftLane a[32][kWarpSize];
  RightLane b[32][kWarpSize];
};

inline void AddTogether(float (&c)[4], const LeftLane& a, const RightLane& b) {
  static thread_local BroughtByLanes brought;
  const uint32_t warp = WarpOfThread(), lane = LaneOfThread();
  brought.a[warp][lane] = a;
  brought.b[warp][lane] = b;
  __syncwarp();
  const uint32_t row = lane / 4 * 4, column = lane % 4 * 8;
  for (uint32_t k = 0; k < 16; ++k) {
    const uint32_t within = k % 8 / 2, half = k / 8, odd = k % 2;
    const LeftLane& left = brought.a[warp][row + within];
    const float even = brought.b[warp][column + within].x[half * 2 + odd];
    const float uneven = brought.b[warp][column + 4 + within].x[half * 2 + odd];
    c[0] += left.x[half * 4 + odd] * even;
    c[1] += left.x[half * 4 + odd] * uneven;
    c[2] += left.x[half * 4 + 2 + odd] * even;
    c[3] += left.x[half * 4 + 2 + odd] * uneven;
  }
  __syncwarp();
}

#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

// Two products of eight, in which the columns of a stand in the order 0 2 4 6 1 3 5 7, as do the
// rows of b: a sum does not mind. Both are TF32 already.
__device__ __forceinline__ void AddTogether(float (&c)[4], const LeftLane& a, const RightLane& b) {
#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(__float_as_uint(a.x[half * 4])), "r"(__float_as_uint(a.x[half * 4 + 2])),
          "r"(__float_as_uint(a.x[half * 4 + 1])), "r"(__float_as_uint(a.x[half * 4 + 3])),
          "r"(__float_as_uint(b.x[half * 2])), "r"(__float_as_uint(b.x[half * 2 + 1])));
  }
}

#else

__device__ __forceinline__ void AddTogether(float (&c)[4], const LeftLane& a, const RightLane& b) {
  const ProductSums sums = AddByShuffles({{c[0], c[1], c[2], c[3]}}, a, b);
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) c[i] = sums.x[i];
}

#endif

// What is said of fp32 once, for both kinds. A tile lies in shared memory, `stride` elements a row;
// strides and first columns are even.
struct WideProducts {
  using Element = float;
  using Left = LeftLane;
  using Right = RightLane;

  // Rows [row, row + 16), columns [column, column + 16) of the tile.
  static __device__ __forceinline__ Left ReadLeft(const Pointer<const float>& tile, uint32_t stride,
                                                  uint32_t row, uint32_t column) {
    const uint32_t lane = LaneOfThread();
    const uint32_t low = (row + lane / 4) * stride + column + lane % 4 * 2, high = low + 8 * stride;
    return {{tile[low], tile[low + 1], tile[high], tile[high + 1], tile[low + 8], tile[low + 9],
             tile[high + 8], tile[high + 9]}};
  }
  // b is the tile's transpose: its columns are rows [row, row + 8).
  static __device__ __forceinline__ Right ReadRows(const Pointer<const float>& tile,
                                                   uint32_t stride, uint32_t row,
                                                   uint32_t column) {
    const uint32_t lane = LaneOfThread();
    const uint32_t at = (row + lane / 4) * stride + column + lane % 4 * 2;
    return {{tile[at], tile[at + 1], tile[at + 8], tile[at + 9]}};
  }
  // b as it lies in the tile: rows [row, row + 16), columns [column, column + 8).
  static __device__ __forceinline__ Right ReadColumns(const Pointer<const float>& tile,
                                                      uint32_t stride, uint32_t row,
                                                      uint32_t column) {
    const uint32_t lane = LaneOfThread();
    const uint32_t at = (row + lane % 4 * 2) * stride + column + lane / 4;
    return {{tile[at], tile[at + stride], tile[at + 8 * stride], tile[at + 9 * stride]}};
  }
  // Two neighbouring c as an a.
  static __device__ __forceinline__ Left FromSums(const float (&first)[4],
                                                  const float (&second)[4]) {
    return {{first[0], first[1], first[2], first[3], second[0], second[1], second[2], second[3]}};
  }
};

struct Tf32Products : WideProducts {
  static __device__ __forceinline__ void Add(float (&c)[4], const Left& a, const Right& b) {
    Left left;
    Right right;
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) left.x[i] = RoundToTf32(a.x[i]);
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) right.x[i] = RoundToTf32(b.x[i]);
    AddTogether(c, left, right);
  }
};

struct Fp32Products : WideProducts {
  static __device__ __forceinline__ void Add(float (&c)[4], const Left& a, const Right& b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    AddTogether(c, a, b);  // in fp32 already
#else
    Left left, left_rest;
    Right right, right_rest;
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      left.x[i] = RoundToTf32Here(a.x[i]);
      left_rest.x[i] = RoundToTf32(a.x[i] - left.x[i]);
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      right.x[i] = RoundToTf32(b.x[i]);
      right_rest.x[i] = RoundToTf32(b.x[i] - right.x[i]);
    }
    AddTogether(c, left_rest, right);
    AddTogether(c, left, right_rest);
    AddTogether(c, left, right);
#endif
  }
};

struct Bf16Products {
  using Element = uint16_t;
  struct Left {
    uint32_t pairs[4];
  };
  struct Right {
    uint32_t pairs[2];
  };

  static __device__ __forceinline__ Left ReadLeft(const Pointer<const uint16_t>& tile,
                                                  uint32_t stride, uint32_t row, uint32_t column) {
    const uint32_t lane = LaneOfThread();
    const uint32_t low = (row + lane / 4) * stride + column + lane % 4 * 2, high = low + 8 * stride;
    return {{Pair(tile, low), Pair(tile, high), Pair(tile, low + 8), Pair(tile, high + 8)}};
  }
  static __device__ __forceinline__ Right ReadRows(const Pointer<const uint16_t>& tile,
                                                   uint32_t stride, uint32_t row,
                                                   uint32_t column) {
    const uint32_t lane = LaneOfThread();
    const uint32_t at = (row + lane / 4) * stride + column + lane % 4 * 2;
    return {{Pair(tile, at), Pair(tile, at + 8)}};
  }
  static __device__ __forceinline__ Right ReadColumns(const Pointer<const uint16_t>& tile,
                                                      uint32_t stride, uint32_t row,
                                                      uint32_t column) {
    const uint32_t lane = LaneOfThread();
    const uint32_t at = (row + lane % 4 * 2) * stride + column + lane / 4;
    return {{Both(tile[at], tile[at + stride]), Both(tile[at + 8 * stride], tile[at + 9 * stride])}};
  }
  static __device__ __forceinline__ Left FromSums(const float (&first)[4],
                                                  const float (&second)[4]) {
    return {{Rounded(first[0], first[1]), Rounded(first[2], first[3]),
             Rounded(second[0], second[1]), Rounded(second[2], second[3])}};
  }

  static __device__ __forceinline__ void Add(float (&c)[4], const Left& a, const Right& b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.pairs[0]), "r"(a.pairs[1]), "r"(a.pairs[2]), "r"(a.pairs[3]), "r"(b.pairs[0]),
          "r"(b.pairs[1]));
#else
    LeftLane left;
    RightLane right;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      left.x[2 * i] = __uint_as_float(a.pairs[i] << 16);
      left.x[2 * i + 1] = __uint_as_float(a.pairs[i] & 0xffff0000u);
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      right.x[2 * i] = __uint_as_float(b.pairs[i] << 16);
      right.x[2 * i + 1] = __uint_as_float(b.pairs[i] & 0xffff0000u);
    }
    AddTogether(c, left, right);
#endif
  }

 private:
  static __device__ __forceinline__ uint32_t Both(uint16_t low, uint16_t high) {
    return static_cast<uint32_t>(high) << 16 | low;
  }
  static __device__ __forceinline__ uint32_t Pair(const Pointer<const uint16_t>& tile,
                                                  uint32_t at) {
    return *CastPointer<const uint32_t>(tile + at);
  }
  static __device__ __forceinline__ uint32_t Rounded(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    return Both(Stored<uint16_t>::Of(low), Stored<uint16_t>::Of(high));
#endif
  }
};

}  // namespace FORESHARD_CUDA_NAMESPACE
