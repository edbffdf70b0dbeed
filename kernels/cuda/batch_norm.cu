// Each pass reads whole rows, a thread some channels of every few rows: 16 bytes at once where a row is words of
// that, so that what belongs to its channels stays in registers. Sums go from threads to a thread block to all
// of them in three steps: threads add their rows of a chunk, the block's threads join in shared memory, and a
// second kernel adds the chunks, in fp64.
#include "kernels/cuda/batch_norm.h"

#include <algorithm>
#include <initializer_list>
#include <type_traits>

#include "kernels/cuda/packs.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

// As many thread blocks as a large GPU has at work at a time.
constexpr uint32_t kMostBlocks = 1024;
// Channels of a block of the second kernel; the rest of its threads share the chunks.
constexpr uint32_t kJoinColumns = 8;

// How threads share [rows, channels]: `width` neighbours have the groups of channels of a row, or a part of
// them, blocks x columns all of them; the ways of a block take turns at the rows of its chunk.
struct Tiles {
  uint64_t rows = 0, chunk_rows = 0;
  uint32_t channels = 0;
  uint32_t width = 0, columns = 0, chunks = 0;

  Grid grid() const { return {{chunks * columns}, {kElementThreads}}; }
};

Tiles TilesOf(const NormShape& shape, uint32_t group) {
  Tiles tiles = {.rows = shape.rows, .channels = shape.channels};
  const uint32_t groups = shape.channels / group;
  tiles.width = 1;
  while (tiles.width < groups && tiles.width < kWarpSize) tiles.width *= 2;
  tiles.columns = (groups + tiles.width - 1) / tiles.width;
  const uint64_t ways = kElementThreads / tiles.width;
  const uint64_t turns = (shape.rows + ways - 1) / ways;
  const uint64_t most = std::max<uint64_t>(1, kMostBlocks / tiles.columns);
  // A few turns at least, for the joins to be the smaller part.
  const uint64_t chunk_turns = std::max<uint64_t>((turns + most - 1) / most, std::min<uint64_t>(turns, 4));
  tiles.chunk_rows = chunk_turns * ways;
  tiles.chunks = static_cast<uint32_t>((shape.rows + tiles.chunk_rows - 1) / tiles.chunk_rows);
  return tiles;
}

// A thread's part of it.
struct Part {
  __device__ explicit Part(const Tiles& tiles, uint32_t group)
      : way(threadIdx.x / tiles.width),
        ways(kElementThreads / tiles.width),
        chunk(blockIdx.x / tiles.columns),
        channel((blockIdx.x % tiles.columns * tiles.width + threadIdx.x % tiles.width) * group),
        any(channel < tiles.channels),
        begin(chunk * tiles.chunk_rows + way),
        end(any ? (chunk + 1) * tiles.chunk_rows : 0) {
    if (end > tiles.rows) end = tiles.rows;
  }

  uint32_t way, ways;
  uint64_t chunk;
  uint32_t channel;  // the first of its group
  bool any;
  uint64_t begin, end;  // rows begin, begin + ways, ...
};

template <uint32_t kGroup>
struct Group {
  float x[kGroup];
};

template <typename T, uint32_t kGroup>
__device__ __forceinline__ Group<kGroup> LoadGroup(const Pointer<const T>& from) {
  Group<kGroup> group;
  if constexpr (kGroup == 1) {
    group.x[0] = ValueOf(static_cast<T>(from[0]));
  } else {
    static_assert(kGroup == Pack<T>::kSize);
    const Pack<T> pack = LoadPack<T>(from, 0, kGroup, /*aligned=*/true);
#pragma unroll
    for (uint32_t k = 0; k < kGroup; ++k) group.x[k] = pack.x[k];
  }
  return group;
}

template <typename T, uint32_t kGroup>
__device__ __forceinline__ void StoreGroup(const Pointer<T>& to, const Group<kGroup>& group) {
  if constexpr (kGroup == 1) {
    to[0] = Stored<T>::Of(group.x[0]);
  } else {
    Pack<T> pack;
#pragma unroll
    for (uint32_t k = 0; k < kGroup; ++k) pack.x[k] = group.x[k];
    StorePack<T>(to, 0, kGroup, /*aligned=*/true, pack);
  }
}

