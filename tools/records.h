// What a recorded run leaves in its results folder: the times of all workers' batches in
// one file, and the order of each server's events.
//
//   RemoveRecords("results/first");                       // those of an earlier run
//   ... --record-batches=PART, --record-arrivals=ArrivalsPath("results/first", shard) ...
//   RETURN_IF_ERROR(MergeBatches(parts, BatchesPath("results/first")));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace foreshard {

std::string BatchesPath(const std::string& folder);                   // batches.csv
std::string ArrivalsPath(const std::string& folder, uint32_t shard);  // arrivals-0.csv

// Removes batches.csv and every arrivals-*.csv of the folder.
void RemoveRecords(const std::string& folder);

// Puts the workers' traces (common/core/batch_trace.h), each with lines of its own
// slot, into one, by slot and step, and removes the parts. Parts that are not there are
// left out: their workers never began. The error says what could not be written, or,
// INVALID_ARGUMENT, why what was written is no whole trace, as when a worker ended
// before its first step.
absl::Status MergeBatches(const std::vector<std::string>& parts, const std::string& path);

}  // namespace foreshard
