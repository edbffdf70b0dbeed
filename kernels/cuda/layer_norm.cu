// Layer norm, one warp for a row: mean, then variance around it, then the result, each a pass over
// the row, which stays in the nearest cache. The gradients of weight and bias are sums over rows:
// chunks of them first, then the chunks' sums, in order.
#include "kernels/cuda/packs.h"
#include "kernels/cuda/row_sums.h"
#include "kernels/cuda/text.h"
#include "kernels/cuda/warp_reductions.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

constexpr uint32_t kNormWarps = 4;
constexpr uint32_t kNormThreads = kNormWarps * kWarpSize;

template <typename T>
__global__ void __launch_bounds__(kNormThreads)
    LayerNormKernel(LayerNormShape shape, Pointer<const T> x, Pointer<const float> weight,
                    Pointer<const float> bias, Pointer<T> y, bool save, Pointer<float> saved) {
  constexpr uint32_t kSize = Pack<T>::kSize;
  const uint32_t row = blockIdx.x * kNormWarps + WarpOfThread(), lane = LaneOfThread();
  if (row >= shape.rows) return;  // the whole warp
  const uint32_t n = shape.channels;
  const Pointer<const T> from = x + uint64_t{row} * n;
  const Pointer<T> to = y + uint64_t{row} * n;
  const bool aligned = PacksAligned<T>(n, x, y);
  const uint32_t packs = static_cast<uint32_t>(PacksOf<T>(n));
  float sum = 0;
  for (uint32_t q = lane; q < packs; q += kWarpSize) {
    const Pack<T> v = LoadPack<T>(from, q, n, aligned);
#pragma unroll
    for (uint32_t k = 0; k < kSize; ++k) sum = sum + v.x[k];
  }
  const float mean = SumOfLanes(sum) / static_cast<float>(n);
  float squares = 0;
  for (uint32_t q = lane; q < packs; q += kWarpSize) {
    const Pack<T> v = LoadPack<T>(from, q, n, aligned);
#pragma unroll
    for (uint32_t k = 0; k < kSize; ++k) {
      const float d = q * kSize + k < n ? v.x[k] - mean : 0.0f;
      squares = squares + d * d;
    }
  }
  const float variance = SumOfLanes(squares) / static_cast<float>(n);
  const float inverse = 1.0f / sqrtf(variance + shape.epsilon);
  for (uint32_t q = lane; q < packs; q += kWarpSize) {
    Pack<T> v = LoadPack<T>(from, q, n, aligned);
#pragma unroll
    for (uint32_t k = 0; k < kSize; ++k) {
      const uint32_t c = q * kSize + k;
      if (c < n) {
        v.x[k] = static_cast<float>(weight[c]) * ((v.x[k] - mean) * inverse) +
                 static_cast<float>(bias[c]);
      }
    }
    StorePack<T>(to, q, n, aligned, v);
  }
  if (save && lane == 0) {
    saved[row] = mean;
    saved[uint64_t{shape.rows} + row] = inverse;
  }
}

// With z = (x - mean) / deviation and g = weight * dy:
//   dx = (g - mean of g - z * mean of g z) / deviation.
template <typename T>
__global__ void __launch_bounds__(kNormThreads)
    LayerNormInputKernel(LayerNormShape shape, Pointer<const T> x, Pointer<const T> dy,
                         Pointer<const float> weight, Pointer<const float> saved, Pointer<T> dx) {
  constexpr uint32_t kSize = Pack<T>::kSize;
  const uint32_t row = blockIdx.x * kNormWarps + WarpOfThread(), lane = LaneOfThread();
  if (row >= shape.rows) return;
  const uint32_t n = shape.channels;
  const uint64_t begin = uint64_t{row} * n;
  const bool aligned = PacksAligned<T>(n, x, dy, dx);
  const uint32_t packs = static_cast<uint32_t>(PacksOf<T>(n));
  const float mean = saved[row], inverse = saved[uint64_t{shape.rows} + row];
  float sum = 0, product = 0;
  for (uint32_t q = lane; q < packs; q += kWarpSize) {
    const Pack<T> v = LoadPack<T>(x + begin, q, n, aligned);
    const Pack<T> d = LoadPack<T>(dy + begin, q, n, aligned);
#pragma unroll
    for (uint32_t k = 0; k < kSize; ++k) {
      const uint32_t c = q * kSize + k;
      if (c >= n) continue;
      const float g = static_cast<float>(weight[c]) * d.x[k];
      sum = sum + g;
      product = product + g * ((v.x[k] - mean) * inverse);
    }
  }
  sum = SumOfLanes(sum) / static_cast<float>(n);
  product = SumOfLanes(product) / static_cast<float>(n);
  for (uint32_t q = lane; q < packs; q += kWarpSize) {
    const Pack<T> v = LoadPack<T>(x + begin, q, n, aligned);
    Pack<T> d = LoadPack<T>(dy + begin, q, n, aligned);
#pragma unroll
    for (uint32_t k = 0; k < kSize; ++k) {
      const uint32_t c = q * kSize + k;
      if (c >= n) continue;
      const float g = static_cast<float>(weight[c]) * d.x[k], z = (v.x[k] - mean) * inverse;
      d.x[k] = inverse * (g - sum - z * product);
    }
    StorePack<T>(dx + begin, q, n, aligned, d);
  }
}

