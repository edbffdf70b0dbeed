#include "common/net/process.h"

#include "absl/synchronization/mutex.h"
#include "common/core/allocator.h"

namespace foreshard {

void PrepareProcess() {
  KeepFreedMemory();
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace foreshard
