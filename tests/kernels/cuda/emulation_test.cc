// The emulation itself: it runs what CUDA would run, and it finds the faults that are planted
// here.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/device_code.h"
#include "kernels/cuda/emulation/machine.h"
#include "kernels/cuda/emulation/sanitizers.h"
#include "tests/kernels/cuda/on_device.h"

namespace foreshard::kernels::cuda {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint32_t kThreads = 64;
constexpr uint64_t kSeeds[] = {0, 1, 2, 3};

std::string Fault(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  return std::string(status.message());
}

template <typename... Parameters, typename... Arguments>
absl::Status LaunchOn(uint32_t blocks, uint32_t threads, void (*kernel)(Parameters...),
                      const Arguments&... arguments) {
  return Launch("Planted", kernel, {.blocks = {blocks}, .threads = {threads}}, nullptr,
                arguments...);
}

Uploaded<uint32_t> Words(uint64_t n) { return Upload(std::vector<uint32_t>(n)); }

// ---- It runs what CUDA would run ----

__global__ void NumberAll(Pointer<uint32_t> out) {
  const uint32_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const uint32_t thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const uint32_t threads = blockDim.x * blockDim.y * blockDim.z;
  out[block * threads + thread] = block * threads + thread + 1;
}

TEST(EmulationTest, EveryThreadOfEveryBlockRunsOnce) {
  for (const uint64_t seed : kSeeds) {
    const emulation::ScopedOrder order(seed);
    const auto out = Words(2 * 3 * 2 * 4 * 5 * 3);
    const emulation::Grid grid = {.blocks = {2, 3, 2}, .threads = {4, 5, 3}};
    ASSERT_EQ(Launch("NumberAll", NumberAll, grid, nullptr, Pointer<uint32_t>(out.data())),
              absl::OkStatus());
    std::vector<uint32_t> expected(720);
    std::iota(expected.begin(), expected.end(), 1u);
    EXPECT_EQ(out.Download(), expected);
  }
}

template <bool kBarrier>
__global__ void Rotate(Pointer<uint32_t> values) {
  FORESHARD_SHARED(uint32_t, tile, kThreads);
  tile[threadIdx.x] = values[threadIdx.x];
  if (kBarrier) __syncthreads();
  values[threadIdx.x] = tile[(threadIdx.x + 1) % kThreads];
}

TEST(EmulationTest, BarriersOrderSharedMemory) {
  for (const uint64_t seed : kSeeds) {
    const emulation::ScopedOrder order(seed);
    std::vector<uint32_t> values(kThreads);
    std::iota(values.begin(), values.end(), 0u);
    const auto device = Upload(values);
    ASSERT_EQ(LaunchOn(1, kThreads, Rotate<true>, Pointer<uint32_t>(device.data())),
              absl::OkStatus());
    std::rotate(values.begin(), values.begin() + 1, values.end());
    EXPECT_EQ(device.Download(), values);
  }
}

__global__ void ReverseDynamic(Pointer<uint32_t> values) {
  FORESHARD_DYNAMIC_SHARED(uint32_t, tile);
  tile[threadIdx.x] = values[threadIdx.x];
  __syncthreads();
  values[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}

TEST(EmulationTest, DynamicSharedMemoryIsAsLargeAsAsked) {
  std::vector<uint32_t> values(kThreads);
  std::iota(values.begin(), values.end(), 0u);
  const auto device = Upload(values);
  emulation::Grid grid = {.threads = {kThreads}, .shared_bytes = kThreads * sizeof(uint32_t)};
  ASSERT_EQ(Launch("Reverse", ReverseDynamic, grid, nullptr, Pointer<uint32_t>(device.data())),
            absl::OkStatus());
  std::reverse(values.begin(), values.end());
  EXPECT_EQ(device.Download(), values);
  grid.shared_bytes -= 4;
  EXPECT_THAT(
      Fault(Launch("Reverse", ReverseDynamic, grid, nullptr, Pointer<uint32_t>(device.data()))),
      AllOf(HasSubstr("kernel Reverse, block 0, thread"), HasSubstr("out of bounds"),
            HasSubstr("shared dynamic")));
}

__global__ void WarpOperations(Pointer<uint32_t> out) {
  const uint32_t lane = threadIdx.x;
  const uint32_t value = 100 + lane;
  out[lane * 10 + 0] = __shfl_down_sync(kAllLanes, value, 4);
  out[lane * 10 + 1] = __shfl_up_sync(kAllLanes, value, 4);
  out[lane * 10 + 2] = __shfl_xor_sync(kAllLanes, value, 5);
  out[lane * 10 + 3] = __shfl_sync(kAllLanes, value, 7);
  out[lane * 10 + 4] = __ballot_sync(kAllLanes, lane % 3 == 0);
  out[lane * 10 + 5] = __reduce_add_sync(kAllLanes, value);
  out[lane * 10 + 6] = __reduce_max_sync(kAllLanes, value);
  out[lane * 10 + 7] = __reduce_min_sync(kAllLanes, value);
  out[lane * 10 + 8] = __reduce_or_sync(kAllLanes, 1u << lane % 8);
  // Two halves by themselves.
  const uint32_t half = lane < 16 ? 0x0000ffff : 0xffff0000;
  out[lane * 10 + 9] = __reduce_add_sync(half, lane);
  const double wide = __shfl_xor_sync(kAllLanes, 0.1 * lane, 1);
  if (wide != 0.1 * (lane ^ 1)) out[0] = 0;
}

TEST(EmulationTest, WarpOperations) {
  for (const uint64_t seed : kSeeds) {
    const emulation::ScopedOrder order(seed);
    const auto out = Words(320);
    ASSERT_EQ(LaunchOn(1, 32, WarpOperations, Pointer<uint32_t>(out.data())), absl::OkStatus());
    const std::vector<uint32_t> got = out.Download();
    uint32_t ballot = 0, sum = 0;
    for (uint32_t lane = 0; lane < 32; ++lane) {
      ballot |= lane % 3 == 0 ? 1u << lane : 0;
      sum += 100 + lane;
    }
    for (uint32_t lane = 0; lane < 32; ++lane) {
      EXPECT_THAT(
          std::vector<uint32_t>(got.begin() + 10 * lane, got.begin() + 10 * lane + 10),
          ElementsAre(100 + (lane + 4 < 32 ? lane + 4 : lane), 100 + (lane >= 4 ? lane - 4 : lane),
                      100 + (lane ^ 5), 107, ballot, sum, 131, 100, 255, lane < 16 ? 120 : 376));
    }
  }
}

__global__ void CountAtomically(Pointer<uint32_t> count, Pointer<uint32_t> largest,
                                Pointer<uint32_t> bits) {
  atomicAdd(count, 1u);
  atomicMax(largest, blockIdx.x * blockDim.x + threadIdx.x);
  atomicOr(bits, 1u << threadIdx.x % 32);
}

TEST(EmulationTest, AtomicsAreNoRace) {
  const auto count = Words(1), largest = Words(1), bits = Words(1);
  ASSERT_EQ(LaunchOn(3, kThreads, CountAtomically, Pointer<uint32_t>(count.data()),
                     Pointer<uint32_t>(largest.data()), Pointer<uint32_t>(bits.data())),
            absl::OkStatus());
  EXPECT_EQ(count.Download()[0], 3 * kThreads);
  EXPECT_EQ(largest.Download()[0], 3 * kThreads - 1);
  EXPECT_EQ(bits.Download()[0], ~0u);
}

TEST(EmulationTest, ImpossibleGridsAreRefused) {
  const auto out = Words(1);
  for (const uint32_t threads : {0u, 1025u}) {
    EXPECT_EQ(LaunchOn(1, threads, NumberAll, Pointer<uint32_t>(out.data())).code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(LaunchOn(0, 1, NumberAll, Pointer<uint32_t>(out.data())).code(),
            absl::StatusCode::kInvalidArgument);
}

// ---- Planted races ----

TEST(EmulationFaultTest, AMissingBarrierIsARace) {
  for (const uint64_t seed : kSeeds) {
    const emulation::ScopedOrder order(seed);
    const auto values = Words(kThreads);
    EXPECT_THAT(Fault(LaunchOn(1, kThreads, Rotate<false>, Pointer<uint32_t>(values.data()))),
                AllOf(HasSubstr("a race in shared tile"), HasSubstr("kernel Planted, block 0")));
  }
}

// All threads of both blocks write one word; blocks alone, each with one thread, do, too.
__global__ void WriteOneWord(Pointer<uint32_t> word) { word[0] = 1; }

TEST(EmulationFaultTest, TwoWritesAreARace) {
  const auto word = Words(1);
  EXPECT_THAT(Fault(LaunchOn(1, 2, WriteOneWord, Pointer<uint32_t>(word.data()))),
              HasSubstr("a race"));
  EXPECT_THAT(Fault(LaunchOn(2, 1, WriteOneWord, Pointer<uint32_t>(word.data()))),
              AllOf(HasSubstr("a race in device memory"), HasSubstr("of block 0")));
  EXPECT_EQ(LaunchOn(1, 1, WriteOneWord, Pointer<uint32_t>(word.data())), absl::OkStatus());
  // Launches are in order.
  EXPECT_EQ(LaunchOn(1, 1, WriteOneWord, Pointer<uint32_t>(word.data())), absl::OkStatus());
}

__global__ void WriteByOne(Pointer<uint32_t> word, uint32_t writer) {
  if (threadIdx.x == writer) word[0] = writer;
}

// Each by a thread of the host's own, as where one has queued what another waits for.
TEST(EmulationFaultTest, LaunchesOfDifferentHostThreadsAreInOrder) {
  const auto word = Words(1);
  for (const uint32_t writer : {0u, 1u, 2u}) {
    std::thread([&] {
      EXPECT_EQ(LaunchOn(1, kThreads, WriteByOne, Pointer<uint32_t>(word.data()), writer),
                absl::OkStatus());
    }).join();
  }
  EXPECT_EQ(word.Download()[0], 2u);
}

// Thread 0 writes what the others have read, or the other way round.
__global__ void ReadAndWrite(Pointer<uint32_t> words, bool barrier, bool other_warp) {
  const uint32_t writer = other_warp ? 40 : 0;
  if (threadIdx.x != writer && threadIdx.x < 32) words[1 + threadIdx.x] = words[0];
  if (barrier) __syncthreads();
  if (threadIdx.x == writer) words[0] = 5;
}

TEST(EmulationFaultTest, AWriteOfWhatOthersReadIsARace) {
  for (const uint64_t seed : kSeeds) {
    const emulation::ScopedOrder order(seed);
    for (const bool other_warp : {false, true}) {
      const auto words = Words(64);
      EXPECT_THAT(Fault(LaunchOn(1, kThreads, ReadAndWrite, Pointer<uint32_t>(words.data()), false,
                                 other_warp)),
                  HasSubstr("a race"));
      EXPECT_EQ(
          LaunchOn(1, kThreads, ReadAndWrite, Pointer<uint32_t>(words.data()), true, other_warp),
          absl::OkStatus());
    }
  }
}

// A block reads what another writes: no barrier helps.
__global__ void ReadFromOtherBlock(Pointer<uint32_t> words) {
  if (threadIdx.x == 0) words[blockIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x == 1) words[10 + blockIdx.x] = words[1 - blockIdx.x];
}

TEST(EmulationFaultTest, NothingOrdersBlocks) {
  const auto words = Words(20);
  EXPECT_THAT(Fault(LaunchOn(2, kThreads, ReadFromOtherBlock, Pointer<uint32_t>(words.data()))),
              HasSubstr("a race"));
}

// Neighbours in a warp exchange words; __syncwarp orders them, a shuffle does not.
__global__ void ExchangeInWarp(Pointer<uint32_t> words, uint32_t how) {
  FORESHARD_SHARED(uint32_t, tile, kThreads);
  tile[threadIdx.x] = threadIdx.x;
  if (how == 1) __syncwarp();
  if (how == 2) __shfl_sync(kAllLanes, 0u, 0);
  words[threadIdx.x] = tile[threadIdx.x ^ 1];
}

TEST(EmulationFaultTest, SyncwarpOrdersAWarpAndAShuffleDoesNot) {
  for (const uint64_t seed : kSeeds) {
    const emulation::ScopedOrder order(seed);
    const auto words = Words(kThreads);
    const Pointer<uint32_t> out(words.data());
    EXPECT_THAT(Fault(LaunchOn(1, kThreads, ExchangeInWarp, out, 0u)), HasSubstr("a race"));
    EXPECT_EQ(LaunchOn(1, kThreads, ExchangeInWarp, out, 1u), absl::OkStatus());
    EXPECT_THAT(Fault(LaunchOn(1, kThreads, ExchangeInWarp, out, 2u)), HasSubstr("a race"));
  }
}

// An atomic and a plain access of one word.
__global__ void MixAtomics(Pointer<uint32_t> word) {
  if (threadIdx.x == 0) {
    word[0] = 3;
  } else {
    atomicAdd(word, 1u);
  }
}

TEST(EmulationFaultTest, AnAtomicAndAPlainAccessAreARace) {
  const auto word = Words(1);
  EXPECT_THAT(Fault(LaunchOn(1, 2, MixAtomics, Pointer<uint32_t>(word.data()))),
              HasSubstr("a race"));
}

// A result that depends on the order, behind the emulation's back: by a plain C++ pointer.
__global__ void TakeTurns(uint32_t* turn, uint32_t* out) { out[threadIdx.x] = (*turn)++; }

TEST(EmulationFaultTest, ResultsThatDependOnTheOrderDifferBetweenSeeds) {
  std::vector<std::vector<uint32_t>> results;
  for (const uint64_t seed : kSeeds) {
    const emulation::ScopedOrder order(seed);
    uint32_t turn = 0;
    std::vector<uint32_t> out(kThreads);
    ASSERT_EQ(LaunchOn(1, kThreads, TakeTurns, &turn, out.data()), absl::OkStatus());
    results.push_back(out);
  }
  for (size_t i = 1; i < results.size(); ++i) {
    EXPECT_NE(results[i], results[0]);
    EXPECT_NE(results[i], results[i - 1]);
  }
  std::vector<uint32_t> in_order(kThreads);
  std::iota(in_order.begin(), in_order.end(), 0u);
  EXPECT_EQ(results[0], in_order);
}

__global__ void ReadUnset(Pointer<uint32_t> out) {
  FORESHARD_SHARED(uint32_t, tile, kThreads);
  out[threadIdx.x] = tile[threadIdx.x];
}

TEST(EmulationFaultTest, SharedMemoryThatNobodySetDiffersBetweenSeeds) {
  std::vector<std::vector<uint32_t>> results;
  for (const uint64_t seed : {0, 1}) {
    const emulation::ScopedOrder order(seed);
    const auto out = Words(kThreads);
    ASSERT_EQ(LaunchOn(1, kThreads, ReadUnset, Pointer<uint32_t>(out.data())), absl::OkStatus());
    results.push_back(out.Download());
  }
  EXPECT_NE(results[0], results[1]);
}

// ---- Planted accesses out of bounds ----

__global__ void WriteAt(Pointer<uint32_t> words, int64_t at) {
  (words + static_cast<uint64_t>(at))[0] = 1;
}
__global__ void ReadAt(Pointer<uint32_t> words, uint64_t at) { words[0] = words[at]; }
__global__ void WriteSharedAt(uint32_t at) {
  FORESHARD_SHARED(uint32_t, tile, kThreads);
  tile[at] = 1;
}
__global__ void ReadQuad(Pointer<uint32_t> words, uint64_t at) {
  const float4 quad = *CastPointer<const float4>(words + at);
  words[0] = quad.x == 0 ? 1 : 2;
}

TEST(EmulationFaultTest, AccessesOutOfBoundsAreNamed) {
  const auto words = Words(100);
  const Pointer<uint32_t> memory(words.data());
  EXPECT_EQ(LaunchOn(1, 1, WriteAt, memory, int64_t{99}), absl::OkStatus());
  EXPECT_THAT(
      Fault(LaunchOn(1, 1, WriteAt, memory, int64_t{100})),
      AllOf(
          HasSubstr("a write of 4 bytes out of bounds, at byte 400 of device memory of 400 bytes"),
          HasSubstr("kernel Planted, block 0, thread 0")));
  EXPECT_THAT(Fault(LaunchOn(1, 1, WriteAt, memory, int64_t{-1})), HasSubstr("at byte -4"));
  EXPECT_THAT(Fault(LaunchOn(1, 1, ReadAt, memory, uint64_t{100})),
              HasSubstr("a read of 4 bytes out of bounds"));
  EXPECT_THAT(Fault(LaunchOn(1, 1, ReadQuad, memory, uint64_t{97})), HasSubstr("out of bounds"));
  EXPECT_THAT(Fault(LaunchOn(1, 1, WriteSharedAt, kThreads)), HasSubstr("of shared tile"));
  EXPECT_EQ(LaunchOn(1, 1, WriteSharedAt, kThreads - 1), absl::OkStatus());
}

TEST(EmulationFaultTest, HostMemoryAndBadAlignmentAreNamed) {
  uint32_t on_host = 0;
  EXPECT_THAT(Fault(LaunchOn(1, 1, WriteAt, Pointer<uint32_t>(&on_host), int64_t{0})),
              HasSubstr("no memory of the GPU"));
  EXPECT_EQ(on_host, 0u);
  const auto words = Words(100);
  EXPECT_THAT(Fault(LaunchOn(1, 1, ReadQuad, Pointer<uint32_t>(words.data()), uint64_t{1})),
              HasSubstr("a read of 16 bytes that is not aligned"));
  EXPECT_EQ(LaunchOn(1, 1, ReadQuad, Pointer<uint32_t>(words.data()), uint64_t{4}),
            absl::OkStatus());
}

// By an address that did not come from a Pointer.
__global__ void WriteBehind(uint32_t* words, uint64_t at) { words[at] = 1; }

TEST(EmulationFaultTest, WritesPastThePointersAreFound) {
  const auto words = Words(100);
#if FORESHARD_ADDRESS_SANITIZER
  EXPECT_DEATH((void)LaunchOn(1, 1, WriteBehind, words.data(), uint64_t{100}),
               "heap-buffer-overflow");
#else
  {
    const auto damaged = Words(100);
    EXPECT_THAT(Fault(LaunchOn(1, 1, WriteBehind, damaged.data(), uint64_t{100})),
                HasSubstr("device memory of 400 bytes was written 1 bytes beyond its end"));
  }
  {
    const auto damaged = Words(100);
    EXPECT_THAT(Fault(LaunchOn(1, 1, WriteBehind, damaged.data(), ~uint64_t{0})),
                HasSubstr("before its beginning"));
  }
#endif
  EXPECT_EQ(LaunchOn(1, 1, WriteBehind, words.data(), uint64_t{99}), absl::OkStatus());
}

// ---- Planted waits for ever ----

__global__ void BarrierForSome() {
  if (threadIdx.x == 5) return;
  __syncthreads();
}
__global__ void ShuffleForSome() {
  if (threadIdx.x == 5) return;
  __shfl_sync(kAllLanes, 1u, 0);
}
__global__ void DifferentOperations() {
  if (threadIdx.x < 16) {
    __syncwarp();
  } else {
    __ballot_sync(kAllLanes, true);
  }
}
__global__ void LaneOutsideItsMask() { __ballot_sync(0x1, true); }
__global__ void ShuffleFromOutside() {
  if (threadIdx.x < 16) __shfl_sync(0xffff, 1u, 20);
}

TEST(EmulationFaultTest, ThreadsThatNeverComeAreNamed) {
  for (const uint64_t seed : kSeeds) {
    const emulation::ScopedOrder order(seed);
    EXPECT_THAT(Fault(LaunchOn(1, kThreads, BarrierForSome)),
                HasSubstr("__syncthreads, but thread 5 has ended"));
    EXPECT_THAT(Fault(LaunchOn(1, kThreads, ShuffleForSome)),
                AllOf(HasSubstr("warp 0 wait in a shuffle"), HasSubstr("ffffffdf")));
    EXPECT_THAT(Fault(LaunchOn(1, 32, DifferentOperations)),
                HasSubstr("while others of it are in"));
    EXPECT_THAT(Fault(LaunchOn(1, 32, LaneOutsideItsMask)), HasSubstr("with the mask 1 by lane"));
    EXPECT_THAT(Fault(LaunchOn(1, 32, ShuffleFromOutside)), HasSubstr("not in the mask ffff"));
    // Half a warp has half the lanes.
    EXPECT_THAT(Fault(LaunchOn(1, 16, ShuffleForSome)), HasSubstr("that has the lanes ffff"));
  }
  // After all that it runs on.
  const auto out = Words(kThreads);
  EXPECT_EQ(LaunchOn(1, kThreads, NumberAll, Pointer<uint32_t>(out.data())), absl::OkStatus());
}

// ---- Streams ----

__global__ void AddOne(Pointer<uint32_t> words) { words[threadIdx.x] = words[threadIdx.x] + 1; }

absl::Status AddOneOn(const Stream& stream, const Uploaded<uint32_t>& words) {
  const emulation::Grid grid = {.threads = {kThreads}};
  return Launch("AddOne", AddOne, grid, stream.native(), Pointer<uint32_t>(words.data()));
}

TEST(EmulationStreamTest, NothingHasHappenedBeforeSomebodyWaits) {
  const Stream first = Stream::Make().value(), second = Stream::Make().value();
  const auto words = Words(kThreads);
  uint32_t seen = 7;
  ASSERT_EQ(AddOneOn(first, words), absl::OkStatus());
  ASSERT_EQ(CopyToHost(&seen, words.data(), 4, first.native()), absl::OkStatus());
  EXPECT_EQ(seen, 7u);
  // Another stream does not wait for it unless told so.
  uint32_t too_early = 7;
  ASSERT_EQ(CopyToHost(&too_early, words.data(), 4, second.native()), absl::OkStatus());
  ASSERT_EQ(second.Synchronize(), absl::OkStatus());
  EXPECT_EQ(too_early, 0u);
  Event event = Event::Make().value();
  EXPECT_TRUE(event.Happened().value());
  ASSERT_EQ(event.Record(first.native()), absl::OkStatus());
  EXPECT_FALSE(event.Happened().value());
  ASSERT_EQ(AddOneOn(first, words), absl::OkStatus());  // behind the event
  ASSERT_EQ(event.MakeWait(second.native()), absl::OkStatus());
  uint32_t in_time = 7;
  ASSERT_EQ(CopyToHost(&in_time, words.data(), 4, second.native()), absl::OkStatus());
  ASSERT_EQ(second.Synchronize(), absl::OkStatus());
  EXPECT_TRUE(event.Happened().value());
  EXPECT_EQ(in_time, 1u);
  EXPECT_EQ(seen, 1u);
  ASSERT_EQ(first.Synchronize(), absl::OkStatus());
  EXPECT_EQ(words.Download()[0], 2u);
}

TEST(EmulationStreamTest, AKernelsFaultShowsWhereItIsWaitedFor) {
  const Stream stream = Stream::Make().value();
  const auto words = Words(kThreads - 1);
  EXPECT_EQ(AddOneOn(stream, words), absl::OkStatus());
  EXPECT_THAT(Fault(stream.Synchronize()), HasSubstr("kernel AddOne"));
  EXPECT_EQ(stream.Synchronize(), absl::OkStatus());
}

TEST(EmulationStreamTest, EndingAStreamAndFreeingMemoryWait) {
  const auto words = Words(kThreads);
  Event event = Event::Make().value();
  {
    const Stream stream = Stream::Make().value();
    ASSERT_EQ(AddOneOn(stream, words), absl::OkStatus());
    ASSERT_EQ(event.Record(stream.native()), absl::OkStatus());
  }
  EXPECT_TRUE(event.Happened().value());
  EXPECT_EQ(event.Synchronize(), absl::OkStatus());
  EXPECT_EQ(words.Download()[0], 1u);
  const Stream stream = Stream::Make().value();
  {
    const auto freed = Words(kThreads);
    ASSERT_EQ(AddOneOn(stream, freed), absl::OkStatus());
  }
  EXPECT_EQ(stream.Synchronize(), absl::OkStatus());
}

TEST(EmulationFaultTest, CopiesBeyondTheEndAreRefused) {
  const auto words = Words(10);
  std::vector<uint32_t> host(20);
  EXPECT_EQ(CopyToHost(host.data(), words.data(), 44, nullptr).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(CopyToDevice(words.data() + 5, host.data(), 24, nullptr).code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(CopyToDevice(host.data(), host.data(), 4, nullptr).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(CopyOnDevice(words.data(), host.data(), 4, nullptr).code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(FillZero(words.data(), 44, nullptr).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace foreshard::kernels::cuda