// What the channels of a group have.
template <uint32_t kGroup>
struct Channels {
  __device__ __forceinline__ Channels(const Part& part, const Pointer<const float>& weights,
                                      const Pointer<const float>& biases, const Pointer<const float>& means,
                                      const Pointer<const float>& inverses) {
#pragma unroll
    for (uint32_t k = 0; k < kGroup; ++k) {
      weight[k] = part.any ? static_cast<float>(weights[part.channel + k]) : 0.0f;
      bias[k] = part.any ? static_cast<float>(biases[part.channel + k]) : 0.0f;
      mean[k] = part.any ? static_cast<float>(means[part.channel + k]) : 0.0f;
      inverse[k] = part.any ? static_cast<float>(inverses[part.channel + k]) : 0.0f;
    }
  }
  __device__ __forceinline__ float Z(uint32_t k, float x) const { return (x - mean[k]) * inverse[k]; }
  __device__ __forceinline__ float Y(uint32_t k, float z) const { return weight[k] * z + bias[k]; }

  float weight[kGroup], bias[kGroup], mean[kGroup], inverse[kGroup];
};

// Adds what the block's ways have to the first's, in one order.
template <uint32_t kGroup>
__device__ __forceinline__ void JoinWays(const Part& part, uint32_t width, const Pointer<float>& shared,
                                         float (&sums)[kGroup]) {
#pragma unroll
  for (uint32_t k = 0; k < kGroup; ++k) shared[k * kElementThreads + threadIdx.x] = sums[k];
  __syncthreads();
  for (uint32_t half = part.ways / 2; half > 0; half /= 2) {
    if (part.way < half) {
#pragma unroll
      for (uint32_t k = 0; k < kGroup; ++k) {
        const uint32_t at = k * kElementThreads + threadIdx.x;
        sums[k] = sums[k] + static_cast<float>(shared[at + half * width]);
        shared[at] = sums[k];
      }
    }
    __syncthreads();
  }
}

// What the block's threads have of two sums, to its chunk's place in partial [2, chunks, channels].
template <uint32_t kGroup>
__device__ __forceinline__ void KeepSums(const Part& part, const Tiles& tiles, const Pointer<float>& shared,
                                         float (&first)[kGroup], float (&second)[kGroup],
                                         const Pointer<float>& partial) {
  JoinWays<kGroup>(part, tiles.width, shared, first);
  JoinWays<kGroup>(part, tiles.width, shared, second);
  if (part.way != 0 || !part.any) return;
  const uint64_t to = part.chunk * tiles.channels + part.channel;
  const uint64_t set = uint64_t{tiles.chunks} * tiles.channels;
#pragma unroll
  for (uint32_t k = 0; k < kGroup; ++k) {
    partial[to + k] = first[k];
    partial[set + to + k] = second[k];
  }
}

// Of each chunk the sums of x - x0 and of its square, x0 being the first row.
template <typename T, uint32_t kGroup>
__global__ void __launch_bounds__(kElementThreads)
    MomentsKernel(Tiles tiles, Pointer<const T> x, Pointer<float> partial) {
  FORESHARD_SHARED(float, shared, kElementThreads * kGroup);
  const Part part(tiles, kGroup);
  float sums[kGroup] = {}, squares[kGroup] = {};
  Group<kGroup> first = {};
  if (part.any) first = LoadGroup<T, kGroup>(x + part.channel);
#pragma unroll 4
  for (uint64_t row = part.begin; row < part.end; row += part.ways) {
    const Group<kGroup> values = LoadGroup<T, kGroup>(x + (row * tiles.channels + part.channel));
#pragma unroll
    for (uint32_t k = 0; k < kGroup; ++k) {
      const float difference = values.x[k] - first.x[k];
      sums[k] = sums[k] + difference;
      squares[k] = squares[k] + difference * difference;
    }
  }
  KeepSums<kGroup>(part, tiles, shared, sums, squares, partial);
}

