// A segment's outcome as its worker would read it off the wire.
#pragma once

#include <cstdint>

#include "server/segment.h"
#include "worker/squeeze_replica.h"

namespace foreshard {

inline RoundReply ToRoundReply(const Outcome& outcome, uint32_t parts) {
  return {.parts = parts,
          .late = outcome.result == Result::kLate,
          .version = outcome.version,
          .round = outcome.round,
          .members = outcome.members,
          .frozen = outcome.phase == Phase::kFrozen,
          .fold = outcome.fold,
          .eta = outcome.eta};
}

}  // namespace foreshard
