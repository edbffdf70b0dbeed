// random_k: how many, where, and by which keys.
#include <cmath>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/codecs/codec.h"

namespace foreshard {
namespace {

// The places that are sent of n elements with this key, found from both sides.
std::set<uint32_t> Places(float fraction, uint32_t n, const CodecKey& key) {
  const CodecSet codecs({.fraction = fraction});
  const Codec& codec = *codecs.Find("random_k");
  std::vector<float> values(n), error(n);
  for (uint32_t i = 0; i < n; ++i) values[i] = static_cast<float>(i + 1);
  std::vector<uint8_t> bytes(codec.BlockBytes(n));
  codec.EncodeBlock(values.data(), error.data(), n, key, bytes.data());
  EXPECT_EQ(codec.Fault(bytes.data(), n), "");
  alignas(64) float scratch[kMaxBlockElements];
  // Of the key, the receiver knows `shared` only.
  const float* decoded = codec.DecodeBlock(bytes.data(), n, {.shared = key.shared}, scratch);
  std::set<uint32_t> places;
  for (uint32_t i = 0; i < n; ++i) {
    if (decoded[i] != 0) places.insert(i);
    EXPECT_EQ(decoded[i], decoded[i] != 0 ? values[i] : 0);
    EXPECT_EQ(error[i], values[i] - decoded[i]);
  }
  EXPECT_EQ(places.size(), bytes.size() / 4);
  return places;
}

CodecKey Key(uint64_t i) { return BlockKey({.shared = 99}, i); }

TEST(RandomKTest, ExactlySoManyOneInEachStratum) {
  for (const uint32_t n : {1u, 2u, 7u, 64u, 100u, 4095u, 4096u}) {
    for (const float fraction : {1e-6f, 1.0f / 32, 0.3f, 0.75f, 1.0f}) {
      for (uint64_t i = 0; i < 5; ++i) Places(fraction, n, Key(i));
    }
  }
  EXPECT_EQ(Places(1, 100, Key(1)).size(), 100u);
  EXPECT_EQ(Places(1e-6f, 100, Key(1)).size(), 1u);
  // 64 elements, 8 strata: turned by any offset, two neighbours are never 15 or more apart.
  for (uint64_t i = 0; i < 20; ++i) {
    const std::set<uint32_t> places = Places(0.125f, 64, Key(i));
    ASSERT_EQ(places.size(), 8u);
    uint32_t last = *places.rbegin() - 64;
    for (const uint32_t place : places) {
      EXPECT_LE(place - last, 15u);
      last = place;
    }
  }
}

// Also where strata differ in length, each element goes with probability k / n.
TEST(RandomKTest, EachElementAsOftenAsAnyOther) {
  constexpr uint32_t kElements = 10;
  constexpr int kTimes = 20000;
  std::vector<int> sent(kElements);
  for (int i = 0; i < kTimes; ++i) {
    for (const uint32_t place : Places(0.4f, kElements, Key(i))) ++sent[place];
  }
  for (const int times : sent) EXPECT_NEAR(times, 0.4 * kTimes, 5 * std::sqrt(kTimes * 0.24));
}

TEST(RandomKTest, KeysChooseOtherElementsOfEverySegmentRoundAndBlock) {
  const auto places = [](const CodecKey& message, uint64_t offset) {
    return Places(1.0f / 32, 4096, BlockKey(message, offset));
  };
  const std::set<uint32_t> some = places(PushKey(1, 0, {.worker = 0, .round = 3}), 0);
  EXPECT_EQ(places(PushKey(1, 0, {.worker = 5, .sequence = 9, .round = 3}), 0), some);
  const std::vector<std::set<uint32_t>> others = {
      places(PushKey(2, 0, {.worker = 0, .round = 3}), 0),
      places(PushKey(1, 1, {.worker = 0, .round = 3}), 0),
      places(PushKey(1, 0, {.worker = 0, .round = 4}), 0),
      places(PushKey(1, 0, {.worker = 0, .round = 3}), 4096),
      places(PushKey(1, 0, {.worker = 0, .sequence = 3}), 0),
      places(PushKey(1, 0, {.worker = 1, .sequence = 3}), 0),
      places(PushKey(1, 0, {.worker = 0, .sequence = 4}), 0)};
  for (const std::set<uint32_t>& other : others) {
    uint32_t common = 0;
    for (const uint32_t place : other) common += some.count(place);
    EXPECT_LT(common, 24u);  // of 128; 4 by chance
  }
}

}  // namespace
}  // namespace foreshard
