// Streams of the emulated GPU. What is given to one runs as late as CUDA allows: when somebody
// waits for it, on the waiting thread. So code that reads a result before it has waited, or that
// relies on two streams without an event between them, sees that nothing has happened yet. The
// default stream (null) runs what it is given at once (internal to the emulation).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"

struct CUstream_st;

namespace foreshard::kernels::cuda::emulation {

CUstream_st* MakeStream();
// Runs what is left first.
void EndStream(CUstream_st* stream);

// In its order among all that the stream is given. The work's error is reported when the stream
// is waited for; that of the default stream at once.
absl::Status Give(CUstream_st* stream, std::function<absl::Status()> work);

// In between, what the stream is given is kept and not run; waiting for it meanwhile is an error,
// as on a GPU.
void BeginCapture(CUstream_st* stream);
std::vector<std::function<absl::Status()>> EndCapture(CUstream_st* stream);

// A place in a stream: all it has been given up to now.
struct StreamPlace {
  uint64_t stream = 0;  // 0: the default stream, or nowhere
  uint64_t works = 0;
};
StreamPlace PlaceIn(CUstream_st* stream);
bool Reached(const StreamPlace& place);
// Runs all up to there. The first error of what has run and was not reported yet.
absl::Status RunTo(const StreamPlace& place);
// All streams: what freeing memory waits for.
void RunAll();

}  // namespace foreshard::kernels::cuda::emulation