// The sums of both sets over the chunks, given to the first way's threads.
struct Joined {
  double first = 0, second = 0;
  uint32_t channel = 0;
  bool mine = false;
};
__device__ __forceinline__ Joined JoinChunks(const Tiles& tiles, const Pointer<const float>& partial,
                                             const Pointer<double>& firsts, const Pointer<double>& seconds) {
  constexpr uint32_t kWays = kElementThreads / kJoinColumns;
  const uint32_t way = threadIdx.x / kJoinColumns;
  Joined joined;
  joined.channel = blockIdx.x * kJoinColumns + threadIdx.x % kJoinColumns;
  const bool any = joined.channel < tiles.channels;
  const uint64_t set = uint64_t{tiles.chunks} * tiles.channels;
  if (any) {
#pragma unroll 4
    for (uint64_t chunk = way; chunk < tiles.chunks; chunk += kWays) {
      const uint64_t at = chunk * tiles.channels + joined.channel;
      joined.first = joined.first + static_cast<double>(static_cast<float>(partial[at]));
      joined.second = joined.second + static_cast<double>(static_cast<float>(partial[set + at]));
    }
  }
  firsts[threadIdx.x] = joined.first;
  seconds[threadIdx.x] = joined.second;
  __syncthreads();
  for (uint32_t half = kWays / 2; half > 0; half /= 2) {
    if (way < half) {
      const uint32_t other = threadIdx.x + half * kJoinColumns;
      joined.first = joined.first + static_cast<double>(firsts[other]);
      joined.second = joined.second + static_cast<double>(seconds[other]);
      firsts[threadIdx.x] = joined.first;
      seconds[threadIdx.x] = joined.second;
    }
    __syncthreads();
  }
  joined.mine = any && way == 0;
  return joined;
}
Grid JoinGrid(uint32_t channels) { return {{(channels + kJoinColumns - 1) / kJoinColumns}, {kElementThreads}}; }

template <typename T>
__global__ void __launch_bounds__(kElementThreads)
    JoinMomentsKernel(Tiles tiles, float epsilon, Pointer<const T> x, Pointer<const float> partial,
                      Pointer<float> mean, Pointer<float> variance, Pointer<float> inverse) {
  FORESHARD_SHARED(double, firsts, kElementThreads);
  FORESHARD_SHARED(double, seconds, kElementThreads);
  const Joined joined = JoinChunks(tiles, partial, firsts, seconds);
  if (!joined.mine) return;
  const double rows = static_cast<double>(tiles.rows);
  const double difference = joined.first / rows;
  double squares = joined.second - difference * joined.first;
  if (squares < 0) squares = 0;  // keeps what is no number
  const double first = static_cast<double>(ValueOf(static_cast<T>(x[joined.channel])));
  mean[joined.channel] = static_cast<float>(first + difference);
  variance[joined.channel] = static_cast<float>(tiles.rows > 1 ? squares / (rows - 1.0) : 0.0 * squares);
  inverse[joined.channel] = static_cast<float>(1.0 / sqrt(squares / rows + static_cast<double>(epsilon)));
}

// y of each row. `epsilon`: `inverse` is a variance, and this is what it lacks.
template <typename T, uint32_t kGroup, bool kVariance>
__global__ void __launch_bounds__(kElementThreads)
    NormKernel(Tiles tiles, float epsilon, bool relu, Pointer<const T> x, Pointer<const float> weight,
               Pointer<const float> bias, Pointer<const float> mean, Pointer<const float> inverse, Pointer<T> y) {
  const Part part(tiles, kGroup);
  Channels<kGroup> channels(part, weight, bias, mean, inverse);
  if (kVariance) {
#pragma unroll
    for (uint32_t k = 0; k < kGroup; ++k) channels.inverse[k] = 1.0f / sqrtf(channels.inverse[k] + epsilon);
  }
#pragma unroll 4
  for (uint64_t row = part.begin; row < part.end; row += part.ways) {
    const uint64_t at = row * tiles.channels + part.channel;
    Group<kGroup> values = LoadGroup<T, kGroup>(x + at);
#pragma unroll
    for (uint32_t k = 0; k < kGroup; ++k) {
      const float made = channels.Y(k, channels.Z(k, values.x[k]));
      values.x[k] = relu && made < 0 ? 0.0f : made;
    }
    StoreGroup<T, kGroup>(y + at, values);
  }
}

// Of each chunk the sums of d and of d * z, d being dy where it counts.
template <typename T, uint32_t kGroup>
__global__ void __launch_bounds__(kElementThreads)
    GradientSumsKernel(Tiles tiles, bool relu, Pointer<const T> x, Pointer<const T> dy, Pointer<const float> weight,
                       Pointer<const float> bias, Pointer<const float> mean, Pointer<const float> inverse,
                       Pointer<float> partial) {
  FORESHARD_SHARED(float, shared, kElementThreads * kGroup);
  const Part part(tiles, kGroup);
  const Channels<kGroup> channels(part, weight, bias, mean, inverse);
  float sums[kGroup] = {}, products[kGroup] = {};
#pragma unroll 2
  for (uint64_t row = part.begin; row < part.end; row += part.ways) {
    const uint64_t at = row * tiles.channels + part.channel;
    const Group<kGroup> values = LoadGroup<T, kGroup>(x + at);
    const Group<kGroup> gradients = LoadGroup<T, kGroup>(dy + at);
#pragma unroll
    for (uint32_t k = 0; k < kGroup; ++k) {
      const float z = channels.Z(k, values.x[k]);
      const float d = !relu || channels.Y(k, z) > 0 ? gradients.x[k] : 0.0f;
      sums[k] = sums[k] + d;
      products[k] = products[k] + d * z;
    }
  }
  KeepSums<kGroup>(part, tiles, shared, sums, products, partial);
}

