// How a server tells a caller that it refuses (RESOURCE_EXHAUSTED) when to come again: a number of
// milliseconds in the call's trailing metadata, "foreshard-retry-after-ms".
//
//   AddRetryAfter(*context, absl::Milliseconds(120));                    // server, before Finish
//   absl::Duration wait = RetryAfter(context.GetServerTrailingMetadata());  // client, after it
//
// Callers add some jitter, so that those refused together do not come together.
#pragma once

#include <map>

#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/string_ref.h"

namespace foreshard {

// A server asks for no more, and a client obeys no more.
inline constexpr absl::Duration kLongestRetryAfter = absl::Seconds(2);

void AddRetryAfter(grpc::ServerContextBase& context, absl::Duration wait);
// Zero where nothing is said, or what is said is no number.
absl::Duration RetryAfter(const std::multimap<grpc::string_ref, grpc::string_ref>& trailing);

}  // namespace foreshard
