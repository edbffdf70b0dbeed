// The random choices of codecs: pure functions of keys, so that sender and receiver,
// every retry, every replay and every device make the same ones. README.md has the
// generator in full.
//
//   const CodecKey message = PushKey(seed, segment, {.worker = 2, .sequence = 17});
//   const CodecKey key = BlockKey(message, block.offset);
//   const uint32_t draw = CodecDraw(key.shared, i);   // i-th of the block, 32 random bits
#pragma once

#include <cstdint>
#include <optional>

namespace foreshard {

struct CodecKey {
  uint64_t shared = 0;  // known to who encodes and to who decodes
  uint64_t own = 0;     // known to who encodes: what it rounds by
};

// What a push of a segment is told from all others by.
struct PushPlace {
  uint32_t worker = 0;            // slot
  uint64_t sequence = 0;          // the worker's pushes of this segment, from 1
  std::optional<uint64_t> round;  // synchronous modes
};

// The key of a push. In rounds `shared` depends on the round alone, so that all workers
// choose the same elements, and `own` on the worker too, so that their rounding is
// independent; else both depend on the worker and the sequence number.
CodecKey PushKey(uint64_t seed, uint32_t segment, const PushPlace& place);

// The key of a reply: the parameters of this version, to this worker.
CodecKey ReplyKey(uint64_t seed, uint32_t segment, uint32_t worker, uint64_t version);

// The key of a round's result, which is the same for all workers: that of this version.
CodecKey ResultKey(uint64_t seed, uint32_t segment, uint64_t version);

// The key of the block that begins at this offset in the segment.
CodecKey BlockKey(const CodecKey& message, uint64_t offset);

// Draw number i of a block: 32 random bits, of which the upper ones depend on all of key and
// i; a draw is used as a fraction of 2^32. Only 32-bit operations, so that it vectorises:
// CodecMix of a counter that begins at the low half of the key and rises by
// kCodecCounterStep; the high half comes in between the two multiplications (multipliers:
// Wellons, "hash-prospector", 2018).
inline constexpr uint32_t kCodecCounterStep = 0x9e3779b9;

[[gnu::always_inline]] inline uint32_t CodecMix(uint32_t counter, uint32_t high) {
  counter ^= counter >> 16;
  counter *= 0x7feb352du;
  counter ^= counter >> 15;
  counter += high;
  return counter * 0x846ca68bu;
}

[[gnu::always_inline]] inline uint32_t CodecDraw(uint64_t key, uint32_t i) {
  return CodecMix(static_cast<uint32_t>(key) + i * kCodecCounterStep,
                  static_cast<uint32_t>(key >> 32));
}

}  // namespace foreshard
