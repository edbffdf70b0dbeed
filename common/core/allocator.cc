#include "common/core/allocator.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

namespace foreshard {

void KeepFreedMemory() {
#ifdef __GLIBC__
  // The largest value that glibc takes for the first (HEAP_MAX_SIZE / 2).
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  if (std::getenv("MALLOC_ARENA_MAX") == nullptr) {
    mallopt(M_ARENA_MAX, 2 * static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  }
#endif
}

}  // namespace foreshard