// Of one chunk of rows and 32 columns: the sums of dy, and of dy * z, which go to the second and
// the first set of `partial`.
template <typename T, bool kNorm>
__global__ void __launch_bounds__(kSumThreads)
    RowSumsKernel(uint32_t rows, uint32_t channels, uint32_t columns, Pointer<const T> dy,
                  Pointer<const T> x, Pointer<const float> saved, Pointer<float> partial) {
  FORESHARD_SHARED(float, sums, kSumThreads);
  FORESHARD_SHARED(float, products, kSumThreads);
  const uint32_t way = WarpOfThread(), lane = LaneOfThread();
  const uint32_t channel = blockIdx.x % columns * kWarpSize + lane;
  const uint32_t chunk = blockIdx.x / columns, chunks = gridDim.x / columns;
  const uint32_t begin = chunk * kChunkRows;
  const uint32_t end = begin + kChunkRows < rows ? begin + kChunkRows : rows;
  float sum = 0, product = 0;
  if (channel < channels) {
#pragma unroll 4
    for (uint32_t row = begin + way; row < end; row += kSumWays) {
      const uint64_t at = uint64_t{row} * channels + channel;
      const float d = ValueOf(static_cast<T>(dy[at]));
      sum = sum + d;
      if (kNorm) {
        const float mean = saved[row], inverse = saved[uint64_t{rows} + row];
        product = product + d * ((ValueOf(static_cast<T>(x[at])) - mean) * inverse);
      }
    }
  }
  sums[threadIdx.x] = sum;
  if (kNorm) products[threadIdx.x] = product;
  __syncthreads();
  if (way != 0 || channel >= channels) return;
  for (uint32_t other = 1; other < kSumWays; ++other) {
    sum = sum + static_cast<float>(sums[other * kWarpSize + lane]);
    if (kNorm) product = product + static_cast<float>(products[other * kWarpSize + lane]);
  }
  const uint64_t to = uint64_t{chunk} * channels + channel;
  const uint64_t set = uint64_t{chunks} * channels;
  if (kNorm) partial[to] = product;
  partial[kNorm ? set + to : to] = sum;
}

__global__ void __launch_bounds__(kSumThreads)
    JoinRowSumsKernel(uint32_t sets, uint32_t chunks, uint32_t channels,
                      Pointer<const float> partial, bool accumulate, Pointer<float> to,
                      uint64_t stride) {
  for (uint64_t i = FirstElement(); i < uint64_t{sets} * channels; i += ElementStep()) {
    const uint64_t set = i / channels, channel = i % channels;
    const Pointer<const float> from = partial + (set * chunks * channels + channel);
    float sum = 0;
#pragma unroll 8
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      sum = sum + static_cast<float>(from[uint64_t{chunk} * channels]);
    }
    const uint64_t at = set * stride + channel;
    to[at] = accumulate ? static_cast<float>(to[at]) + sum : sum;
  }
}

template <typename T>
absl::Status Forward(const LayerNormShape& shape, const void* x, const float* weight,
                     const float* bias, void* y, float* saved, NativeStream stream) {
  const Grid grid = {{(shape.rows + kNormWarps - 1) / kNormWarps}, {kNormThreads}};
  return Launch("LayerNorm", LayerNormKernel<T>, grid, stream, shape,
                Pointer<const T>(static_cast<const T*>(x)), Pointer<const float>(weight),
                Pointer<const float>(bias), Pointer<T>(static_cast<T*>(y)), saved != nullptr,
                Pointer<float>(saved));
}

