// What a process that moves large messages all day asks of its C library and of
// abseil, once, at the start of main:
//
//   TuneProcess();
//   InitLogging(argv[0], "server 0");
#pragma once

namespace foreshard {

// Freed memory stays with the process: by default glibc gives a message's pages
// back and faults them in again for the next one, which was measured to cost a
// server a quarter of its CPU on 4 MiB exchanges. Memory stays bounded by what was
// once needed at the same time. Also turns off abseil's search for lock cycles,
// which gRPC's locks would pay for on every call.
void TuneProcess();

}  // namespace foreshard
