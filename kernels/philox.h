// Philox4x32-10 (Salmon et al., SC 2011): four random words of a counter and a key, on every
// device the same. The stream of dropout is numbered with it:
//
//   value i of layer l for the example with key k has word (i / 16) % 4 of
//   Philox(counter {c, c >> 32, l, 0} with c = (i / 64) * 16 + i % 16, key {k, k >> 32})
//
// and is dropped where that word is below rate * 2^32. So sixteen lanes in a row have
// neighbouring counters, and neither threads nor the batch around an example change its values.
#pragma once

#include <array>
#include <cstdint>

namespace foreshard::kernels {

inline constexpr uint32_t kPhiloxMultiply[2] = {0xD2511F53u, 0xCD9E8D57u};
inline constexpr uint32_t kPhiloxAdd[2] = {0x9E3779B9u, 0xBB67AE85u};
inline constexpr int kPhiloxRounds = 10;

inline std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t a = uint64_t{kPhiloxMultiply[0]} * counter[0];
    const uint64_t b = uint64_t{kPhiloxMultiply[1]} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(a)};
    key0 += kPhiloxAdd[0];
    key1 += kPhiloxAdd[1];
  }
  return counter;
}

// The word of one value.
inline uint32_t DropoutWord(uint64_t key, uint32_t layer, uint64_t value) {
  const uint64_t c = value / 64 * 16 + value % 16;
  return Philox({static_cast<uint32_t>(c), static_cast<uint32_t>(c >> 32), layer, 0},
                static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32))[value / 16 % 4];
}

// A value is dropped where its word is below this.
inline uint32_t DropoutThreshold(float rate) {
  return static_cast<uint32_t>(static_cast<double>(rate) * 4294967296.0);
}

// What the others are multiplied by.
inline float DropoutScale(float rate) { return 1.0f / (1.0f - rate); }

}  // namespace foreshard::kernels
