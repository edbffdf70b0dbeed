// What a journal or a checkpoint is of: they are only ever read back by a server of the
// same job and the same part of it.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace foreshard {

struct StateIdentity {
  uint32_t protocol = 0;  // of the program that wrote it; any other may read it
  uint32_t shard = 0;
  uint32_t shards = 1;
  // Fingerprints, as in a Contract.
  uint64_t job = 0;
  uint64_t schema = 0;
  uint64_t plan = 0;
  // RunDescription.common_run_id; 0 where it is not known. The journal does not have it.
  uint64_t run = 0;

  bool operator==(const StateIdentity&) const = default;
};

// FAILED_PRECONDITION naming `what` (a file), the first thing in which `theirs`, the
// file's, differs from `ours`, both values and what to do.
absl::Status CheckIdentity(absl::string_view what, const StateIdentity& ours, const StateIdentity& theirs);

}  // namespace foreshard
