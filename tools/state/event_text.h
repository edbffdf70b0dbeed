// An event of a journal in words, and as JSON.
//
//   81234 push of segment 3 by worker 2: sequence 17, ticket 400, held version 395, one_bit, 13107 bytes:
//       applied, version 396, clock 400, lag 0
#pragma once

#include <cstdint>
#include <string>

#include "nlohmann/json.hpp"
#include "server/event.h"
#include "tools/state/replay.h"

namespace foreshard {

// One line.
std::string EventText(const Event& event, const Effect& effect);
nlohmann::ordered_json EventJson(uint32_t shard, const Event& event, const Effect& effect);

}  // namespace foreshard
