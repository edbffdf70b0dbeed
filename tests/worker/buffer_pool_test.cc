#include "worker/buffer_pool.h"

#include <atomic>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace foreshard {
namespace {

TEST(BufferPool, UsesBuffersAgain) {
  BufferPool pool;
  const uint8_t* data;
  {
    const BufferPool::Buffer buffer = pool.Take(1000);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data) % 64, 0u);
    std::memset(buffer.data, 7, buffer.bytes);
    data = buffer.data;
    const grpc::Slice slice = pool.Share(buffer);
    EXPECT_EQ(slice.size(), 1000u);
    EXPECT_EQ(slice.begin()[999], 7);
    EXPECT_EQ(pool.outstanding(), 1u);
  }
  EXPECT_EQ(pool.outstanding(), 0u);
  const BufferPool::Buffer again = pool.Take(900);  // about as long
  EXPECT_EQ(again.data, data);
  pool.Share(again);
  EXPECT_EQ(pool.made(), 1u);
  pool.Share(pool.Take(100'000));
  EXPECT_EQ(pool.made(), 2u);
}

TEST(BufferPool, MayGoBeforeItsSlices) {
  std::optional<BufferPool> pool(std::in_place);
  const BufferPool::Buffer buffer = pool->Take(64);
  std::memset(buffer.data, 3, 64);
  const grpc::Slice slice = pool->Share(buffer);
  pool.reset();
  EXPECT_EQ(slice.begin()[63], 3);
}

TEST(BufferPool, MakesNoMoreThanAreInUseAtOnce) {
  BufferPool pool;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int k = 0; k < 1000; ++k) pool.Share(pool.Take(512));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(pool.made(), 4u);
  EXPECT_EQ(pool.outstanding(), 0u);
}

TEST(AliasGuard, WaitsForTheLastSlice) {
  std::vector<uint8_t> memory(100, 9);
  AliasGuard guard;
  std::atomic<bool> released{false};
  auto slice = std::make_unique<grpc::Slice>(guard.Alias(memory.data(), memory.size()));
  EXPECT_EQ(slice->begin(), memory.data());
  std::thread holder([&, copy = *slice]() mutable {
    released = true;
    copy = grpc::Slice();
  });
  slice.reset();
  guard.Wait();
  EXPECT_TRUE(released);
  holder.join();
}

}  // namespace
}  // namespace foreshard
