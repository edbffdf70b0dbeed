#include "common/core/running_checksum.h"

#include <new>

#include <xxhash.h>

namespace foreshard {
namespace {

void* NewState() {
  XXH3_state_t* const state = XXH3_createState();
  if (state == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(state);
  return state;
}

}  // namespace

RunningChecksum::RunningChecksum() : state_(NewState()) {}

RunningChecksum::~RunningChecksum() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }

void RunningChecksum::Add(ByteSpan bytes) {
  if (!bytes.empty()) XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), bytes.data(), bytes.size());
}

uint64_t RunningChecksum::value() const {
  return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_));
}

}  // namespace foreshard
