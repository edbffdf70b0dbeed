// Working memory of the calling thread: what one block of a segment needs on its way
// (internal to server/segment*.cc).
#pragma once

#include <cstdint>
#include <memory>

#include "common/core/block.h"
#include "server/update_rules/update_rule.h"

namespace foreshard {

inline constexpr uint32_t kNoWorker = ~uint32_t{0};

struct Scratch {
  alignas(64) uint8_t straddle[kMaxBlockElements * sizeof(float)];
  alignas(64) float gradient[kMaxBlockElements];
  alignas(64) float other[kMaxBlockElements];
  alignas(64) float reply[kMaxBlockElements];
};

inline Scratch& ThreadScratch() {
  thread_local const std::unique_ptr<Scratch> scratch = std::make_unique<Scratch>();
  return *scratch;
}

inline Run RunOf(const Block& block) {
  return {.offset = block.offset, .elements = block.elements, .decayed = block.decayed};
}

}  // namespace foreshard
