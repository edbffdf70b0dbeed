// foreshard export: all shards' parameters as one safetensors file.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/core/exit_code.h"
#include "tools/commands.h"
#include "tools/progress.h"
#include "tools/state/whole_model.h"

namespace foreshard {
namespace {

struct ExportFlags {
  std::vector<std::string> directories;
  std::string output;
  std::string layout = "canonical";
  bool from_journal = false;
  std::optional<uint64_t> step_tolerance;
  bool force = false;
  bool replace = false;
};

struct Figures {
  std::string from;
  uint64_t least_step = 0, greatest_step = 0;
};

// What shards may be apart: in rounds nothing; else a tenth of an epoch, as they write on their own.
uint64_t Tolerance(const ExportFlags& flags, const StoredRun& run) {
  if (flags.step_tolerance.has_value()) return *flags.step_tolerance;
  return run.synchronous ? 0 : std::max<uint64_t>(run.batches_per_epoch / 10, 1);
}

absl::Status CheckSteps(const ExportFlags& flags, const StoredRun& run, const Figures& figures) {
  const uint64_t apart = figures.greatest_step - figures.least_step, tolerance = Tolerance(flags, run);
  if (apart <= tolerance) return absl::OkStatus();
  const std::string text =
      absl::StrCat("the shards' states are ", FormatCount(apart), " steps apart, from ", FormatCount(figures.least_step),
                   " to ", FormatCount(figures.greatest_step), ", and --step-tolerance is ", FormatCount(tolerance));
  if (run.synchronous && !flags.force) {
    return absl::FailedPreconditionError(absl::StrCat(
        text, "; stop the servers with SIGTERM, which leaves checkpoints of one step, or export all the same with --force"));
  }
  std::fprintf(stderr, "foreshard export: warning: %s\n", text.c_str());
  return absl::OkStatus();
}

absl::Status Write(const ExportFlags& flags, const StoredRun& run, const ParameterSource& source,
                   const Figures& figures, LongWork* work) {
  if (absl::Status steps = CheckSteps(flags, run, figures); !steps.ok()) return steps;
  const std::map<std::string, std::string> metadata = {
      {"foreshard.job", run.job.name()},
      {"foreshard.model", run.job.model().name()},
      {"foreshard.step", absl::StrCat(figures.greatest_step)},
      {"foreshard.least_step", absl::StrCat(figures.least_step)},
      {"foreshard.epoch", absl::StrCat(figures.greatest_step / run.batches_per_epoch)},
      {"foreshard.from", figures.from}};
  return ExportModel(run.schema, source, flags.layout == "pytorch" ? Layout::kPyTorch : Layout::kCanonical, metadata,
                     flags.output, flags.replace, work);
}

absl::Status FromCheckpoints(const ExportFlags& flags, const StoredRun& run, Figures* figures, LongWork* work) {
  const auto cut = ChooseCheckpoints(run, Tolerance(flags, run), work);
  if (!cut.ok()) return cut.status();
  *figures = {.from = "checkpoint", .least_step = cut->least_step, .greatest_step = cut->greatest_step};
  const auto source = CheckpointSource::Open(run, cut->checkpoints);
  if (!source.ok()) return source.status();
  return Write(flags, run, **source, *figures, work);
}

absl::Status FromJournal(const ExportFlags& flags, const StoredRun& run, Figures* figures, LongWork* work) {
  figures->from = "journal";
  const auto machines = ReplayRun(run, work);
  if (!machines.ok()) return machines.status();
  for (size_t s = 0; s < machines->size(); ++s) {
    // What the next start does first.
    for (const uint32_t id : (*machines)[s]->CloseCompleteRounds()) {
      std::printf("segment %u: its open round was complete, and is closed\n", id);
    }
    uint64_t step = 0;
    for (const auto& segment : (*machines)[s]->segments()) step = std::max(step, segment->clock());
    figures->least_step = s == 0 ? step : std::min(figures->least_step, step);
    figures->greatest_step = std::max(figures->greatest_step, step);
  }
  const auto source = MachinesSource::Open(*machines);
  if (!source.ok()) return source.status();
  return Write(flags, run, **source, *figures, work);
}

int Export(const ExportFlags& flags) {
  const absl::StatusOr<StoredRun> run = OpenRun(flags.directories, Shards::kAll);
  if (!run.ok()) return Fail("export", run.status());
  const absl::Status layout =
      CheckLayout(run->job.model().name(), flags.layout == "pytorch" ? Layout::kPyTorch : Layout::kCanonical);
  if (!layout.ok()) return Fail("export", layout);
  for (const StateDirectory& shard : run->shards) {
    // A checkpoint is whole whatever came after it; and what a server that runs has is nobody's loss.
    if (shard.lost.empty() || !flags.from_journal) continue;
    std::fprintf(stderr, "foreshard export: warning: %s, unless its server runs: %s\n", shard.folder.c_str(),
                 shard.lost.c_str());
  }
  LongWork work;
  Figures figures;
  const absl::Status done = flags.from_journal ? FromJournal(flags, *run, &figures, &work)
                                               : FromCheckpoints(flags, *run, &figures, &work);
  work.Clear();
  if (!done.ok()) return Fail("export", done);
  std::printf("%s: job '%s', %s elements in %zu tensors, layout %s, step %s, from the %s\n", flags.output.c_str(),
              run->job.name().c_str(), FormatCount(run->schema.elements()).c_str(), run->schema.tensors().size(),
              flags.layout.c_str(), FormatCount(figures.greatest_step).c_str(), figures.from.c_str());
  return kExitDone;
}

}  // namespace

void AddExportCommand(CLI::App& program, int* exit_code) {
  auto flags = std::make_shared<ExportFlags>();
  CLI::App* command = program.add_subcommand(
      "export", "Join all servers' parameters into one safetensors file, from their state directories");
  command->add_option("directories", flags->directories,
                      "State directories of all servers, or a folder that holds them as shard-0, shard-1 ...")
      ->required()
      ->type_name("DIR...");
  command->add_option("--output", flags->output, "The file to write, as model.safetensors")
      ->required()
      ->type_name("FILE");
  command->add_option("--layout", flags->layout,
                      "canonical, as workers have it; or pytorch, which load_state_dict takes: not of cnn and mlp, whose "
                      "files 'foreshard weights' converts")
      ->check(CLI::IsMember({"canonical", "pytorch"}))
      ->capture_default_str();
  command->add_flag("--from-journal", flags->from_journal,
                    "The state after all of the journal, not the newest checkpoint's");
  command->add_option("--step-tolerance", flags->step_tolerance,
                      "Steps that the shards' states may be apart; default: a tenth of an epoch, and 0 for jobs with "
                      "rounds");
  command->add_flag("--force", flags->force, "Jobs with rounds: export states that are further apart all the same");
  command->add_flag("--replace", flags->replace, "Replace the file where it is there");
  command->footer(
      "Of asynchronous jobs, states further apart than --step-tolerance are exported with a warning.\n"
      "Exit status: 0 done, 1 damaged state or the file could not be written, 2 refused: shards missing or too far "
      "apart, states of several runs, 130 interrupted.");
  command->callback([flags, exit_code] { *exit_code = Export(*flags); });
}

}  // namespace foreshard
