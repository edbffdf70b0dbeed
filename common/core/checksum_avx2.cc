// Compiled for AVX2 (see CMakeLists.txt); called only where the CPU has it.
// Nothing but the hash may be in this file: other inline functions compiled here
// could be linked into code that runs elsewhere.
#if defined(__x86_64__)

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/core/checksum.h"

#define FORESHARD_CHECKSUM_FUNCTION ChecksumAvx2
#include "common/core/checksum_body.inc"

#endif
