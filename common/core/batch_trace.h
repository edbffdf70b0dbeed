// How long the batches of a fleet took: recorded by workers, followed by workers that
// are paced, and by the simulator's clock.
//
//   BatchTrace trace = LoadTrace("results/first/batches.csv").value();
//   double seconds = trace[worker][step % trace[worker].size()];
//
// File: the line "worker,step,seconds", then one line a batch, in any order. Workers
// and each worker's steps are numbered from 0 without holes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace foreshard {

// Seconds of consecutive batches, by worker.
using BatchTrace = std::vector<std::vector<double>>;

// NOT_FOUND: no such file. INVALID_ARGUMENT, naming file and line: not three numbers, a
// time that is not above 0 or beyond 1e6 s, a worker or step that is missing or there twice,
// no batch at all.
absl::StatusOr<BatchTrace> LoadTrace(const std::string& path);
// The same of a file's content; `name` stands for it in errors.
absl::StatusOr<BatchTrace> ParseTrace(absl::string_view text, absl::string_view name);

// By worker, then step; what ParseTrace reads.
std::string PrintTrace(const BatchTrace& trace);
// The parts of it, for those who write a trace batch by batch. Times keep nine digits.
inline constexpr absl::string_view kTraceHeader = "worker,step,seconds\n";
std::string PrintTraceLine(uint32_t worker, uint64_t step, double seconds);

}  // namespace foreshard
