// The order in which a server's events took effect, as a text file: what a run can be
// recomputed from, bit for bit, by whoever has the job and the data
// (tools/simulate/replay_arrivals.h).
//
//   auto recorder = ArrivalRecorder::Create("arrivals-0.csv").value();
//   auto server = ShardServer::Start({.job = job, .events = recorder.get()}).value();
//   ...                                            // the server ends, then the recorder
//   std::vector<Event> arrivals = LoadArrivals("arrivals-0.csv").value();
//
// File: the line "number,segment,kind,worker,incarnation,sequence,ticket,held_version,
// argument", then one line an event that changes state, by rising number without holes
// from 1 on. `segment` is "dealer" for events of the lead's dealer, kinds have their
// names (ToString). Payloads and codecs are not in it: the job says which they were.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/event.h"
#include "server/event_sink.h"

namespace foreshard {

// "push", "round_closed", "dealer_fetch", ...
absl::string_view ToString(EventKind kind);

// Thread-safe. What it holds in memory is bounded: an event that is kWindow ahead of
// one that took effect before it, and whose Record is not called yet, waits for it.
// Lines are written 64 KiB at a time and at the end; a full disk ends the record, at a
// whole line, with an error in the log, and the server goes on.
class ArrivalRecorder final : public EventSink {
 public:
  static constexpr uint64_t kWindow = 1 << 16;

  // Replaces the file. UNAVAILABLE: it cannot be made.
  static absl::StatusOr<std::unique_ptr<ArrivalRecorder>> Create(const std::string& path);
  ~ArrivalRecorder() override;

  void Record(const Event& event) override;

 private:
  ArrivalRecorder(std::string path, int file) : path_(std::move(path)), file_(file) {}
  void Flush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  absl::Mutex mutex_;
  int file_ ABSL_GUARDED_BY(mutex_);  // -1: nothing is written any more
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;  // number of the next line
  // Lines of next_, next_ + 1, ... as far as they are there.
  std::deque<std::optional<std::string>> ahead_ ABSL_GUARDED_BY(mutex_);
  std::string lines_ ABSL_GUARDED_BY(mutex_);  // to be written
  int64_t whole_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Events in their order, without payload. NOT_FOUND; INVALID_ARGUMENT naming file and
// line: not nine fields, a kind that there is not, a number out of sequence.
absl::StatusOr<std::vector<Event>> LoadArrivals(const std::string& path);

}  // namespace foreshard
