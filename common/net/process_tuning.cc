#include "common/net/process_tuning.h"

#include <malloc.h>

#include <climits>

#include "absl/synchronization/mutex.h"

namespace foreshard {
namespace {

constexpr int kLargestFromHeap = 32 << 20;  // the most that glibc takes
constexpr int kGrowBytes = 4 << 20;

}  // namespace

void TuneProcess() {
  mallopt(M_MMAP_THRESHOLD, kLargestFromHeap);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_TOP_PAD, kGrowBytes);
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace foreshard