template <typename T>
absl::Status Gradient(const LayerNormShape& shape, const void* x, const void* dy,
                      const float* weight, const float* saved, const LayerNormGradients& gradients,
                      float* scratch, NativeStream stream) {
  const Pointer<const T> from(static_cast<const T*>(x)), out(static_cast<const T*>(dy));
  const uint32_t chunks = ChunksOf(shape.rows), columns = SumColumns(shape.channels);
  // Before dx, which may take dy's place.
  const absl::Status sums = Launch(
      "LayerNormSums", RowSumsKernel<T, true>, Grid{{columns * chunks}, {kSumThreads}}, stream,
      shape.rows, shape.channels, columns, out, from, Pointer<const float>(saved),
      Pointer<float>(scratch));
  if (!sums.ok()) return sums;
  const absl::Status weights =
      JoinRowSums(1, chunks, shape.channels, scratch, gradients.accumulate, gradients.weight, 0, stream);
  if (!weights.ok()) return weights;
  const absl::Status biases =
      JoinRowSums(1, chunks, shape.channels, scratch + uint64_t{chunks} * shape.channels,
                  gradients.accumulate, gradients.bias, 0, stream);
  if (!biases.ok() || gradients.dx == nullptr) return biases;
  const Grid grid = {{(shape.rows + kNormWarps - 1) / kNormWarps}, {kNormThreads}};
  return Launch("LayerNormInput", LayerNormInputKernel<T>, grid, stream, shape, from, out,
                Pointer<const float>(weight), Pointer<const float>(saved),
                Pointer<T>(static_cast<T*>(gradients.dx)));
}

template <typename T>
absl::Status Sums(uint32_t rows, uint32_t channels, const void* dy, float* scratch,
                  NativeStream stream) {
  const uint32_t columns = SumColumns(channels);
  return Launch("RowSums", RowSumsKernel<T, false>, Grid{{columns * ChunksOf(rows)}, {kSumThreads}},
                stream, rows, channels, columns, Pointer<const T>(static_cast<const T*>(dy)),
                Pointer<const T>(nullptr), Pointer<const float>(nullptr), Pointer<float>(scratch));
}

}  // namespace

absl::Status LayerNormForward(Storage storage, const LayerNormShape& shape, const void* x,
                              const float* weight, const float* bias, void* y, float* saved,
                              NativeStream stream) {
  if (shape.rows == 0) return absl::OkStatus();
  return storage == Storage::kFp32 ? Forward<float>(shape, x, weight, bias, y, saved, stream)
                                   : Forward<uint16_t>(shape, x, weight, bias, y, saved, stream);
}

uint64_t LayerNormScratch(uint32_t rows, uint32_t channels) {
  return uint64_t{2} * ChunksOf(rows) * channels * sizeof(float);
}

absl::Status LayerNormGradient(Storage storage, const LayerNormShape& shape, const void* x,
                               const void* dy, const float* weight, const float* saved,
                               const LayerNormGradients& gradients, float* scratch,
                               NativeStream stream) {
  if (shape.rows == 0) return absl::OkStatus();
  return storage == Storage::kFp32
             ? Gradient<float>(shape, x, dy, weight, saved, gradients, scratch, stream)
             : Gradient<uint16_t>(shape, x, dy, weight, saved, gradients, scratch, stream);
}

uint64_t RowSumsScratch(uint32_t rows, uint32_t channels) {
  return uint64_t{ChunksOf(rows)} * channels * sizeof(float);
}

absl::Status RowSums(Storage storage, uint32_t rows, uint32_t channels, const void* dy,
                     bool accumulate, float* gradient, float* scratch, NativeStream stream) {
  if (rows == 0 || channels == 0) return absl::OkStatus();
  const absl::Status status = storage == Storage::kFp32
                                  ? Sums<float>(rows, channels, dy, scratch, stream)
                                  : Sums<uint16_t>(rows, channels, dy, scratch, stream);
  if (!status.ok()) return status;
  return JoinRowSums(1, ChunksOf(rows), channels, scratch, accumulate, gradient, 0, stream);
}

absl::Status JoinRowSums(uint32_t sets, uint32_t chunks, uint32_t channels, const float* partial,
                         bool accumulate, float* to, uint64_t stride, NativeStream stream) {
  return Launch("JoinRowSums", JoinRowSumsKernel, GridOf(uint64_t{sets} * channels), stream, sets,
                chunks, channels, Pointer<const float>(partial), accumulate, Pointer<float>(to),
                stride);
}

}  // namespace FORESHARD_CUDA_NAMESPACE
