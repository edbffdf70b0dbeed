// foreshard replay: a run made again from its journal, event by event.
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/core/exit_code.h"
#include "server/checkpoint_files.h"
#include "server/journal_file.h"
#include "tools/commands.h"
#include "tools/message_json.h"
#include "tools/state/event_text.h"
#include "tools/state/long_work.h"
#include "tools/state/replay.h"

namespace foreshard {
namespace {

struct ReplayFlags {
  std::vector<std::string> directories;
  std::optional<uint64_t> checkpoint, until;
  bool from_start = false;
  bool print = false;
  bool json = false;
  bool compare = false;
};

void PrintLine(const nlohmann::ordered_json& json) {
  std::printf("%s", JsonText(json, -1).c_str());
}

// Whether the journal has event 1.
bool JournalIsWhole(const Storage& storage) {
  const auto files = ListJournalFiles(storage);
  if (!files.ok() || files->empty()) return false;
  const auto bytes = storage.ReadAt(files->front().name, 0, kJournalHeaderBytes);
  if (!bytes.ok()) return false;
  const auto header = ParseJournalHeader(AsBytes(*bytes));
  return header.ok() && header->first_number == 1;
}

// --compare: the newest checkpoint, and where a replay that gets to it begins.
absl::Status ChooseComparison(const ReplayFlags& flags, const StateDirectory& shard,
                              std::unique_ptr<Checkpoint>* newest, RecoveryOptions* options) {
  auto opened = Checkpoint::OpenNewest(*shard.storage, shard.identity);
  if (!opened.ok()) return opened.status();
  *newest = *std::move(opened);
  if (flags.from_start) return absl::OkStatus();
  if (!options->checkpoint.empty()) {
    if (options->checkpoint != (*newest)->name()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("--compare: ", (*newest)->name(), " is the newest; begin with an older one"));
  }
  if (JournalIsWhole(*shard.storage)) {
    options->from_start = true;
    return absl::OkStatus();
  }
  const auto names = Checkpoint::List(*shard.storage);
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (name == (*newest)->name()) break;
    const auto older = Checkpoint::Open(*shard.storage, name, shard.identity);
    if (!older.ok() || (*older)->manifest().about.journal_file == 0) continue;
    options->checkpoint = name;
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "--compare: in ", shard.storage->Describe(""), " neither an older checkpoint than ", (*newest)->name(),
      " nor the journal's first event is left; keep more with durability.keep_checkpoints or .keep_journal"));
}

