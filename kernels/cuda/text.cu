// Embeddings, dropout, curves and copies of positions. Memory is the limit of all of these.
#include "kernels/cuda/text.h"

#include "kernels/cuda/dropping.h"
#include "kernels/cuda/packs.h"
#include "kernels/cuda/row_sums.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

template <typename T>
Pointer<const T> In(const void* data) {
  return Pointer<const T>(static_cast<const T*>(data));
}
template <typename T>
Pointer<T> Out(void* data) {
  return Pointer<T>(static_cast<T*>(data));
}

constexpr uint32_t kMostBlocks = 1 << 16;

// ---- Embedding ----

template <typename T>
__global__ void __launch_bounds__(kElementThreads)
    EmbeddingKernel(uint64_t rows, uint32_t positions, uint32_t channels,
                    Pointer<const int32_t> token, Pointer<const int32_t> segment,
                    Pointer<const float> token_table, Pointer<const float> position_table,
                    Pointer<const float> segment_table, Pointer<T> y) {
  for (uint64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const Pointer<const float> a =
        token_table + uint64_t{static_cast<uint32_t>(static_cast<int32_t>(token[row]))} * channels;
    const Pointer<const float> b = position_table + row % positions * channels;
    const Pointer<const float> c =
        segment_table +
        uint64_t{static_cast<uint32_t>(static_cast<int32_t>(segment[row]))} * channels;
    for (uint32_t i = threadIdx.x; i < channels; i += kElementThreads) {
      const float sum = static_cast<float>(a[i]) + static_cast<float>(c[i]);
      y[row * channels + i] = Stored<T>::Of(sum + static_cast<float>(b[i]));
    }
  }
}

