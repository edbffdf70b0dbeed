// The report of a run: one HTML page with its curves that opens without a network.
#pragma once

#include <string>

#include "foreshard/v1/job.pb.h"
#include "tools/results.h"
#include "tools/run_figures.h"

namespace foreshard {

// The whole page: summary, curves (accuracy, loss, staleness, throughput) as inline
// SVG, workers, evaluations, the job. No script, nothing fetched.
std::string ReportHtml(const v1::JobSpec& job, const RunOutcome& outcome, const History& history);

}  // namespace foreshard
