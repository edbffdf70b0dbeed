#include "common/core/checksum.h"

// For the size of the state, which the packaged library keeps opaque otherwise.
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#define FORESHARD_CHECKSUM_FUNCTION ChecksumPortable
#include "common/core/checksum_body.inc"

namespace foreshard {

uint64_t ChecksumPieces(const ChecksumPiece* pieces, uint64_t count) {
#if defined(__x86_64__)
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (avx2) return internal::ChecksumAvx2(pieces, count);
#endif
  return internal::ChecksumPortable(pieces, count);
}

}  // namespace foreshard