// Gradients of bias and weight; means [2, channels] of d and d * z over the rows.
__global__ void __launch_bounds__(kElementThreads)
    JoinGradientSumsKernel(Tiles tiles, Pointer<const float> partial, bool accumulate, Pointer<float> weight_gradient,
                           Pointer<float> bias_gradient, Pointer<float> means) {
  FORESHARD_SHARED(double, firsts, kElementThreads);
  FORESHARD_SHARED(double, seconds, kElementThreads);
  const Joined joined = JoinChunks(tiles, partial, firsts, seconds);
  if (!joined.mine) return;
  const uint32_t c = joined.channel;
  const float sum = static_cast<float>(joined.first), product = static_cast<float>(joined.second);
  bias_gradient[c] = accumulate ? static_cast<float>(bias_gradient[c]) + sum : sum;
  weight_gradient[c] = accumulate ? static_cast<float>(weight_gradient[c]) + product : product;
  const double rows = static_cast<double>(tiles.rows);
  means[c] = static_cast<float>(joined.first / rows);
  means[tiles.channels + c] = static_cast<float>(joined.second / rows);
}

// dx = weight * inverse * (d - mean of d - z * mean of d * z).
template <typename T, uint32_t kGroup>
__global__ void __launch_bounds__(kElementThreads)
    InputGradientKernel(Tiles tiles, bool relu, Pointer<const T> x, Pointer<const T> dy, Pointer<const float> weight,
                        Pointer<const float> bias, Pointer<const float> mean, Pointer<const float> inverse,
                        Pointer<const float> means, Pointer<T> dx) {
  const Part part(tiles, kGroup);
  const Channels<kGroup> channels(part, weight, bias, mean, inverse);
  float sum[kGroup], product[kGroup];
#pragma unroll
  for (uint32_t k = 0; k < kGroup; ++k) {
    sum[k] = part.any ? static_cast<float>(means[part.channel + k]) : 0.0f;
    product[k] = part.any ? static_cast<float>(means[tiles.channels + part.channel + k]) : 0.0f;
  }
#pragma unroll 2
  for (uint64_t row = part.begin; row < part.end; row += part.ways) {
    const uint64_t at = row * tiles.channels + part.channel;
    const Group<kGroup> values = LoadGroup<T, kGroup>(x + at);
    Group<kGroup> gradients = LoadGroup<T, kGroup>(dy + at);
#pragma unroll
    for (uint32_t k = 0; k < kGroup; ++k) {
      const float z = channels.Z(k, values.x[k]);
      const float d = !relu || channels.Y(k, z) > 0 ? gradients.x[k] : 0.0f;
      gradients.x[k] = channels.weight[k] * channels.inverse[k] * (d - sum[k] - z * product[k]);
    }
    StoreGroup<T, kGroup>(dx + at, gradients);
  }
}

template <typename T>
bool MovesPacks(const NormShape& shape, std::initializer_list<const void*> arrays) {
  return shape.channels % Pack<T>::kSize == 0 && std::all_of(arrays.begin(), arrays.end(), [](const void* array) {
           return reinterpret_cast<uintptr_t>(array) % sizeof(float4) == 0;
         });
}

template <typename T, uint32_t kGroup>
absl::Status Train(const NormShape& shape, const void* x, const NormTraining& norm, bool relu, void* y, float* scratch,
                   NativeStream stream) {
  const Tiles tiles = TilesOf(shape, kGroup);
  const auto* const from = static_cast<const T*>(x);
  const absl::Status summed =
      Launch("BatchNormMoments", MomentsKernel<T, kGroup>, tiles.grid(), stream, tiles, from, scratch);
  if (!summed.ok()) return summed;
  const absl::Status joined = Launch("BatchNormJoinMoments", JoinMomentsKernel<T>, JoinGrid(shape.channels), stream,
                                     tiles, shape.epsilon, from, scratch, norm.mean, norm.variance, norm.saved_inverse);
  if (!joined.ok()) return joined;
  return Launch("BatchNorm", NormKernel<T, kGroup, false>, tiles.grid(), stream, tiles, 0.0f, relu, from, norm.weight,
                norm.bias, norm.mean, norm.saved_inverse, static_cast<T*>(y));
}