// Returns whether all is the same.
absl::StatusOr<bool> ReplayShard(const ReplayFlags& flags, const StoredRun& run, const StateDirectory& shard,
                                 LongWork* work) {
  auto made = ShardMachines::Create(run, shard.shard);
  if (!made.ok()) return made.status();
  ShardMachines& machines = **made;
  RecoveryOptions options = {.until = flags.until, .from_start = flags.from_start};
  if (flags.checkpoint.has_value()) options.checkpoint = absl::StrFormat("checkpoint.%010d", *flags.checkpoint);
  options.proceed = [&](const Event& event, uint64_t) {
    return work->Proceed(absl::StrCat(shard.folder, ": replaying, event"), event.number);
  };
  std::unique_ptr<Checkpoint> newest;
  std::map<uint32_t, std::string> differences;
  size_t compared = 0;
  if (flags.compare) {
    if (absl::Status chosen = ChooseComparison(flags, shard, &newest, &options); !chosen.ok()) return chosen;
    std::map<uint32_t, uint64_t> numbers;
    for (const CheckpointManifest::State& state : newest->manifest().states) numbers[state.segment] = state.number;
    machines.WatchAt(std::move(numbers), [&](uint32_t machine, const std::string& state) {
      const auto expected = newest->ReadState(machine);
      if (!expected.ok()) return expected.status();
      ++compared;
      const std::string difference = Difference(machines, machine, state, expected->state);
      if (!difference.empty()) differences[machine] = difference;
      return absl::OkStatus();
    });
  }
  if (flags.print) {
    machines.set_observer([&](const Event& event, const Effect& effect) {
      work->Clear();
      if (flags.json) {
        PrintLine(EventJson(shard.shard, event, effect));
      } else {
        std::printf("%s\n", EventText(event, effect).c_str());
      }
    });
  }
  const absl::StatusOr<Recovered> recovered = Recover(*shard.storage, shard.identity, &machines, options);
  work->Clear();
  if (!recovered.ok()) return recovered.status();
  const uint64_t last = recovered->next_number - 1;
  if (flags.compare) {
    if (absl::Status finished = machines.FinishWatch(last); !finished.ok()) return finished;
  }
  const std::string from = recovered->checkpoint_name.empty() ? "the first event" : recovered->checkpoint_name;
  if (!flags.json) {
    for (const PassedOver& passed : recovered->passed_over) {
      std::printf("%s is passed over: %s\n", passed.name.c_str(), std::string(passed.why.message()).c_str());
    }
    std::printf("%s (shard %u): from %s, %s events replayed, up to event %s\n", shard.folder.c_str(), shard.shard,
                from.c_str(), absl::StrCat(recovered->replayed).c_str(), absl::StrCat(last).c_str());
  }
  for (const auto& segment : machines.segments()) {
    const uint32_t id = segment->plan().id;
    const bool complete = machines.options(id).synchronous && segment->RoundComplete();
    if (flags.json) {
      nlohmann::ordered_json json = {{"shard", shard.shard}, {"segment", id}, {"version", segment->version()},
                                     {"clock", segment->clock()}, {"initialised", segment->initialised()},
                                     {"parameters_xxh3", absl::StrFormat("%016x", ParametersChecksum(*segment))}};
      if (machines.options(id).synchronous) json["open_round"] = segment->open_round();
      if (machines.options(id).synchronous) json["round_complete"] = complete;
      if (differences.contains(id)) json["difference"] = differences[id];
      PrintLine(json);
      continue;
    }
    std::printf("  segment %u: version %s, clock %s, parameters %016llx\n", id, absl::StrCat(segment->version()).c_str(),
                absl::StrCat(segment->clock()).c_str(),
                static_cast<unsigned long long>(ParametersChecksum(*segment)));
    if (complete) {
      std::printf("    its round %s is complete; the next start closes it\n", absl::StrCat(segment->open_round()).c_str());
    }
  }
  if (machines.dealer() != nullptr) {
    const Dealer& dealer = *machines.dealer();
    if (flags.json) {
      PrintLine({{"shard", shard.shard}, {"segment", "dealer"}, {"completed_tickets", dealer.completed_tickets()},
                 {"total_tickets", dealer.total_tickets()}});
    } else {
      std::printf("  dealer: %s of %s batches complete\n", absl::StrCat(dealer.completed_tickets()).c_str(),
                  absl::StrCat(dealer.total_tickets()).c_str());
    }
  }
  if (!flags.compare) return true;
  for (const auto& [machine, difference] : differences) {
    std::fprintf(stderr, "foreshard replay: %s: %s is not as in %s: %s\n", shard.folder.c_str(),
                 machine == kDealerSegment ? "the dealer" : absl::StrCat("segment ", machine).c_str(),
                 newest->name().c_str(), difference.c_str());
  }
  const size_t states = newest->manifest().states.size();
  if (compared < states) {
    return absl::DataLossError(absl::StrCat(shard.folder, ": the replay ended with event ", last, ", before ",
                                            states - compared, " of ", states, " states of ", newest->name(),
                                            " were reached; the checkpoint is ahead of the journal, or --until is too low"));
  }
  if (differences.empty() && !flags.json) {
    std::printf("  all %zu states are those of %s, to the bit\n", states, newest->name().c_str());
  }
  return differences.empty();
}

int Replay(const ReplayFlags& flags) {
  const absl::StatusOr<StoredRun> run = OpenRun(flags.directories, Shards::kAny);
  if (!run.ok()) return Fail("replay", run.status());
  if (run->shards.size() > 1 && (flags.until.has_value() || flags.checkpoint.has_value())) {
    return Fail("replay", absl::InvalidArgumentError(absl::StrCat(
                              flags.until.has_value() ? "--until" : "--checkpoint", ": each of the ",
                              run->shards.size(), " servers numbers for itself; give one directory")));
  }
  LongWork work;
  bool same = true;
  for (const StateDirectory& shard : run->shards) {
    const absl::StatusOr<bool> replayed = ReplayShard(flags, *run, shard, &work);
    work.Clear();
    std::fflush(stdout);
    if (!replayed.ok()) return Fail("replay", replayed.status());
    same &= *replayed;
  }
  return same ? kExitDone : kExitFailed;
}

}  // namespace

void AddReplayCommand(CLI::App& program, int* exit_code) {
  auto flags = std::make_shared<ReplayFlags>();
  CLI::App* command =
      program.add_subcommand("replay", "Make servers' state again from checkpoint and journal, bit for bit");
  command->add_option("directories", flags->directories,
                      "State directories of servers, or a folder that holds them as shard-0, shard-1 ...")
      ->required()
      ->type_name("DIR...");
  CLI::Option* checkpoint =
      command->add_option("--checkpoint", flags->checkpoint, "Begin with this one; default: the newest that is whole")
          ->type_name("NUMBER");
  command->add_flag("--from-start", flags->from_start, "Begin with the journal's first event, where it is there")
      ->excludes(checkpoint);
  command->add_option("--until", flags->until, "Stop after this event")->type_name("NUMBER");
  command->add_flag("--print", flags->print, "Print each event and what it did");
  command->add_flag("--json", flags->json, "Print as JSON, one object a line");
  command->add_flag("--compare", flags->compare,
                    "Compare with the newest checkpoint; begins with the journal's first event or the oldest checkpoint");
  command->footer(
      "Changes nothing. Ends with a checksum (XXH3-64) of each segment's parameters.\n"
      "Exit status: 0 done, 1 damaged, or --compare found a difference, 2 refused, 130 interrupted.");
  command->callback([flags, exit_code] { *exit_code = Replay(*flags); });
}

}  // namespace foreshard
