#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/core/batch_trace.h"
#include "common/core/exit_code.h"
#include "common/net/credential_flags.h"
#include "common/net/job_spec.h"
#include "tools/commands.h"
#include "tools/counted.h"
#include "tools/files.h"
#include "tools/run_job.h"

namespace foreshard {
namespace {

constexpr char kDefaultJob[] = "deploy/jobs/fashion_mnist.textproto";

struct RunFlags {
  std::string job;
  std::vector<std::string> overrides;
  uint32_t servers = 0;  // 0: as the job says
  uint32_t workers = 0;
  std::string slowdowns;
  std::string pace;
  bool record = false;
  bool no_evaluator = false;
  std::string results;
  std::string state_directory;
  bool keeps_state = false;  // --state-directory was given
  std::string device = "auto";
  CredentialFlags credentials;
};

// The default job in the current folder, or in the tree the program was built in.
absl::StatusOr<std::string> FindDefaultJob() {
  const std::string beside = absl::StrCat(ExecutableFolder(), "/../../", kDefaultJob);
  for (const std::string& path : {std::string(kDefaultJob), beside}) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) continue;
    return std::filesystem::path(path).lexically_normal().string();
  }
  return absl::NotFoundError(absl::StrCat("no job given, and the default one is neither at ",
                                          kDefaultJob, " nor at ", beside, "; give one with --job"));
}

// Before anything is started: workers would only find it out one by one.
absl::Status CheckPace(const std::string& path, uint32_t workers) {
  if (path.empty()) return absl::OkStatus();
  const absl::StatusOr<BatchTrace> trace = LoadTrace(path);
  if (!trace.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--pace: ", trace.status().message()));
  }
  if (trace->size() >= workers) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--pace: ", path, " has times for ", trace->size(), " workers, and ", workers,
                   " are to run; start fewer or give a trace of more"));
}

int Run(const RunFlags& flags) {
  std::string path = flags.job;
  if (path.empty()) {
    absl::StatusOr<std::string> found = FindDefaultJob();
    if (!found.ok()) return Fail("run", found.status());
    path = *found;
  }
  // Ours first: what --set says is the last word.
  std::vector<std::string> overrides;
  if (flags.servers > 0) overrides.push_back(absl::StrCat("servers.shards=", flags.servers));
  if (flags.workers > 0) overrides.push_back(absl::StrCat("training.workers=", flags.workers));
  overrides.insert(overrides.end(), flags.overrides.begin(), flags.overrides.end());
  absl::StatusOr<v1::JobSpec> job = LoadJobSpec(path, overrides);
  if (!job.ok()) return Fail("run", job.status());

  RunOptions options;
  options.programs = ExecutableFolder();
  options.servers = job->servers().shards();
  options.workers = flags.workers > 0 ? flags.workers : job->training().workers();
  options.evaluator = !flags.no_evaluator;
  options.device = flags.device;
  options.credentials = flags.credentials;
  if (options.workers > job->training().max_workers()) {
    return Fail("run", absl::InvalidArgumentError(absl::StrCat(
                           "--workers: ", options.workers, ": the job has room for ",
                           job->training().max_workers(), "; raise training.max_workers")));
  }
  absl::StatusOr<std::vector<double>> slowdowns = ParseSlowdowns(flags.slowdowns, options.workers);
  if (!slowdowns.ok()) return Fail("run", slowdowns.status());
  options.slowdowns = *slowdowns;
  if (absl::Status status = CheckPace(flags.pace, options.workers); !status.ok()) {
    return Fail("run", status);
  }
  options.pace = flags.pace;
  options.record = flags.record;
  options.state_directory = flags.state_directory;
  // Of `--state-directory=$UNSET` the parser makes the next flag.
  if (flags.keeps_state && (options.state_directory.empty() || options.state_directory.front() == '-')) {
    return Fail("run", absl::InvalidArgumentError(absl::StrCat(
                           "--state-directory: '", options.state_directory,
                           "' is no folder; is a variable not set? Give one, or leave the flag out, and nothing is kept")));
  }
  if (options.record && !options.state_directory.empty()) {
    return Fail("run", absl::InvalidArgumentError(
                           "--record: with --state-directory the servers' journals have the order of what "
                           "they did; give one of the two"));
  }
  options.folder = flags.results;
  if (options.folder.empty()) {
    options.folder = absl::StrCat(
        "results/", job->name(), "-",
        absl::FormatTime("%Y%m%dT%H%M%S", absl::Now(), absl::UTCTimeZone()));
  }

  std::printf("job %s from %s%s: %s by %s, pushes %s, %u epochs\n", job->name().c_str(),
              path.c_str(), flags.job.empty() ? " (the default)" : "", job->model().name().c_str(),
              job->update().rule().c_str(), job->compression().push().c_str(),
              job->training().epochs());
  std::printf("%s, %s%s; results and logs in %s\n", Counted(options.servers, "server").c_str(),
              Counted(options.workers, "worker").c_str(), options.evaluator ? ", an evaluator" : "",
              options.folder.c_str());
  std::fflush(stdout);
  return RunJob(*job, options);
}

}  // namespace

void AddRunCommand(CLI::App& program, int* exit_code) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* run = program.add_subcommand(
      "run", "Run a job on this machine: servers, workers and an evaluator as processes");
  run->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  run->add_option("--job", flags->job,
                  absl::StrCat("The job, a JobSpec as protobuf text (default: ", kDefaultJob, ")"));
  run->add_option("--set", flags->overrides,
                  "Override a field of the job, as in training.epochs=3; may be repeated. Lists "
                  "take commas; an empty value clears the field")
      ->type_name("FIELD=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  run->add_option("--servers", flags->servers, "Servers, one a shard (default: the job's)")
      ->check(WholeNumberFromOne());
  run->add_option("--workers", flags->workers, "Workers (default: the job's)")
      ->check(WholeNumberFromOne());
  run->add_option("--slowdown", flags->slowdowns,
                  "Play unequal machines: a factor of 1 or more a worker, as in 1,1,2.5, or for "
                  "some of them, as in 3=2.5")
      ->type_name("FACTORS");
  run->add_option("--pace", flags->pace,
                  "Make every worker's steps take at least as long as in this trace, lines "
                  "worker,step,seconds: batches.csv of a recorded run")
      ->type_name("FILE");
  run->add_flag("--record", flags->record,
                "Leave DIR/batches.csv, what each batch took, and DIR/arrivals-SHARD.csv, the order "
                "of what each server did");
  CLI::Option* const state =
      run->add_option("--state-directory", flags->state_directory,
                  "Keep journal and checkpoints of the servers in this folder, and go on from what an "
                  "earlier run of the job has left there")
      ->type_name("DIR");
  run->add_flag("--no-evaluator", flags->no_evaluator, "Train without evaluating");
  run->add_option("--results", flags->results,
                  "Folder for results, report and logs (default: results/JOB-TIME)")
      ->type_name("DIR");
  run->add_option("--device", flags->device, "Of workers and evaluator: auto, cpu or cuda[:n]")
      ->capture_default_str();
  flags->credentials.AddTo(*run);
  run->footer("Writes DIR/results.json, DIR/report.html, DIR/job.textproto and DIR/logs/. Ctrl-C "
              "ends all of it. Exit status: 0 done, 1 failed, 2 bad configuration, 3 device lost, "
              "4 fenced, 130 interrupted.");
  run->callback([flags, state, exit_code] {
    flags->keeps_state = state->count() > 0;
    *exit_code = Run(*flags);
  });
}

}  // namespace foreshard
