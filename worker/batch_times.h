// The time that each batch takes this worker: written down, or made to follow what
// another run wrote down.
//
//   auto times = BatchTimes::Open({.record = "batches.csv", .pace = "trace.csv"}).value();
//   RETURN_IF_ERROR(times->SetWorker(slot));
//   ... compute, then wait until times->LeastSeconds() have passed ...
//   times->Note(seconds);
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/core/batch_trace.h"

namespace foreshard {

struct BatchTimesOptions {
  std::string record;  // file to write; empty: none
  std::string pace;    // trace to follow; empty: none
};

// Thread-compatible.
class BatchTimes {
 public:
  // Errors of LoadTrace (a trace that is not there is INVALID_ARGUMENT); UNAVAILABLE:
  // the file cannot be made.
  static absl::StatusOr<std::unique_ptr<BatchTimes>> Open(const BatchTimesOptions& options);
  ~BatchTimes();

  // Before the first step. INVALID_ARGUMENT: the trace has no such worker.
  absl::Status SetWorker(uint32_t worker);

  // What the step under way is to take at least; 0 without a trace. A worker that
  // makes more steps than its trace has begins it again.
  double LeastSeconds() const;
  // The step under way has taken so long; the next begins. Each line is with the
  // kernel when this returns. A full disk ends the record with an error in the log,
  // and nothing else.
  void Note(double seconds);

 private:
  BatchTimes() = default;
  bool Write(absl::string_view text);

  std::string path_, pace_path_;
  int file_ = -1;
  int64_t whole_bytes_ = 0;  // of whole lines
  BatchTrace pace_;
  uint32_t worker_ = 0;
  uint64_t step_ = 0;
};

}  // namespace foreshard
