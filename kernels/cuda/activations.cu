// Memory is the limit of all of these: each element is read and written once, by neighbouring
// threads at neighbouring addresses; sums and changes of type, which are the most, 16 bytes at once.
#include "kernels/cuda/activations.h"

#include "kernels/cuda/packs.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

// max(0, x) that keeps what is no number.
__device__ __forceinline__ float Positive(float x) { return x < 0 ? 0.0f : x; }

template <typename T>
__global__ void __launch_bounds__(kElementThreads)
    SumKernel(uint64_t n, Pointer<const T> a, Pointer<const T> b, Pointer<T> out, bool relu) {
  const bool aligned = PacksAligned<T>(n, a, b, out);
  for (uint64_t q = FirstElement(); q < PacksOf<T>(n); q += ElementStep()) {
    Pack<T> sum = LoadPack<T>(a, q, n, aligned);
    const Pack<T> other = LoadPack<T>(b, q, n, aligned);
#pragma unroll
    for (uint32_t k = 0; k < Pack<T>::kSize; ++k) {
      sum.x[k] = sum.x[k] + other.x[k];
      if (relu) sum.x[k] = Positive(sum.x[k]);
    }
    StorePack<T>(out, q, n, aligned, sum);
  }
}

template <typename T>
__global__ void __launch_bounds__(kElementThreads)
    ReluKernel(uint64_t n, Pointer<const T> x, Pointer<T> y) {
  for (uint64_t i = FirstElement(); i < n; i += ElementStep()) {
    y[i] = Stored<T>::Of(Positive(ValueOf(static_cast<T>(x[i]))));
  }
}

template <typename T>
__global__ void __launch_bounds__(kElementThreads)
    ReluGradientKernel(uint64_t n, Pointer<const T> y, Pointer<const T> dy, Pointer<T> dx) {
  for (uint64_t i = FirstElement(); i < n; i += ElementStep()) {
    const T gradient = dy[i];
    dx[i] = ValueOf(static_cast<T>(y[i])) > 0 ? gradient : static_cast<T>(0);
  }
}

template <typename T>
__global__ void __launch_bounds__(kElementThreads)
    SubsampleKernel(SubsampleShape shape, uint64_t n, Pointer<const T> x, Pointer<T> y) {
  const uint32_t before = (shape.out_channels - shape.channels) / 2;
  for (uint64_t i = FirstElement(); i < n; i += ElementStep()) {
    const uint32_t c = static_cast<uint32_t>(i % shape.out_channels);
    const uint64_t position = i / shape.out_channels;
    const uint32_t w = static_cast<uint32_t>(position % shape.out_width);
    const uint32_t h = static_cast<uint32_t>(position / shape.out_width % shape.out_height);
    const uint64_t example = position / shape.out_width / shape.out_height;
    T value = 0;
    if (c >= before && c - before < shape.channels) {
      const uint64_t row = example * shape.height + uint64_t{h} * shape.stride;
      value = x[(row * shape.width + uint64_t{w} * shape.stride) * shape.channels + (c - before)];
    }
    y[i] = value;
  }
}

template <typename T>
__global__ void __launch_bounds__(kElementThreads)
    SubsampleGradientKernel(SubsampleShape shape, uint64_t n, Pointer<const T> dy, Pointer<T> dx) {
  const uint32_t before = (shape.out_channels - shape.channels) / 2;
  for (uint64_t i = FirstElement(); i < n; i += ElementStep()) {
    const uint32_t c = static_cast<uint32_t>(i % shape.channels);
    const uint64_t position = i / shape.channels;
    const uint32_t w = static_cast<uint32_t>(position % shape.width);
    const uint32_t h = static_cast<uint32_t>(position / shape.width % shape.height);
    const uint64_t example = position / shape.width / shape.height;
    T value = 0;
    if (h % shape.stride == 0 && w % shape.stride == 0) {
      const uint64_t row = example * shape.out_height + h / shape.stride;
      value = dy[(row * shape.out_width + w / shape.stride) * shape.out_channels + before + c];
    }
    dx[i] = value;
  }
}

template <typename T>
__global__ void __launch_bounds__(kElementThreads)
    AddBiasKernel(uint64_t n, uint32_t channels, Pointer<const float> bias, bool relu,
                  Pointer<T> y) {
  for (uint64_t i = FirstElement(); i < n; i += ElementStep()) {
    const float sum = ValueOf(static_cast<T>(y[i])) + static_cast<float>(bias[i % channels]);
    y[i] = Stored<T>::Of(relu ? Positive(sum) : sum);
  }
}

constexpr uint32_t kBiasColumns = kWarpSize;
constexpr uint32_t kBiasRows = kElementThreads / kBiasColumns;

