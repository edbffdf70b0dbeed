#include "common/net/retry_after.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace foreshard {
namespace {

constexpr char kKey[] = "foreshard-retry-after-ms";

}  // namespace

void AddRetryAfter(grpc::ServerContextBase& context, absl::Duration wait) {
  context.AddTrailingMetadata(kKey, absl::StrCat(absl::ToInt64Milliseconds(wait)));
}

absl::Duration RetryAfter(const std::multimap<grpc::string_ref, grpc::string_ref>& trailing) {
  const auto found = trailing.find(kKey);
  uint32_t milliseconds = 0;
  if (found == trailing.end() ||
      !absl::SimpleAtoi(absl::string_view(found->second.data(), found->second.size()), &milliseconds)) {
    return absl::ZeroDuration();
  }
  return std::min(absl::Milliseconds(milliseconds), kLongestRetryAfter);
}

}  // namespace foreshard
