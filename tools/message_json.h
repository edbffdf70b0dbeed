// A protobuf message as JSON for people and scripts: every field under its own
// name, numbers as numbers (protobuf's own JSON writes 64-bit ones as strings).
#pragma once

#include <google/protobuf/message.h>

#include "nlohmann/json.hpp"

namespace foreshard {

// Fields that are not set appear with their default, absent sub-messages as null.
// Infinities and NaN become null, as JSON has none.
nlohmann::ordered_json MessageToJson(const google::protobuf::Message& message);

}  // namespace foreshard