// One thread block for 32 channels; each of its warps adds every eighth row.
template <typename T>
__global__ void __launch_bounds__(kElementThreads)
    BiasGradientKernel(uint64_t rows, uint32_t channels, Pointer<const T> dy, bool accumulate,
                       Pointer<float> gradient) {
  FORESHARD_SHARED(float, sums, kElementThreads);
  const uint32_t column = threadIdx.x % kBiasColumns;
  const uint32_t first = threadIdx.x / kBiasColumns;
  const uint32_t channel = blockIdx.x * kBiasColumns + column;
  float sum = 0;
  if (channel < channels) {
    for (uint64_t row = first; row < rows; row += kBiasRows) {
      sum = sum + ValueOf(static_cast<T>(dy[row * channels + channel]));
    }
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (first != 0 || channel >= channels) return;
  for (uint32_t other = 1; other < kBiasRows; ++other) {
    sum = sum + static_cast<float>(sums[other * kBiasColumns + column]);
  }
  gradient[channel] = accumulate ? static_cast<float>(gradient[channel]) + sum : sum;
}

template <typename T>
__global__ void __launch_bounds__(kElementThreads)
    StoreAsKernel(uint64_t n, Pointer<const float> from, Pointer<T> to) {
  constexpr uint32_t kSize = Pack<T>::kSize, kFours = kSize / Pack<float>::kSize;
  const bool aligned = PacksAligned<T>(n, from, to);
  for (uint64_t q = FirstElement(); q < PacksOf<T>(n); q += ElementStep()) {
    Pack<T> pack;
#pragma unroll
    for (uint32_t part = 0; part < kFours; ++part) {
      const Pack<float> four = LoadPack<float>(from, q * kFours + part, n, aligned);
#pragma unroll
      for (uint32_t k = 0; k < Pack<float>::kSize; ++k) {
        pack.x[part * Pack<float>::kSize + k] = four.x[k];
      }
    }
    StorePack<T>(to, q, n, aligned, pack);
  }
}

template <typename T>
__global__ void __launch_bounds__(kElementThreads)
    LoadFromKernel(uint64_t n, Pointer<const T> from, bool accumulate, Pointer<float> to) {
  for (uint64_t i = FirstElement(); i < n; i += ElementStep()) {
    const float value = ValueOf(static_cast<T>(from[i]));
    to[i] = accumulate ? static_cast<float>(to[i]) + value : value;
  }
}

__global__ void __launch_bounds__(kElementThreads)
    StatisticsKernel(uint32_t channels, bool one_value, Pointer<const float> mean,
                     Pointer<const float> variance, Pointer<const StepScalars> scalars,
                     bool accumulate, Pointer<float> to_mean, Pointer<float> to_variance) {
  const StepScalars step = *scalars;
  for (uint64_t c = FirstElement(); c < channels; c += ElementStep()) {
    const float m = step.weight * static_cast<float>(mean[c]);
    const float v = one_value ? 0.0f : step.weight * static_cast<float>(variance[c]);
    to_mean[c] = accumulate ? static_cast<float>(to_mean[c]) + m : m;
    to_variance[c] = accumulate ? static_cast<float>(to_variance[c]) + v : v;
  }
}

template <typename T>
Pointer<const T> In(const void* data) {
  return Pointer<const T>(static_cast<const T*>(data));
}
template <typename T>
Pointer<T> Out(void* data) {
  return Pointer<T>(static_cast<T*>(data));
}

}  // namespace

absl::Status Sum(Storage storage, uint64_t n, const void* a, const void* b, void* out, bool relu,
                 NativeStream stream) {
  if (n == 0) return absl::OkStatus();
  if (storage == Storage::kFp32) {
    return Launch("Sum", SumKernel<float>, GridOfPacks<float>(n), stream, n, In<float>(a), In<float>(b),
                  Out<float>(out), relu);
  }
  return Launch("SumBf16", SumKernel<uint16_t>, GridOfPacks<uint16_t>(n), stream, n, In<uint16_t>(a),
                In<uint16_t>(b), Out<uint16_t>(out), relu);
}

absl::Status ApplyRelu(Storage storage, uint64_t n, const void* x, void* y, NativeStream stream) {
  if (n == 0) return absl::OkStatus();
  if (storage == Storage::kFp32) {
    return Launch("Relu", ReluKernel<float>, GridOf(n), stream, n, In<float>(x), Out<float>(y));
  }
  return Launch("ReluBf16", ReluKernel<uint16_t>, GridOf(n), stream, n, In<uint16_t>(x),
                Out<uint16_t>(y));
}

