// Which numbers of a file's format this program reads: from the oldest to the newest, which is the
// one it writes. A release reads what the last one wrote (tests/golden/README.md).
//
//   inline constexpr FormatRange kRunFormats = {.oldest = 1, .newest = 2};
//   RETURN_IF_ERROR(CheckFormat(storage.Describe(kRunFile), description.format_version(), kRunFormats));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace foreshard {

struct FormatRange {
  uint32_t oldest = 1;
  uint32_t newest = 1;
};

// FAILED_PRECONDITION: `what` has a newer format than this program reads, or one too old; with the
// numbers and what to do. It is whole: never to be taken for damage, cut or passed over.
absl::Status CheckFormat(absl::string_view what, uint64_t format, const FormatRange& reads);

}  // namespace foreshard
