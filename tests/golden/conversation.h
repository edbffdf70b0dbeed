// What a worker, an evaluator and a lead's client of this release say to a server, byte for byte: the
// golden files conversation/NN-METHOD, played to servers of other releases.
//
//   for (const golden::Said& said : golden::Conversation()) SendRaw(channel, said.request, said.method);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/core/schema.h"
#include "foreshard/v1/job.pb.h"

namespace foreshard::golden {

struct Said {
  std::string name;    // "03-Exchange"
  std::string method;  // "/foreshard.v1.ParameterServer/Exchange"
  std::string request;
};

// One shard.
v1::JobSpec ConversationJob();
Schema ConversationSchema();
constexpr uint64_t kConversationExamples = 1000;
// First a Hello; then first values, pushes in two codecs, and reads.
std::vector<Said> Conversation();
// The method of a name.
std::string MethodOf(const std::string& name);

}  // namespace foreshard::golden
