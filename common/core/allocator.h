// How this process's memory allocator treats memory that was freed.
#pragma once

namespace foreshard {

// Keeps freed memory in the process instead of giving it back to the kernel, whose
// fresh pages cost a fault and a zeroing each time: gRPC allocates every message it
// receives anew, and with glibc's defaults an echo of 4 to 64 MiB spends a third of
// its time on pages (measured: 1.2 GB/s against 0.75). The process then stays at
// the size of its peak, and each of glibc's arenas at its own: there are at most two a core
// instead of eight, unless MALLOC_ARENA_MAX says how many, so that peaks are met again soon and
// memory is flat. Once, at the start of a daemon's main; elsewhere than in glibc it does nothing.
void KeepFreedMemory();

}  // namespace foreshard
