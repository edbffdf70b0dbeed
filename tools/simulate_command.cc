// foreshard simulate: a study, or one job, on virtual workers.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/core/exit_code.h"
#include "common/net/job_spec.h"
#include "glog/logging.h"
#include "tools/commands.h"
#include "tools/files.h"
#include "tools/interrupt.h"
#include "tools/simulate/runner.h"
#include "tools/simulate/study.h"
#include "tools/simulate/study_display.h"
#include "tools/simulate/study_results.h"

namespace foreshard {
namespace {

struct SimulateFlags {
  std::string study;
  std::string job;
  std::string results;
  uint32_t jobs = 0;  // 0: all cores
  std::vector<std::string> overrides;
  std::vector<std::string> rules;
  std::vector<uint32_t> workers;
  std::string machines;
  std::string trace;
  bool list = false;
};

uint32_t CoresOfThisProcess() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;
  return std::max(1, CPU_COUNT(&cores));
}

absl::Status CheckFlags(const SimulateFlags& flags) {
  if (flags.study.empty() == flags.job.empty()) {
    return absl::InvalidArgumentError(
        flags.job.empty()
            ? "give a study, as in deploy/jobs/studies/quick.textproto, or a job with --job"
            : "a study has its own job; give either a study or --job");
  }
  if (!flags.study.empty() && (!flags.machines.empty() || !flags.trace.empty())) {
    return absl::InvalidArgumentError(
        "--machines and --trace belong to --job; a study says so in its file");
  }
  if (!flags.job.empty() && !flags.rules.empty()) {
    return absl::InvalidArgumentError(
        "--rule chooses among a study's variants; with --job say --set update.rule=NAME");
  }
  if (!flags.machines.empty() && !flags.trace.empty()) {
    return absl::InvalidArgumentError("--trace has its machines; take --machines out");
  }
  return absl::OkStatus();
}

// A study of one job: its seed, its rule.
absl::StatusOr<Study> StudyOfJob(const SimulateFlags& flags) {
  absl::StatusOr<v1::JobSpec> job = LoadJobSpec(flags.job, flags.overrides);
  if (!job.ok()) return job.status();
  v1::StudySpec spec;
  spec.set_name(absl::StrCat(job->name().substr(0, 90), "-simulated"));
  spec.set_job(std::filesystem::absolute(flags.job).string());
  for (const std::string& change : flags.overrides) {
    // These two are lists of the study, below.
    if (absl::StartsWith(change, "seed=") || absl::StartsWith(change, "training.workers=")) continue;
    spec.add_set(change);
  }
  spec.add_rules()->set_label(job->update().rule());
  if (flags.workers.empty()) spec.add_workers(job->training().workers());
  for (uint32_t count : flags.workers) spec.add_workers(count);
  spec.add_seeds(job->seed());
  if (!flags.trace.empty()) {
    spec.add_machines("trace");
    spec.set_trace(std::filesystem::absolute(flags.trace).string());
  } else if (!flags.machines.empty()) {
    spec.add_machines(flags.machines);
  }
  return Study::Create(std::move(spec), "", flags.job);
}

int Simulate(const SimulateFlags& flags) {
  if (absl::Status status = CheckFlags(flags); !status.ok()) return Fail("simulate", status);
  absl::StatusOr<Study> study =
      flags.job.empty()
          ? Study::Load(flags.study,
                        {.set = flags.overrides, .rules = flags.rules, .workers = flags.workers})
          : StudyOfJob(flags);
  if (!study.ok()) return Fail("simulate", study.status());
  if (flags.list) {
    std::fputs(StudyList(*study).c_str(), stdout);
    return kExitDone;
  }
  FLAGS_minloglevel = google::GLOG_WARNING;
  const std::string folder =
      flags.results.empty() ? absl::StrCat("results/", study->spec().name()) : flags.results;
  if (absl::Status status = PrepareFolder(folder); !status.ok()) {
    Fail("simulate", status);
    return kExitFailed;
  }
  absl::StatusOr<FolderLock> lock = FolderLock::Take(folder);
  if (!lock.ok()) {
    Fail("simulate", lock.status());
    return kExitFailed;
  }

  if (absl::Status status = ClaimResultsFolder(*study, folder); !status.ok()) {
    Fail("simulate", status);
    return kExitFailed;
  }

  Interrupt interrupt;
  StudyDisplay display(stdout);
  RunnerOptions options = {.folder = folder,
                           .jobs = JobsOf(*study, flags.jobs > 0 ? flags.jobs
                                                                 : CoresOfThisProcess()),
                           .observer = &display};
  bool said = false;
  options.interrupted = [&] {
    if (interrupt.count() > 1) _exit(kExitInterrupted);
    if (interrupt.requested() && !std::exchange(said, true)) {
      display.Notice("interrupted: runs under way end (again: at once)");
    }
    return interrupt.requested();
  };
  const StudyTotals totals = StudyPlan(*study).Totals();
  display.Notice(absl::StrCat("study ", study->spec().name(), ": ",
                              totals.search_runs + totals.full_runs, " runs, ", options.jobs,
                              " at a time; results in ", folder));
  absl::StatusOr<StudyOutcome> outcome = RunStudy(*study, options);
  display.Close();
  if (!outcome.ok()) return Fail("simulate", outcome.status());

  if (absl::Status status = WriteStudyResults(*study, outcome->results, outcome->failed, folder);
      !status.ok()) {
    Fail("simulate", status);
    return kExitFailed;
  }
  const StudyFigures& figures = outcome->figures;
  std::fputs(
      StudySummary(*study, StudyEntries(*study, outcome->results, outcome->failed)).c_str(), stdout);
  std::printf("%d of %d runs done%s\n  results  %s/results.json\n  plots    %s/report.html\n",
              static_cast<int>(figures.done_runs - outcome->failed.size()),
              static_cast<int>(figures.total_runs),
              figures.resumed_runs > 0
                  ? absl::StrCat(", ", figures.resumed_runs, " of them earlier").c_str()
                  : "",
              folder.c_str(), folder.c_str());
  std::fflush(stdout);
  for (const std::string& failure : outcome->failures) {
    std::fprintf(stderr, "foreshard simulate: %s\n", failure.c_str());
  }
  if (outcome->interrupted) {
    std::fprintf(stderr, "foreshard simulate: interrupted; the same command goes on from here\n");
    return kExitInterrupted;
  }
  return outcome->failures.empty() ? kExitDone : ExitCodeFor(outcome->first_failure);
}

}  // namespace