absl::Status ReluGradient(Storage storage, uint64_t n, const void* y, const void* dy, void* dx,
                          NativeStream stream) {
  if (n == 0) return absl::OkStatus();
  if (storage == Storage::kFp32) {
    return Launch("ReluGradient", ReluGradientKernel<float>, GridOf(n), stream, n, In<float>(y),
                  In<float>(dy), Out<float>(dx));
  }
  return Launch("ReluGradientBf16", ReluGradientKernel<uint16_t>, GridOf(n), stream, n,
                In<uint16_t>(y), In<uint16_t>(dy), Out<uint16_t>(dx));
}

absl::Status SubsampleForward(Storage storage, const SubsampleShape& shape, const void* x, void* y,
                              NativeStream stream) {
  const uint64_t n =
      uint64_t{shape.examples} * shape.out_height * shape.out_width * shape.out_channels;
  if (n == 0) return absl::OkStatus();
  if (storage == Storage::kFp32) {
    return Launch("Subsample", SubsampleKernel<float>, GridOf(n), stream, shape, n, In<float>(x),
                  Out<float>(y));
  }
  return Launch("SubsampleBf16", SubsampleKernel<uint16_t>, GridOf(n), stream, shape, n,
                In<uint16_t>(x), Out<uint16_t>(y));
}

absl::Status SubsampleGradient(Storage storage, const SubsampleShape& shape, const void* dy,
                               void* dx, NativeStream stream) {
  const uint64_t n = uint64_t{shape.examples} * shape.height * shape.width * shape.channels;
  if (n == 0) return absl::OkStatus();
  if (storage == Storage::kFp32) {
    return Launch("SubsampleGradient", SubsampleGradientKernel<float>, GridOf(n), stream, shape, n,
                  In<float>(dy), Out<float>(dx));
  }
  return Launch("SubsampleGradientBf16", SubsampleGradientKernel<uint16_t>, GridOf(n), stream,
                shape, n, In<uint16_t>(dy), Out<uint16_t>(dx));
}

absl::Status AddBias(Storage storage, uint64_t rows, uint32_t channels, const float* bias,
                     bool relu, void* y, NativeStream stream) {
  const uint64_t n = rows * channels;
  if (n == 0) return absl::OkStatus();
  if (storage == Storage::kFp32) {
    return Launch("AddBias", AddBiasKernel<float>, GridOf(n), stream, n, channels, In<float>(bias),
                  relu, Out<float>(y));
  }
  return Launch("AddBiasBf16", AddBiasKernel<uint16_t>, GridOf(n), stream, n, channels,
                In<float>(bias), relu, Out<uint16_t>(y));
}

absl::Status BiasGradient(Storage storage, uint64_t rows, uint32_t channels, const void* dy,
                          bool accumulate, float* gradient, NativeStream stream) {
  if (channels == 0) return absl::OkStatus();
  const Grid grid = {{(channels + kBiasColumns - 1) / kBiasColumns}, {kElementThreads}};
  if (storage == Storage::kFp32) {
    return Launch("BiasGradient", BiasGradientKernel<float>, grid, stream, rows, channels,
                  In<float>(dy), accumulate, Out<float>(gradient));
  }
  return Launch("BiasGradientBf16", BiasGradientKernel<uint16_t>, grid, stream, rows, channels,
                In<uint16_t>(dy), accumulate, Out<float>(gradient));
}

absl::Status StoreAs(Storage storage, uint64_t n, const float* from, void* to,
                     NativeStream stream) {
  if (n == 0) return absl::OkStatus();
  if (storage == Storage::kFp32) {
    return Launch("StoreAs", StoreAsKernel<float>, GridOfPacks<float>(n), stream, n, In<float>(from),
                  Out<float>(to));
  }
  return Launch("StoreAsBf16", StoreAsKernel<uint16_t>, GridOfPacks<uint16_t>(n), stream, n, In<float>(from),
                Out<uint16_t>(to));
}

absl::Status LoadFrom(Storage storage, uint64_t n, const void* from, bool accumulate, float* to,
                      NativeStream stream) {
  if (n == 0) return absl::OkStatus();
  if (storage == Storage::kFp32) {
    return Launch("LoadFrom", LoadFromKernel<float>, GridOf(n), stream, n, In<float>(from),
                  accumulate, Out<float>(to));
  }
  return Launch("LoadFromBf16", LoadFromKernel<uint16_t>, GridOf(n), stream, n, In<uint16_t>(from),
                accumulate, Out<float>(to));
}

absl::Status WriteStatistics(const StatisticsArguments& arguments, NativeStream stream) {
  if (arguments.channels == 0) return absl::OkStatus();
  return Launch("WriteStatistics", StatisticsKernel, GridOf(arguments.channels), stream,
                arguments.channels, arguments.values <= 1, In<float>(arguments.mean),
                In<float>(arguments.variance), In<StepScalars>(arguments.scalars),
                arguments.accumulate, Out<float>(arguments.to_mean),
                Out<float>(arguments.to_variance));
}

}  // namespace FORESHARD_CUDA_NAMESPACE
