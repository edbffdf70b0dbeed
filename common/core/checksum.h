// XXH3-64 (libxxhash) of bytes that lie in several pieces. The library as packaged
// is built for the oldest CPUs, at 20 GB/s; its header compiled for AVX2 does 47
// in cache (measured), so both are here and the CPU decides.
#pragma once

#include <cstdint>

namespace foreshard {

struct ChecksumPiece {
  const uint8_t* data;
  uint64_t bytes;
};

// As if the pieces were one run. Thread-safe.
uint64_t ChecksumPieces(const ChecksumPiece* pieces, uint64_t count);

namespace internal {
uint64_t ChecksumPortable(const ChecksumPiece* pieces, uint64_t count);
#if defined(__x86_64__)
uint64_t ChecksumAvx2(const ChecksumPiece* pieces, uint64_t count);
#endif
}  // namespace internal

}  // namespace foreshard
