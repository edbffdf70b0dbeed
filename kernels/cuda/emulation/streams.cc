#include "kernels/cuda/emulation/streams.h"

#include <deque>
#include <map>
#include <mutex>
#include <utility>

struct CUstream_st {
  uint64_t id = 0;
  uint64_t given = 0, run = 0;
  bool running = false;
  bool capturing = false;
  std::deque<std::function<absl::Status()>> left;
  std::vector<std::function<absl::Status()>> captured;
  absl::Status error;  // the first that was not reported
};

namespace foreshard::kernels::cuda::emulation {
namespace {

// Work may wait for another stream, so the thread that runs one may take this again.
struct Streams {
  std::recursive_mutex mutex;
  std::map<uint64_t, CUstream_st*> alive;
  uint64_t made = 0;
};

Streams& All() {
  static auto& streams = *new Streams;
  return streams;
}

// The mutex is held.
void RunUpTo(CUstream_st& stream, uint64_t works) {
  // A stream that waits for itself is waiting for what has run.
  if (stream.running) return;
  stream.running = true;
  while (stream.run < works && !stream.left.empty()) {
    const std::function<absl::Status()> work = std::move(stream.left.front());
    stream.left.pop_front();
    absl::Status status = work();
    ++stream.run;
    if (stream.error.ok()) stream.error = std::move(status);
  }
  stream.running = false;
}

CUstream_st* Find(const StreamPlace& place) {
  const auto found = All().alive.find(place.stream);
  return found == All().alive.end() ? nullptr : found->second;
}

}  // namespace

CUstream_st* MakeStream() {
  const std::lock_guard<std::recursive_mutex> lock(All().mutex);
  auto* const stream = new CUstream_st;
  stream->id = ++All().made;
  All().alive[stream->id] = stream;
  return stream;
}

void EndStream(CUstream_st* stream) {
  const std::lock_guard<std::recursive_mutex> lock(All().mutex);
  RunUpTo(*stream, stream->given);
  All().alive.erase(stream->id);
  delete stream;
}

absl::Status Give(CUstream_st* stream, std::function<absl::Status()> work) {
  if (stream == nullptr) return work();
  const std::lock_guard<std::recursive_mutex> lock(All().mutex);
  if (stream->capturing) {
    stream->captured.push_back(std::move(work));
    return absl::OkStatus();
  }
  stream->left.push_back(std::move(work));
  ++stream->given;
  return absl::OkStatus();
}

void BeginCapture(CUstream_st* stream) {
  const std::lock_guard<std::recursive_mutex> lock(All().mutex);
  stream->capturing = true;
  stream->captured.clear();
}

std::vector<std::function<absl::Status()>> EndCapture(CUstream_st* stream) {
  const std::lock_guard<std::recursive_mutex> lock(All().mutex);
  stream->capturing = false;
  return std::move(stream->captured);
}

StreamPlace PlaceIn(CUstream_st* stream) {
  if (stream == nullptr) return {};
  const std::lock_guard<std::recursive_mutex> lock(All().mutex);
  return {stream->id, stream->given};
}

bool Reached(const StreamPlace& place) {
  const std::lock_guard<std::recursive_mutex> lock(All().mutex);
  const CUstream_st* const stream = Find(place);
  return stream == nullptr || stream->run >= place.works;
}

absl::Status RunTo(const StreamPlace& place) {
  const std::lock_guard<std::recursive_mutex> lock(All().mutex);
  CUstream_st* const stream = Find(place);
  if (stream == nullptr) return absl::OkStatus();
  if (stream->capturing) return absl::InternalError("a stream that is captured was waited for");
  RunUpTo(*stream, place.works);
  return std::exchange(stream->error, absl::OkStatus());
}

void RunAll() {
  const std::lock_guard<std::recursive_mutex> lock(All().mutex);
  for (const auto& [id, stream] : All().alive) RunUpTo(*stream, stream->given);
}

}  // namespace foreshard::kernels::cuda::emulation
