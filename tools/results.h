// The results of a run as files: results.json, which other programs read
// (README.md, "results.json"), report.html and job.textproto.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "foreshard/v1/job.pb.h"
#include "nlohmann/json.hpp"
#include "tools/run_figures.h"

namespace foreshard {

struct RunOutcome {
  // Every batch of every epoch was consumed: applied, discarded, or skipped because its gradient
  // was not finite.
  bool completed = false;
  double seconds = 0;      // from the start of the workers to the end of training
  std::string ended = "completed";  // why it ended, in words
  uint32_t servers = 0;
  uint32_t workers = 0;
};

nlohmann::ordered_json ResultsJson(const v1::JobSpec& job, const RunOutcome& outcome,
                                   const History& history);

// Writes FOLDER/results.json and FOLDER/report.html, each whole or not at all.
// Errors as WriteFileAtomically.
absl::Status WriteResults(const std::string& folder, const v1::JobSpec& job,
                          const RunOutcome& outcome, const History& history);

}  // namespace foreshard
