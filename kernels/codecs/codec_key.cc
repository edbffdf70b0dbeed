#include "kernels/codecs/codec_key.h"

#include "common/core/random.h"

namespace foreshard {
namespace {

// Streams of RandomBits; four letters each, so that no two uses meet.
constexpr uint64_t kRoundStream = 0x646e7572;  // "rund"
constexpr uint64_t kPushStream = 0x68737570;   // "push"
constexpr uint64_t kReplyStream = 0x796c7072;  // "rply"
constexpr uint64_t kBlockStream = 0x6b6c6264;  // "dblk"

}  // namespace

CodecKey PushKey(uint64_t seed, uint32_t segment, const PushPlace& place) {
  const uint64_t step = place.round.value_or(place.sequence);
  CodecKey key;
  key.shared = place.round.has_value()
                   ? RandomBits(seed, kRoundStream + (uint64_t{segment} << 32), step)
                   : RandomBits(RandomBits(seed, kPushStream + (uint64_t{segment} << 32), place.worker),
                                kPushStream, step);
  key.own = RandomBits(key.shared, place.worker, step);
  return key;
}

CodecKey ReplyKey(uint64_t seed, uint32_t segment, uint32_t worker, uint64_t version) {
  CodecKey key;
  key.shared = RandomBits(RandomBits(seed, kReplyStream + (uint64_t{segment} << 32), worker),
                          kReplyStream, version);
  key.own = RandomBits(key.shared, worker, version);
  return key;
}

CodecKey ResultKey(uint64_t seed, uint32_t segment, uint64_t version) {
  // No worker has this slot.
  return ReplyKey(seed, segment, ~uint32_t{0}, version);
}

CodecKey BlockKey(const CodecKey& message, uint64_t offset) {
  return {.shared = RandomBits(message.shared, kBlockStream, offset),
          .own = RandomBits(message.own, kBlockStream, offset)};
}

}  // namespace foreshard