// One thread block for a token of the batch. Its rows are added in the batch's order; where they
// are many, eight warps take every eighth, and their sums are added in order.
constexpr uint32_t kManyRows = 32;
template <typename T>
__global__ void __launch_bounds__(kElementThreads)
    TokenGradientKernel(uint32_t channels, Pointer<const int32_t> token,
                        Pointer<const uint32_t> order, Pointer<const uint32_t> starts,
                        Pointer<const T> dy, Pointer<float> gradient) {
  FORESHARD_SHARED(float, sums, kElementThreads);
  const uint32_t begin = starts[blockIdx.x], end = starts[blockIdx.x + 1];
  if (begin >= end) return;  // beyond the last token, for the whole block
  const uint32_t first = order[begin];
  const Pointer<float> to =
      gradient + uint64_t{static_cast<uint32_t>(static_cast<int32_t>(token[first]))} * channels;
  if (end - begin < kManyRows) {
    for (uint32_t c = threadIdx.x; c < channels; c += kElementThreads) {
      float sum = to[c];
#pragma unroll 4
      for (uint32_t i = begin; i < end; ++i) {
        const uint32_t row = order[i];
        sum = sum + ValueOf(static_cast<T>(dy[uint64_t{row} * channels + c]));
      }
      to[c] = sum;
    }
    return;
  }
  const uint32_t way = WarpOfThread(), lane = LaneOfThread();
  for (uint32_t group = 0; group < channels; group += kWarpSize) {
    const uint32_t c = group + lane;
    float sum = 0;
    if (c < channels) {
#pragma unroll 8
      for (uint32_t i = begin + way; i < end; i += kSumWays) {
        const uint32_t row = order[i];
        sum = sum + ValueOf(static_cast<T>(dy[uint64_t{row} * channels + c]));
      }
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (way == 0 && c < channels) {
      for (uint32_t other = 1; other < kSumWays; ++other) {
        sum = sum + static_cast<float>(sums[other * kWarpSize + lane]);
      }
      to[c] = static_cast<float>(to[c]) + sum;
    }
    __syncthreads();
  }
}

// Over the examples, of each position; rows beyond the sequence have no gradient.
template <typename T>
__global__ void __launch_bounds__(kElementThreads)
    PositionGradientKernel(uint32_t examples, uint64_t used, uint64_t all, Pointer<const T> dy,
                           bool accumulate, Pointer<float> gradient) {
  for (uint64_t i = FirstElement(); i < all; i += ElementStep()) {
    float sum = 0;
    if (i < used) {
#pragma unroll 4
      for (uint32_t e = 0; e < examples; ++e) {
        sum = sum + ValueOf(static_cast<T>(dy[e * used + i]));
      }
    }
    gradient[i] = accumulate ? static_cast<float>(gradient[i]) + sum : sum;
  }
}

// Of one segment, a chunk of rows and 32 columns.
template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    SegmentSumsKernel(uint32_t rows, uint32_t channels, uint32_t columns, uint32_t chunks,
                      Pointer<const int32_t> segment, Pointer<const T> dy,
                      Pointer<float> partial) {
  FORESHARD_SHARED(float, sums, kSumThreads);
  const uint32_t way = WarpOfThread(), lane = LaneOfThread();
  const uint32_t channel = blockIdx.x % columns * kWarpSize + lane;
  const uint32_t chunk = blockIdx.x / columns % chunks;
  const int32_t wanted = static_cast<int32_t>(blockIdx.x / columns / chunks);
  const uint32_t begin = chunk * kChunkRows;
  const uint32_t end = begin + kChunkRows < rows ? begin + kChunkRows : rows;
  float sum = 0;
  if (channel < channels) {
#pragma unroll 4
    for (uint32_t row = begin + way; row < end; row += kSumWays) {
      const int32_t found = segment[row];
      if (found == wanted) {
        sum = sum + ValueOf(static_cast<T>(dy[uint64_t{row} * channels + channel]));
      }
    }
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (way != 0 || channel >= channels) return;
  for (uint32_t other = 1; other < kSumWays; ++other) {
    sum = sum + static_cast<float>(sums[other * kWarpSize + lane]);
  }
  partial[(uint64_t{static_cast<uint32_t>(wanted)} * chunks + chunk) * channels + channel] = sum;
}

template <typename T>
absl::Status TableGradients(const EmbeddingArguments& a, const void* dy,
                                 const EmbeddingGradients& to, float* scratch,
                                 NativeStream stream) {
  const uint32_t rows = a.examples * a.positions, chunks = ChunksOf(rows);
  const uint32_t columns = SumColumns(a.channels);
  if (!to.accumulate && !to.token_written) {
    const absl::Status cleared =
        FillZero(to.token, uint64_t{a.tokens} * a.channels * sizeof(float), stream);
    if (!cleared.ok()) return cleared;
  }
  const absl::Status tokens = Launch(
      "TokenGradient", TokenGradientKernel<T>, Grid{{rows}, {kElementThreads}}, stream, a.channels,
      Pointer<const int32_t>(a.token), Pointer<const uint32_t>(a.order),
      Pointer<const uint32_t>(a.starts), In<T>(dy), Pointer<float>(to.token));
  if (!tokens.ok()) return tokens;
  const uint64_t used = uint64_t{a.positions} * a.channels;
  const uint64_t all = uint64_t{a.position_rows} * a.channels;
  const absl::Status positions =
      Launch("PositionGradient", PositionGradientKernel<T>, GridOf(all), stream, a.examples, used,
             all, In<T>(dy), to.accumulate, Pointer<float>(to.position));
  if (!positions.ok()) return positions;
  const absl::Status segments =
      Launch("SegmentSums", SegmentSumsKernel<T>, Grid{{columns * chunks * a.segments}, {kSumThreads}},
             stream, rows, a.channels, columns, chunks, Pointer<const int32_t>(a.segment), In<T>(dy),
             Pointer<float>(scratch));
  if (!segments.ok()) return segments;
  return JoinRowSums(a.segments, chunks, a.channels, scratch, to.accumulate, to.segment, a.channels,
                     stream);
}

// ---- Curves ----

__device__ __forceinline__ float NormalDistribution(float x) {
  return 0.5f + 0.5f * erff(x * 0.70710678118654752f);
}

template <Curve kCurve>
__device__ __forceinline__ float ValueAt(float x) {
  return kCurve == Curve::kGelu ? x * NormalDistribution(x) : tanhf(x);
}
template <Curve kCurve>
__device__ __forceinline__ float SlopeAt(float x) {
  if (kCurve == Curve::kGelu) {
    const float density = 0.39894228040143268f * expf(-0.5f * x * x);
    return NormalDistribution(x) + x * density;
  }
  const float y = tanhf(x);
  return 1.0f - y * y;
}

template <typename T, Curve kCurve>
__global__ void __launch_bounds__(kElementThreads)
    CurveKernel(uint64_t n, Pointer<const T> x, Pointer<T> y) {
  const bool aligned = PacksAligned<T>(n, x, y);
  for (uint64_t q = FirstElement(); q < PacksOf<T>(n); q += ElementStep()) {
    Pack<T> v = LoadPack<T>(x, q, n, aligned);
#pragma unroll
    for (uint32_t k = 0; k < Pack<T>::kSize; ++k) v.x[k] = ValueAt<kCurve>(v.x[k]);
    StorePack<T>(y, q, n, aligned, v);
  }
}

template <typename T, Curve kCurve>
__global__ void __launch_bounds__(kElementThreads)
    CurveGradientKernel(uint64_t n, Pointer<const T> x, Pointer<const T> dy, Pointer<T> dx) {
  const bool aligned = PacksAligned<T>(n, x, dy, dx);
  for (uint64_t q = FirstElement(); q < PacksOf<T>(n); q += ElementStep()) {
    const Pack<T> v = LoadPack<T>(x, q, n, aligned);
    Pack<T> d = LoadPack<T>(dy, q, n, aligned);
#pragma unroll
    for (uint32_t k = 0; k < Pack<T>::kSize; ++k) d.x[k] = d.x[k] * SlopeAt<kCurve>(v.x[k]);
    StorePack<T>(dx, q, n, aligned, d);
  }
}

template <typename T, Curve kCurve>
absl::Status Curved(uint64_t n, const void* x, void* y, NativeStream stream) {
  return Launch(kCurve == Curve::kGelu ? "Gelu" : "Tanh", CurveKernel<T, kCurve>,
                GridOfPacks<T>(n), stream, n, In<T>(x), Out<T>(y));
}
template <typename T, Curve kCurve>
absl::Status CurvedGradient(uint64_t n, const void* x, const void* dy, void* dx,
                            NativeStream stream) {
  return Launch(kCurve == Curve::kGelu ? "GeluGradient" : "TanhGradient",
                CurveGradientKernel<T, kCurve>, GridOfPacks<T>(n), stream, n, In<T>(x),
                In<T>(dy), Out<T>(dx));
}

// ---- Dropout ----

// A thread draws four words and has their values: 16 apart, as the words are numbered.
template <typename T>
__global__ void __launch_bounds__(kElementThreads)
    DropoutKernel(uint32_t examples, uint64_t elements, Dropping dropping, Pointer<const T> from,
                  Pointer<T> to) {
  const bool drops = Drops(dropping);
  const uint64_t counters = (elements + 63) / 64 * 16;
  for (uint64_t i = FirstElement(); i < examples * counters; i += ElementStep()) {
    const uint64_t example = i / counters, c = i % counters;
    DropWords drawn = {};
    if (drops) drawn = WordsOf(dropping.keys[example], dropping.layer, c);
#pragma unroll
    for (uint32_t w = 0; w < 4; ++w) {
      const uint64_t value = c / 16 * 64 + w * 16 + c % 16;
      if (value >= elements) continue;
      const uint64_t at = example * elements + value;
      const T x = from[at];
      if (!drops) {
        to[at] = x;
      } else {
        const bool dropped = drawn.words[w] < dropping.threshold;
        to[at] = Stored<T>::Of(dropped ? 0.0f : ValueOf(x) * dropping.scale);
      }
    }
  }
}

template <typename T>
absl::Status Dropped(uint32_t examples, uint64_t elements, const DropArguments& drop,
                     const void* from, void* to, NativeStream stream) {
  return Launch("Dropout", DropoutKernel<T>, GridOf(examples * ((elements + 63) / 64 * 16)), stream,
                examples, elements, DroppingOf(drop), In<T>(from), Out<T>(to));
}

// ---- Copies of positions ----

template <typename T>
__global__ void __launch_bounds__(kElementThreads)
    SelectKernel(uint64_t rows, uint32_t positions, uint32_t channels, uint32_t count, bool first,
                 Pointer<const int32_t> at, Pointer<const T> x, Pointer<T> y) {
  for (uint64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const uint32_t position = first ? 0 : static_cast<uint32_t>(static_cast<int32_t>(at[row]));
    const Pointer<const T> from = x + (row / count * positions + position) * channels;
    for (uint32_t c = threadIdx.x; c < channels; c += kElementThreads) {
      y[row * channels + c] = static_cast<T>(from[c]);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kElementThreads)
    SelectGradientKernel(uint64_t rows, uint32_t positions, uint32_t channels, uint32_t count,
                         bool first, Pointer<const int32_t> at, Pointer<const T> dy,
                         Pointer<T> dx) {
  for (uint64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const uint64_t example = row / positions;
    const uint32_t position = static_cast<uint32_t>(row % positions);
    for (uint32_t c = threadIdx.x; c < channels; c += kElementThreads) {
      float sum = 0;
      for (uint32_t k = 0; k < count; ++k) {
        const uint64_t from = example * count + k;
        const uint32_t named = first ? 0 : static_cast<uint32_t>(static_cast<int32_t>(at[from]));
        if (named == position) sum = sum + ValueOf(static_cast<T>(dy[from * channels + c]));
      }
      dx[row * channels + c] = Stored<T>::Of(sum);
    }
  }
}

Grid GridOfRows(uint64_t rows) {
  return {{static_cast<uint32_t>(rows < kMostBlocks ? rows : kMostBlocks)}, {kElementThreads}};
}

template <typename T>
absl::Status Selected(const SelectShape& s, const void* x, void* y, NativeStream stream) {
  const uint64_t rows = uint64_t{s.examples} * s.count;
  return Launch("Select", SelectKernel<T>, GridOfRows(rows), stream, rows, s.positions, s.channels,
                s.count, s.at == nullptr, Pointer<const int32_t>(s.at), In<T>(x), Out<T>(y));
}
template <typename T>
absl::Status SelectedGradient(const SelectShape& s, const void* dy, void* dx,
                              NativeStream stream) {
  const uint64_t rows = uint64_t{s.examples} * s.positions;
  return Launch("SelectGradient", SelectGradientKernel<T>, GridOfRows(rows), stream, rows,
                s.positions, s.channels, s.count, s.at == nullptr, Pointer<const int32_t>(s.at),
                In<T>(dy), Out<T>(dx));
}

}  // namespace

absl::Status EmbeddingForward(const EmbeddingArguments& a, const float* token_table,
                              const float* position_table, const float* segment_table, void* y,
                              NativeStream stream) {
  const uint64_t rows = uint64_t{a.examples} * a.positions;
  if (rows == 0) return absl::OkStatus();
  const Pointer<const int32_t> token(a.token), segment(a.segment);
  const Pointer<const float> tokens(token_table), positions(position_table), segments(segment_table);
  if (a.storage == Storage::kFp32) {
    return Launch("Embedding", EmbeddingKernel<float>, GridOfRows(rows), stream, rows, a.positions,
                  a.channels, token, segment, tokens, positions, segments, Out<float>(y));
  }
  return Launch("EmbeddingBf16", EmbeddingKernel<uint16_t>, GridOfRows(rows), stream, rows,
                a.positions, a.channels, token, segment, tokens, positions, segments,
                Out<uint16_t>(y));
}

uint64_t EmbeddingScratch(uint32_t examples, uint32_t positions, uint32_t channels,
                          uint32_t segments) {
  return segments * RowSumsScratch(examples * positions, channels);
}

absl::Status EmbeddingGradient(const EmbeddingArguments& arguments, const void* dy,
                               const EmbeddingGradients& gradients, float* scratch,
                               NativeStream stream) {
  if (arguments.examples == 0) return absl::OkStatus();
  return arguments.storage == Storage::kFp32
             ? TableGradients<float>(arguments, dy, gradients, scratch, stream)
             : TableGradients<uint16_t>(arguments, dy, gradients, scratch, stream);
}

absl::Status ApplyCurve(Curve curve, Storage storage, uint64_t n, const void* x, void* y,
                        NativeStream stream) {
  if (n == 0) return absl::OkStatus();
  if (storage == Storage::kFp32) {
    return curve == Curve::kGelu ? Curved<float, Curve::kGelu>(n, x, y, stream)
                                 : Curved<float, Curve::kTanh>(n, x, y, stream);
  }
  return curve == Curve::kGelu ? Curved<uint16_t, Curve::kGelu>(n, x, y, stream)
                               : Curved<uint16_t, Curve::kTanh>(n, x, y, stream);
}

absl::Status CurveGradient(Curve curve, Storage storage, uint64_t n, const void* x, const void* dy,
                           void* dx, NativeStream stream) {
  if (n == 0) return absl::OkStatus();
  if (storage == Storage::kFp32) {
    return curve == Curve::kGelu ? CurvedGradient<float, Curve::kGelu>(n, x, dy, dx, stream)
                                 : CurvedGradient<float, Curve::kTanh>(n, x, dy, dx, stream);
  }
  return curve == Curve::kGelu ? CurvedGradient<uint16_t, Curve::kGelu>(n, x, dy, dx, stream)
                               : CurvedGradient<uint16_t, Curve::kTanh>(n, x, dy, dx, stream);
}

absl::Status ApplyDropout(Storage storage, uint32_t examples, uint64_t elements,
                          const DropArguments& drop, const void* from, void* to,
                          NativeStream stream) {
  if (examples == 0 || elements == 0) return absl::OkStatus();
  return storage == Storage::kFp32 ? Dropped<float>(examples, elements, drop, from, to, stream)
                                   : Dropped<uint16_t>(examples, elements, drop, from, to, stream);
}

absl::Status SelectForward(Storage storage, const SelectShape& shape, const void* x, void* y,
                           NativeStream stream) {
  if (shape.examples == 0) return absl::OkStatus();
  return storage == Storage::kFp32 ? Selected<float>(shape, x, y, stream)
                                   : Selected<uint16_t>(shape, x, y, stream);
}

absl::Status SelectGradient(Storage storage, const SelectShape& shape, const void* dy, void* dx,
                            NativeStream stream) {
  if (shape.examples == 0) return absl::OkStatus();
  return storage == Storage::kFp32 ? SelectedGradient<float>(shape, dy, dx, stream)
                                   : SelectedGradient<uint16_t>(shape, dy, dx, stream);
}

}  // namespace FORESHARD_CUDA_NAMESPACE
