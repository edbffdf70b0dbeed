// A protobuf message as JSON for people and scripts: every field under its own
// name, numbers as numbers (protobuf's own JSON writes 64-bit ones as strings).
#pragma once

#include <google/protobuf/message.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace foreshard {

// Fields that are not set appear with their default, absent sub-messages as null.
// Infinities and NaN become null, as JSON has none.
nlohmann::ordered_json MessageToJson(const google::protobuf::Message& message);

// {"servers": [each a reply with its server's address, or {"address", "error"}]}.
template <typename Reply>
nlohmann::ordered_json ServersJson(const std::vector<std::string>& addresses,
                                   const std::vector<absl::StatusOr<Reply>>& replies) {
  nlohmann::ordered_json servers = nlohmann::ordered_json::array();
  for (size_t k = 0; k < replies.size(); ++k) {
    nlohmann::ordered_json server = {{"address", addresses[k]}};
    if (replies[k].ok()) {
      server.update(MessageToJson(*replies[k]));
    } else {
      server["error"] = std::string(replies[k].status().message());
    }
    servers.push_back(std::move(server));
  }
  return {{"servers", std::move(servers)}};
}

// Ends with a line break; `indent` -1: one line. Bytes that are no UTF-8, as names and reasons may
// hold them, are replaced.
std::string JsonText(const nlohmann::ordered_json& json, int indent = 2);

}  // namespace foreshard
