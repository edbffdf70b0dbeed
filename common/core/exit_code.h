// What a Foreshard process's exit status means; documented in README.md.
#pragma once

#include "absl/status/status.h"

namespace foreshard {

enum ExitCode : int {
  kExitDone = 0,
  kExitFailed = 1,
  kExitBadConfiguration = 2,
  kExitDeviceLost = 3,
  kExitFenced = 4,
  kExitInterrupted = 130,
  // 128 + SIGTERM: not done, so that whoever ended it starts it again.
  kExitTerminated = 143,
};

// 0 for OK; 2 for INVALID_ARGUMENT, FAILED_PRECONDITION, NOT_FOUND and UNAUTHENTICATED (what
// the user gave was wrong); 4 for ABORTED (fenced by a newer incarnation); 130 for
// CANCELLED; 1 for everything else. A lost device is the caller's to name.
int ExitCodeFor(const absl::Status& status);

}  // namespace foreshard
