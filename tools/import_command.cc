// foreshard import: state directories for another number of servers, or from a model's file.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/core/exit_code.h"
#include "common/net/job_parts.h"
#include "common/net/job_spec.h"
#include "tools/commands.h"
#include "tools/progress.h"
#include "tools/state/reshard.h"
#include "worker/job_setup.h"

namespace foreshard {
namespace {

struct ImportFlags {
  std::string job;
  std::vector<std::string> overrides;
  std::string from;
  std::vector<std::string> from_state;
  std::string layout = "pytorch";
  uint32_t servers = 0;
  bool force = false;
  std::string output;
};

absl::Status Report(const ImportFlags& flags, const StoredRun& to, const absl::StatusOr<Reshaped>& made,
                    LongWork* work) {
  work->Clear();
  if (!made.ok()) return made.status();
  std::printf("%s: %u state directories of job '%s', %s elements in %zu segments\n", flags.output.c_str(),
              to.plan.shards(), to.job.name().c_str(), FormatCount(to.schema.elements()).c_str(),
              to.plan.segments().size());
  if (made->states) {
    std::printf("whole states are moved: parameters, momentum, workers' slots, the dealer\n");
  } else {
    std::printf("parameters are moved to the bit; momentum and all other state of the rule begins anew: %s\n",
                made->why_not.c_str());
  }
  if (made->stopped) {
    std::printf("the job was stopped after %s completed batches, and so it stays: servers that start on this end it; "
                "with --set training.epochs=... it is another job, which begins with these parameters\n",
                FormatCount(made->completed_tickets).c_str());
  } else if (made->dealer) {
    std::printf("training goes on after %s completed batches\n", FormatCount(made->completed_tickets).c_str());
  } else {
    std::printf("training begins with the first batch of the first epoch\n");
  }
  std::printf("start server K with --state-directory %s/shard-K, and every program with --set servers.shards=%u; or\n"
              "foreshard run --job ... --set servers.shards=%u --state-directory %s\n",
              flags.output.c_str(), to.plan.shards(), to.plan.shards(), flags.output.c_str());
  return absl::OkStatus();
}

absl::StatusOr<v1::JobSpec> LoadJob(const ImportFlags& flags) {
  std::vector<std::string> overrides = flags.overrides;
  if (flags.servers > 0) overrides.push_back(absl::StrCat("servers.shards=", flags.servers));
  return LoadJobSpec(flags.job, overrides);
}

absl::Status FromState(const ImportFlags& flags, LongWork* work) {
  // What a server is told while this goes on would be lost with its folder.
  const absl::StatusOr<StoredRun> from = OpenRun(flags.from_state, Shards::kAll, Others::kMustNotWrite);
  if (!from.ok()) {
    return absl::Status(from.status().code(), absl::StrCat("--from-state: ", from.status().message()));
  }
  v1::JobSpec job = from->job;
  if (!flags.job.empty()) {
    auto loaded = LoadJob(flags);
    if (!loaded.ok()) return loaded.status();
    job = *std::move(loaded);
  } else if (flags.servers > 0) {
    job.mutable_servers()->set_shards(flags.servers);
  }
  const absl::StatusOr<StoredRun> to = PlanRun(job, from->schema, from->train_examples);
  if (!to.ok()) return to.status();
  const auto machines = ReplayRun(*from, work);
  if (!machines.ok()) return machines.status();
  for (const auto& shard : *machines) shard->CloseCompleteRounds();
  if (absl::Status one = CheckOneMoment(*from, *machines, WhyStatesCannotMove(*from, *to).empty()); !one.ok()) {
    if (!flags.force) {
      return absl::Status(one.code(), absl::StrCat(one.message(), "; else begin anew with the parameters that there are (foreshard "
                                                   "export, then import --from); --force takes the states as they are"));
    }
    work->Clear();
    std::fprintf(stderr, "foreshard import: warning: %s\n", std::string(one.message()).c_str());
  } else {
    for (const StateDirectory& shard : from->shards) {
      if (shard.lost.empty()) continue;
      work->Clear();
      std::fprintf(stderr, "foreshard import: warning: %s: %s\n", shard.folder.c_str(), shard.lost.c_str());
    }
  }
  const auto source = MachinesSource::Open(*machines);
  if (!source.ok()) return source.status();
  const MovedState moved = {.run = &*from, .machines = &*machines};
  return Report(flags, *to, WriteRun(*to, **source, &moved, flags.output, work), work);
}

absl::Status FromFile(const ImportFlags& flags, LongWork* work) {
  if (flags.job.empty()) {
    return absl::InvalidArgumentError("--from: --job is needed too, since the file does not say how it is trained");
  }
  const absl::StatusOr<v1::JobSpec> job = LoadJob(flags);
  if (!job.ok()) return job.status();
  const auto loaded = LoadJobModel(*job);
  if (!loaded.ok()) return loaded.status();
  const absl::StatusOr<StoredRun> to = PlanRun(*job, loaded->model->schema(), loaded->train->examples());
  if (!to.ok()) return to.status();
  const auto source =
      FileSource::Open(to->schema, flags.from, flags.layout == "pytorch" ? Layout::kPyTorch : Layout::kCanonical);
  if (!source.ok()) return source.status();
  if (absl::Status known = CheckLayout(job->model().name(), (*source)->layout()); !known.ok()) return known;
  return Report(flags, *to, WriteRun(*to, **source, nullptr, flags.output, work), work);
}

int Import(const ImportFlags& flags) {
  LongWork work;
  const absl::Status done = flags.from.empty() ? FromState(flags, &work) : FromFile(flags, &work);
  work.Clear();
  return done.ok() ? kExitDone : Fail("import", done);
}

}  // namespace

void AddImportCommand(CLI::App& program, int* exit_code) {
  auto flags = std::make_shared<ImportFlags>();
  CLI::App* command = program.add_subcommand(
      "import", "Make state directories: for another number of servers, or from a safetensors file");
  command->add_option("--job", flags->job, "The job; with --from-state, that run's where it is left out");
  command->add_option("--set", flags->overrides, "Override a field of --job, as in --set training.epochs=3")
      ->type_name("FIELD=VALUE")
      ->expected(1)
      ->take_all();
  command->add_option("--servers", flags->servers, "For so many servers; default: the job's servers.shards")
      ->check(WholeNumberFromOne());
  CLI::Option* from =
      command->add_option("--from", flags->from, "A safetensors file with all of the model's tensors")->type_name("FILE");
  CLI::Option* from_state =
      command
          ->add_option("--from-state", flags->from_state,
                       "State directories of all servers, or a folder with shard-0, shard-1 ...; none may be in use")
          ->type_name("DIR...")
          ->excludes(from);
  command->add_option("--layout", flags->layout,
                      "Of --from, where the file does not say it: pytorch or canonical")
      ->check(CLI::IsMember({"canonical", "pytorch"}))
      ->capture_default_str();
  command->add_flag("--force", flags->force,
                    "Jobs with rounds: import states of different moments, or that lack something, all the same")
      ->needs(from_state);
  command->add_option("--output", flags->output, "Folder to make shard-0, shard-1 ... in")->required()->type_name("DIR");
  command->footer(
      "Parameters go over to the bit. Momentum and all other state goes over where both plans cut the model into the\n"
      "same segments; else it begins anew, and what is printed says so. Jobs with rounds then begin with their first\n"
      "batch, others go on after those that are complete. Rounds of several servers are refused where their states are of\n"
      "different moments, or may lack what was acknowledged; of asynchronous jobs the latter is a warning.\n"
      "Exit status: 0 done, 1 damaged state or folders that are there or can't be written, 2 refused, 130 interrupted.");
  command->callback([flags, from, from_state, exit_code] {
    if (from->count() + from_state->count() == 0) throw CLI::RequiredError("--from or --from-state");
    *exit_code = Import(*flags);
  });
}

}  // namespace foreshard
