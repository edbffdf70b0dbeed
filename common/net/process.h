// What a daemon sets for its whole process before it does anything else.
#pragma once

namespace foreshard {

// Keeps freed memory (common/core/allocator.h), and turns abseil's search for
// deadlocks off, which Debian's build does at every lock of ours and of gRPC's:
// a round trip of 1 KiB takes a tenth less (measured). Tests leave it on. Once, at the
// start of main.
void PrepareProcess();

}  // namespace foreshard