template <typename T, uint32_t kGroup>
absl::Status Infer(const NormShape& shape, const void* x, const float* weight, const float* bias, const float* mean,
                   const float* variance, bool relu, void* y, NativeStream stream) {
  const Tiles tiles = TilesOf(shape, kGroup);
  return Launch("BatchNormInference", NormKernel<T, kGroup, true>, tiles.grid(), stream, tiles, shape.epsilon, relu,
                static_cast<const T*>(x), weight, bias, mean, variance, static_cast<T*>(y));
}

template <typename T, uint32_t kGroup>
absl::Status Backward(const NormShape& shape, const void* x, const void* dy, const NormTraining& norm, bool relu,
                      bool accumulate, void* dx, float* weight_gradient, float* bias_gradient, float* scratch,
                      NativeStream stream) {
  const Tiles tiles = TilesOf(shape, kGroup);
  const auto* const from = static_cast<const T*>(x);
  const auto* const gradient = static_cast<const T*>(dy);
  float* const means = scratch + 2 * uint64_t{tiles.chunks} * shape.channels;
  const absl::Status summed =
      Launch("BatchNormGradientSums", GradientSumsKernel<T, kGroup>, tiles.grid(), stream, tiles, relu, from, gradient,
             norm.weight, norm.bias, norm.mean, norm.saved_inverse, scratch);
  if (!summed.ok()) return summed;
  const absl::Status joined = Launch("BatchNormJoinGradientSums", JoinGradientSumsKernel, JoinGrid(shape.channels),
                                     stream, tiles, scratch, accumulate, weight_gradient, bias_gradient, means);
  if (!joined.ok() || dx == nullptr) return joined;
  return Launch("BatchNormInputGradient", InputGradientKernel<T, kGroup>, tiles.grid(), stream, tiles, relu, from,
                gradient, norm.weight, norm.bias, norm.mean, norm.saved_inverse, means, static_cast<T*>(dx));
}

// `call`(an element, its group): of the storage, in packs where that can be.
template <typename Call>
absl::Status Choose(Storage storage, const NormShape& shape, std::initializer_list<const void*> arrays,
                    const Call& call) {
  using One = std::integral_constant<uint32_t, 1>;
  if (storage == Storage::kFp32) {
    using Packs = std::integral_constant<uint32_t, Pack<float>::kSize>;
    return MovesPacks<float>(shape, arrays) ? call(float{}, Packs{}) : call(float{}, One{});
  }
  using Packs = std::integral_constant<uint32_t, Pack<uint16_t>::kSize>;
  return MovesPacks<uint16_t>(shape, arrays) ? call(uint16_t{}, Packs{}) : call(uint16_t{}, One{});
}

}  // namespace

uint64_t NormScratch(const NormShape& shape) {
  // Whichever group it will be.
  uint64_t chunks = 0;
  for (const uint32_t group : {1u, Pack<float>::kSize, Pack<uint16_t>::kSize}) {
    if (shape.channels % group == 0) chunks = std::max<uint64_t>(chunks, TilesOf(shape, group).chunks);
  }
  return 2 * (chunks + 1) * shape.channels * sizeof(float);
}

absl::Status NormForwardTraining(Storage storage, const NormShape& shape, const void* x, const NormTraining& norm,
                                 bool relu, void* y, float* scratch, NativeStream stream) {
  return Choose(storage, shape, {x, y}, [&](auto element, auto group) {
    return Train<decltype(element), decltype(group)::value>(shape, x, norm, relu, y, scratch, stream);
  });
}

absl::Status NormForwardInference(Storage storage, const NormShape& shape, const void* x, const float* weight,
                                  const float* bias, const float* mean, const float* variance, bool relu, void* y,
                                  NativeStream stream) {
  return Choose(storage, shape, {x, y}, [&](auto element, auto group) {
    return Infer<decltype(element), decltype(group)::value>(shape, x, weight, bias, mean, variance, relu, y, stream);
  });
}

absl::Status NormBackward(Storage storage, const NormShape& shape, const void* x, const void* dy,
                          const NormTraining& norm, bool relu, bool accumulate, void* dx, float* weight_gradient,
                          float* bias_gradient, float* scratch, NativeStream stream) {
  return Choose(storage, shape, {x, dy, dx}, [&](auto element, auto group) {
    return Backward<decltype(element), decltype(group)::value>(shape, x, dy, norm, relu, accumulate, dx,
                                                               weight_gradient, bias_gradient, scratch, stream);
  });
}

}  // namespace FORESHARD_CUDA_NAMESPACE
