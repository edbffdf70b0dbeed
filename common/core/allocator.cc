#include "common/core/allocator.h"

#include <malloc.h>

namespace foreshard {

void KeepFreedMemory() {
#ifdef __GLIBC__
  // The largest value that glibc takes for the first (HEAP_MAX_SIZE / 2).
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

}  // namespace foreshard
