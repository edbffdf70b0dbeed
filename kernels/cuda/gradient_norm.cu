#include "kernels/cuda/gradient_norm.h"

#include "kernels/cuda/quads.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

constexpr uint32_t kPieceElements = 1 << 14;
constexpr uint32_t kLanes = 8;
// Few, so that the warps of a small gradient are on as many multiprocessors as there are.
constexpr uint32_t kSquareThreads = 2 * kWarpSize;
constexpr uint32_t kPiecesPerBlock = kSquareThreads / kLanes;

__device__ __forceinline__ bool NotFinite(float value) {
  return (__float_as_uint(value) & 0x7f800000) == 0x7f800000;
}

// partial[p] = the sum of squares of piece p.
__global__ void __launch_bounds__(kSquareThreads)
    SquaresKernel(Pointer<const float> values, uint64_t n, Pointer<double> partial,
                  uint32_t pieces) {
  const uint32_t piece = blockIdx.x * kPiecesPerBlock + threadIdx.x / kLanes;
  double sum = 0;
  if (piece < pieces) {
    const uint64_t begin = uint64_t{piece} * kPieceElements;
    const uint64_t left = n - begin;
    const uint32_t elements = left < kPieceElements ? static_cast<uint32_t>(left) : kPieceElements;
    const Pointer<const float> first = values + begin;
    // The loads run ahead of the additions that wait for each other.
#pragma unroll 16
    for (uint32_t i = threadIdx.x % kLanes; i < elements; i += kLanes) {
      const double wide = static_cast<double>(static_cast<float>(first[i]));
      sum = sum + wide * wide;
    }
  }
  // ((l0+l4)+(l2+l6)) + ((l1+l5)+(l3+l7)) in each piece's first lane.
  sum = sum + __shfl_down_sync(kAllLanes, sum, 4);
  sum = sum + __shfl_down_sync(kAllLanes, sum, 2);
  sum = sum + __shfl_down_sync(kAllLanes, sum, 1);
  if (piece < pieces && threadIdx.x % kLanes == 0) partial[piece] = sum;
}

// One warp: it loads ahead, its first lane adds.
__global__ void __launch_bounds__(kWarpSize)
    JoinKernel(Pointer<const double> partial, uint32_t pieces, double clip_norm,
               Pointer<GradientNorm> result) {
  double squares = 0;
  for (uint32_t begin = 0; begin < pieces; begin += kWarpSize) {
    const uint32_t mine = begin + LaneOfThread();
    // Beyond the end 0, which changes no sum.
    const double value = mine < pieces ? static_cast<double>(partial[mine]) : 0;
#pragma unroll
    for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
      squares = squares + __shfl_sync(kAllLanes, value, lane);
    }
  }
  if (LaneOfThread() != 0) return;
  GradientNorm made;
  made.norm = sqrt(squares);
  // Neither an infinity nor NaN.
  const bool finite = made.norm - made.norm == 0;
  if (clip_norm > 0 && finite && made.norm > clip_norm) {
    made.factor = static_cast<float>(clip_norm / made.norm);
  }
  made.not_finite = finite ? 0 : 1;
  *result = made;
}

__global__ void __launch_bounds__(kBlockThreads)
    ClipKernel(Pointer<float> values, uint64_t all, Pointer<const GradientNorm> result) {
  const GradientNorm norm = *result;
  if (norm.factor == 1) return;
  const uint64_t begin = uint64_t{blockIdx.x} * kMaxBlockElements;
  const uint64_t left = all - begin;
  const uint32_t n = left < kMaxBlockElements ? static_cast<uint32_t>(left) : kMaxBlockElements;
  values = values + begin;
  const bool aligned = QuadsAligned(values);
  for (uint32_t q = threadIdx.x; q < QuadsOf(n); q += kBlockThreads) {
    Quad v = LoadQuad(values, q, n, aligned);
#pragma unroll
    for (uint32_t k = 0; k < kQuad; ++k) v.x[k] = v.x[k] * norm.factor;
    StoreQuad(values, q, n, aligned, v);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    FiniteKernel(Pointer<const float> values, uint64_t all, Pointer<uint32_t> not_finite) {
  const uint64_t begin = uint64_t{blockIdx.x} * kMaxBlockElements;
  const uint64_t left = all - begin;
  const uint32_t n = left < kMaxBlockElements ? static_cast<uint32_t>(left) : kMaxBlockElements;
  values = values + begin;
  const bool aligned = QuadsAligned(values);
  bool bad = false;
  for (uint32_t q = threadIdx.x; q < QuadsOf(n); q += kBlockThreads) {
    const Quad v = LoadQuad(values, q, n, aligned);
#pragma unroll
    for (uint32_t k = 0; k < kQuad; ++k) bad = bad || NotFinite(v.x[k]);
  }
  if (bad) atomicOr(not_finite, 1u);
}

Grid PiecesOf(uint64_t n) {
  const auto pieces = static_cast<uint32_t>((n + kMaxBlockElements - 1) / kMaxBlockElements);
  return {.blocks = {pieces}, .threads = {kBlockThreads}};
}

}  // namespace

uint64_t GradientNormPartials(uint64_t elements) {
  return (elements + kPieceElements - 1) / kPieceElements;
}

absl::Status GradientNormOnDevice(const GradientNormArguments& arguments, double* partial,
                                  GradientNorm* result, NativeStream stream) {
  const auto pieces = static_cast<uint32_t>(GradientNormPartials(arguments.elements));
  if (pieces > 0) {
    const Grid grid = {.blocks = {(pieces + kPiecesPerBlock - 1) / kPiecesPerBlock},
                       .threads = {kSquareThreads}};
    const absl::Status squares = Launch("GradientSquares", SquaresKernel, grid, stream,
                                        Pointer<const float>(arguments.gradient),
                                        arguments.elements, Pointer<double>(partial), pieces);
    if (!squares.ok()) return squares;
  }
  const Grid one = {.blocks = {1}, .threads = {kWarpSize}};
  const absl::Status joined =
      Launch("GradientNorm", JoinKernel, one, stream, Pointer<const double>(partial), pieces,
             arguments.clip_norm, Pointer<GradientNorm>(result));
  if (!joined.ok()) return joined;
  if (arguments.clip_norm > 0 && arguments.elements > 0) {
    const absl::Status clipped = Launch("ClipGradient", ClipKernel, PiecesOf(arguments.elements),
                                        stream, Pointer<float>(arguments.gradient),
                                        arguments.elements, Pointer<const GradientNorm>(result));
    if (!clipped.ok()) return clipped;
  }
  return CheckFinite(arguments.statistics, arguments.statistic_elements, &result->not_finite,
                     stream);
}

absl::Status CheckFinite(const float* values, uint64_t n, uint32_t* not_finite,
                         NativeStream stream) {
  if (n == 0) return absl::OkStatus();
  return Launch("CheckFinite", FiniteKernel, PiecesOf(n), stream, Pointer<const float>(values), n,
                Pointer<uint32_t>(not_finite));
}

}  // namespace FORESHARD_CUDA_NAMESPACE
