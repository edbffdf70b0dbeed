#include "common/core/bytes.h"

#include <algorithm>
#include <memory>

#include <xxhash.h>

namespace foreshard {

uint64_t Checksum(ByteSpan bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

uint64_t Checksum(const Payload& payload) {
  if (payload.pieces.size() == 1) return Checksum(payload.pieces.front());
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  thread_local const std::unique_ptr<XXH3_state_t, Free> state(XXH3_createState());
  XXH3_64bits_reset(state.get());
  for (const ByteSpan piece : payload.pieces) {
    XXH3_64bits_update(state.get(), piece.data(), piece.size());
  }
  return XXH3_64bits_digest(state.get());
}

const uint8_t* PayloadReader::Next(uint64_t bytes, uint8_t* straddle) {
  if (bytes > left_) return nullptr;
  left_ -= bytes;
  while (!pieces_.empty() && offset_ == pieces_.front().size()) {
    pieces_.remove_prefix(1);
    offset_ = 0;
  }
  if (bytes == 0) return straddle;
  if (pieces_.front().size() - offset_ >= bytes) {
    const uint8_t* run = pieces_.front().data() + offset_;
    offset_ += bytes;
    return run;
  }
  uint64_t copied = 0;
  while (copied < bytes) {
    const ByteSpan piece = pieces_.front();
    const uint64_t here = std::min<uint64_t>(bytes - copied, piece.size() - offset_);
    if (here > 0) std::memcpy(straddle + copied, piece.data() + offset_, here);
    copied += here;
    offset_ += here;
    if (offset_ == piece.size()) {
      pieces_.remove_prefix(1);
      offset_ = 0;
    }
  }
  return straddle;
}

}  // namespace foreshard
