// A message of every kind of the protocol with every field set: by reflection, so that a new
// field is in it without anybody remembering.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "google/protobuf/message.h"

namespace foreshard::golden {

// By their names ("ExchangeRequest").
std::map<std::string, std::unique_ptr<google::protobuf::Message>> SampleMessages();

}  // namespace foreshard::golden
