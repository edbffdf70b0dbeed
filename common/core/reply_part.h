// What a reply of a compressed round consists of, in this order: bits of ReplyHeader.parts.
// All are fp32 but the result.
#pragma once

#include <cstdint>

namespace foreshard {

enum ReplyPart : uint32_t {
  kResultPart = 1,  // the last round's encoded result
  kParametersPart = 2,
  kMomentumPart = 4,
  kDenominatorPart = 8,
};

}  // namespace foreshard
