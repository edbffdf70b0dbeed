#include "server/reply_buffers.h"

#include <cstring>

#include "gtest/gtest.h"

namespace foreshard {
namespace {

TEST(ReplyBuffers, ReusesWhatComesBack) {
  ReplyBuffers buffers(1 << 20);
  const uint8_t* first = nullptr;
  for (int i = 0; i < 100; ++i) {
    const auto buffer = buffers.Take(10'000);
    ASSERT_TRUE(buffer.has_value());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data) % 64, 0);
    std::memset(buffer->data, i, 10'000);
    if (first == nullptr) first = buffer->data;
    EXPECT_EQ(buffer->data, first);
    const grpc::Slice slice = buffers.Share(*buffer, 5'000);
    EXPECT_EQ(slice.size(), 5'000);
    EXPECT_EQ(slice.begin(), buffer->data);
    EXPECT_EQ(buffers.used_bytes(), 10'000);
  }
  EXPECT_EQ(buffers.allocations(), 1);
  EXPECT_EQ(buffers.used_bytes(), 0);
}

TEST(ReplyBuffers, KeepsToItsBudget) {
  ReplyBuffers buffers(1000);
  EXPECT_TRUE(buffers.Reserve(600));
  EXPECT_FALSE(buffers.Reserve(401));
  EXPECT_FALSE(buffers.Take(401).has_value());
  EXPECT_FALSE(buffers.Reserve(~uint64_t{0}));
  const auto buffer = buffers.Take(400);
  ASSERT_TRUE(buffer.has_value());
  EXPECT_FALSE(buffers.Reserve(1));
  buffers.Return(*buffer);
  buffers.Release(600);
  EXPECT_EQ(buffers.used_bytes(), 0);
}

TEST(ReplyBuffers, SomeMayBeKeptFree) {
  ReplyBuffers buffers(1000);
  EXPECT_FALSE(buffers.Take(701, 300).has_value());
  EXPECT_FALSE(buffers.Take(1, ~uint64_t{0}).has_value());
  const auto first = buffers.Take(700, 300);
  ASSERT_TRUE(first.has_value());
  EXPECT_FALSE(buffers.Take(1, 300).has_value());
  const auto second = buffers.Take(300);
  ASSERT_TRUE(second.has_value());
  buffers.Return(*first);
  buffers.Return(*second);
  EXPECT_EQ(buffers.used_bytes(), 0);
}

TEST(ReplyBuffers, SlicesMayOutliveThePool) {
  grpc::Slice slice;
  {
    ReplyBuffers buffers(1 << 20);
    const auto buffer = buffers.Take(100);
    std::memset(buffer->data, 7, 100);
    slice = buffers.Share(*buffer, 100);
  }
  EXPECT_EQ(slice.begin()[99], 7);
}

}  // namespace
}  // namespace foreshard
