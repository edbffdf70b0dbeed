// The local launcher behind `foreshard run`: servers, workers and an evaluator of one
// job as processes on this machine, watched to the end.
//
//   RunOptions options = {.programs = ExecutableFolder(), .folder = "results/first",
//                         .servers = 2, .workers = 4};
//   int exit_code = RunJob(job, options);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/net/credential_flags.h"
#include "foreshard/v1/job.pb.h"

namespace foreshard {

struct RunOptions {
  std::string programs;  // folder of the daemons
  std::string folder;    // results
  uint32_t servers = 1;  // job.servers.shards
  uint32_t workers = 1;
  std::vector<double> slowdowns;  // by worker; those beyond the end: 1
  bool evaluator = true;
  std::string pace;     // trace that all workers follow; empty: none
  bool record = false;  // leaves batches.csv and arrivals-SHARD.csv in the folder
  // Each server keeps its state in a folder of it, shard-0 and so on, and goes on from what is
  // there; empty: nothing is kept.
  std::string state_directory;
  std::string device = "auto";
  CredentialFlags credentials;  // all programs' alike
};

// "0=1,3=2.5" (worker=factor) or "1,1,2" (by worker): one factor a worker.
// INVALID_ARGUMENT: no number, below 1 or above 10000, a worker that there is not or
// that is named twice.
absl::StatusOr<std::vector<double>> ParseSlowdowns(const std::string& text, uint32_t workers);

// Runs a loaded job to its end and returns the exit status of `foreshard run`.
// Progress and the summary go to stdout, what went wrong to stderr. On Ctrl-C,
// SIGTERM and a terminal's hang-up everything is ended, results are still written
// (completed: false), and the status is 130. Credentials that cannot be loaded: 2, before
// anything is started. Call it on the main thread.
int RunJob(const v1::JobSpec& job, const RunOptions& options);

}  // namespace foreshard