void AddSimulateCommand(CLI::App& program, int* exit_code) {
  auto flags = std::make_shared<SimulateFlags>();
  CLI::App* simulate = program.add_subcommand(
      "simulate", "Run a study, or one job, on virtual workers: real gradients in virtual time");
  simulate->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  simulate->add_option("study", flags->study,
                       "A study, a StudySpec as protobuf text; ready ones are in "
                       "deploy/jobs/studies");
  simulate->add_option("--job", flags->job, "One job, a JobSpec, instead of a study");
  simulate->add_option("--results", flags->results,
                       "Folder for results, report and finished runs (default: results/NAME). A "
                       "study that was interrupted goes on there")
      ->type_name("DIR");
  simulate->add_option("--jobs", flags->jobs, "Runs at a time, at most 256 (default: one a core)")
      ->check(WholeNumberFromOne());
  simulate->add_option("--set", flags->overrides,
                       "Override a field of the job in all runs, as in training.epochs=3; may be "
                       "repeated. Lists take commas; an empty value clears the field")
      ->type_name("FIELD=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  simulate->add_option("--rule", flags->rules,
                       "Only the variant of this label, as if the study named no other but the "
                       "baseline; may be repeated")
      ->type_name("LABEL")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  simulate->add_option("--workers", flags->workers,
                       "Only these numbers of workers, as in 8,32; with --job: the numbers "
                       "(default: the job's)")
      ->type_name("N,...")
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  simulate->add_option("--machines", flags->machines, "With --job: equal (default) or unequal")
      ->check(CLI::IsMember({"equal", "unequal"}));
  simulate->add_option("--trace", flags->trace,
                       "With --job: batch times of a real run, \"worker,step,seconds\" lines")
      ->type_name("FILE");
  simulate->add_flag("--list", flags->list, "Only say which runs there are");
  simulate->footer(
      "Writes DIR/results.json, results.csv, curves.csv, search.json, timing.json, report.html, "
      "charts/*.svg, study.textproto and runs/*.json. Ctrl-C ends it; the same command goes on. "
      "Exit status: 0 done (also where runs diverged), 1 failed, 2 bad configuration, 130 "
      "interrupted.");
  simulate->callback([flags, exit_code] { *exit_code = Simulate(*flags); });
}

}  // namespace foreshard
