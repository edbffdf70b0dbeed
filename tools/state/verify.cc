#include "tools/state/verify.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/checkpoint_files.h"
#include "server/checkpoint_format.h"
#include "server/journal_file.h"
#include "tools/progress.h"
#include "tools/state/replay.h"

namespace foreshard {
namespace {

constexpr uint64_t kCompareElements = 1 << 20;
constexpr int kTries = 4;

double AgeSeconds(const std::string& path) {
  std::error_code error;
  const auto written = std::filesystem::last_write_time(path, error);
  if (error) return 0;
  return std::max(
      0.0, std::chrono::duration<double>(std::filesystem::file_time_type::clock::now() - written).count());
}

// The values of the checkpoint's safetensors file must be its segments', bit for bit.
absl::Status CompareParameters(const StoredRun& run, const StateDirectory& shard, const Checkpoint& checkpoint,
                               const ShardMachines& machines, WorkWatch* watch) {
  const auto reader = checkpoint.OpenParameters();
  if (!reader.ok()) return reader.status();
  const auto damaged = [&](const auto&... what) {
    return absl::DataLossError(absl::StrCat(shard.storage->Describe(checkpoint.name()), "/",
                                            ParametersFileName(shard.shard, run.plan.shards()), ": ", what...));
  };
  // In the order of the flat vector, and so are the segments.
  size_t at_segment = 0;
  uint64_t at = 0;  // in it
  std::vector<float> values;
  for (const SafetensorsTensor& expected : ShardTensors(run.schema, run.plan, shard.shard)) {
    const SafetensorsTensor* tensor = reader->Find(expected.name);
    if (tensor == nullptr || tensor->shape != expected.shape) {
      return damaged("tensor ", expected.name, " is missing or has another shape");
    }
    for (uint64_t first = 0; first < tensor->elements;) {
      if (!watch->Proceed(absl::StrCat(shard.folder, ": comparing parameters of ", checkpoint.name(), ", segment"),
                          at_segment)) {
        return WorkWatch::Cancelled();
      }
      if (at_segment >= machines.segments().size()) return damaged("more values than the segments have");
      const absl::Span<const float> theta = machines.segments()[at_segment]->theta();
      const uint64_t count = std::min({kCompareElements, tensor->elements - first, theta.size() - at});
      values.resize(count);
      if (absl::Status read = reader->ReadFloats(*tensor, first, absl::MakeSpan(values)); !read.ok()) return read;
      for (uint64_t k = 0; k < count; ++k) {
        if (std::memcmp(&values[k], &theta[at + k], sizeof(float)) == 0) continue;
        return damaged("tensor ", expected.name, ", element ", first + k, ": ", values[k], ", and ", theta[at + k],
                       " in the state of segment ", machines.segments()[at_segment]->plan().id);
      }
      first += count;
      at += count;
      if (at == theta.size()) {
        ++at_segment;
        at = 0;
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckStates(const StoredRun& run, const StateDirectory& shard, const std::string& name,
                         ShardMachines* machines, WorkWatch* watch) {
  const auto checkpoint = Checkpoint::Open(*shard.storage, name, shard.identity);
  if (!checkpoint.ok()) return checkpoint.status();
  machines->Begin((*checkpoint)->manifest());
  for (const uint32_t machine : machines->machines()) {
    if (!watch->Proceed(absl::StrCat(shard.folder, ": loading states of ", name, ", segment"), machine)) {
      return WorkWatch::Cancelled();
    }
    const auto saved = (*checkpoint)->ReadState(machine);
    // Nobody may have registered yet.
    if (machine == kDealerSegment && absl::IsNotFound(saved.status())) continue;
    if (!saved.ok()) return saved.status();
    if (absl::Status loaded = machines->Load(machine, saved->state); !loaded.ok()) {
      return absl::DataLossError(
          absl::StrCat(shard.storage->Describe(name), ", ", internal::kStateName, ": ", loaded.message()));
    }
  }
  return CompareParameters(run, shard, **checkpoint, *machines, watch);
}

bool IsListed(const StateDirectory& shard, const std::string& name) {
  const auto names = Checkpoint::List(*shard.storage);
  return !names.ok() || std::count(names->begin(), names->end(), name) > 0;
}

uint64_t FirstJournalFile(const Storage& storage) {
  const auto names = ListJournalFiles(storage);
  return names.ok() && !names->empty() ? names->front().sequence : 0;
}

absl::Status ReadJournal(const StateDirectory& shard, JournalReport* report, WorkWatch* watch) {
  *report = {};
  const auto names = ListJournalFiles(*shard.storage);
  if (!names.ok()) {
    report->status = names.status();
    return absl::OkStatus();
  }
  report->files = names->size();
  for (const JournalFileName& name : *names) {
    const auto bytes = shard.storage->Size(name.name);
    if (bytes.ok()) report->bytes += *bytes;
  }
  auto reader = JournalReader::Open(*shard.storage, shard.identity, 0);
  report->status = reader.status();
  while (report->status.ok()) {
    const auto event = (*reader)->Next();
    report->status = event.status();
    if (!event.ok() && (*reader)->beyond_gap().has_value() && report->events > 0) {
      const uint64_t beyond = *(*reader)->beyond_gap();
      report->gaps.emplace_back(report->last_number + 1, beyond - 1);
      reader = JournalReader::Open(*shard.storage, shard.identity, beyond);
      report->status = reader.status();
      continue;
    }
    if (!event.ok()) break;
    if (!event->has_value()) {
      report->torn = (*reader)->end().torn;
      break;
    }
    if (report->events++ == 0) report->first_number = (*event)->number;
    report->last_number = (*event)->number;
    if (!watch->Proceed(absl::StrCat(shard.folder, ": reading the journal, event"), report->last_number)) {
      return WorkWatch::Cancelled();
    }
  }
  return absl::OkStatus();
}

// Whether the newest whole checkpoint and the journal join up.
absl::Status CheckRecovery(const ShardReport& report) {
  const JournalReport& journal = report.journal;
  if (!journal.status.ok()) return absl::DataLossError("the journal cannot be read to its end");
  const CheckpointReport* newest = nullptr;
  for (const CheckpointReport& checkpoint : report.checkpoints) {
    if (checkpoint.status.ok()) newest = &checkpoint;
  }
  if (newest == nullptr) {
    if (!report.checkpoints.empty()) return absl::DataLossError("there are checkpoints, and none is whole");
    if (journal.events == 0 || journal.first_number == 1) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat("there is no checkpoint, and the journal begins with event ", journal.first_number));
  }
  const CheckpointManifest& manifest = *newest->manifest;
  if (manifest.about.journal_file == 0) return absl::OkStatus();
  const uint64_t from = manifest.first_number(), through = manifest.next_number() - 1;
  const uint64_t first = journal.gaps.empty() ? journal.first_number : journal.gaps.back().second + 1;
  if (journal.events > 0 && first > from) {
    return absl::DataLossError(absl::StrCat("events ", from, " to ", first - 1, " are missing between ",
                                            newest->name, " and the journal"));
  }
  if (from <= through && journal.last_number < through) {
    return absl::DataLossError(absl::StrCat(newest->name, " has states up to event ", through,
                                            ", and the journal ends with ", journal.last_number));
  }
  return absl::OkStatus();
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

}  // namespace

bool ShardReport::damaged() const {
  const auto broken = [](const CheckpointReport& checkpoint) { return !checkpoint.status.ok(); };
  return !journal.status.ok() || !recovery.ok() || std::any_of(checkpoints.begin(), checkpoints.end(), broken);
}

absl::StatusOr<std::vector<CheckpointReport>> ListCheckpoints(const StateDirectory& shard, bool whole,
                                                              WorkWatch* watch) {
  const auto names = Checkpoint::List(*shard.storage);
  if (!names.ok()) return names.status();
  std::vector<CheckpointReport> reports;
  for (const std::string& name : *names) {
    if (!watch->Proceed(absl::StrCat(shard.folder, ": reading ", name, ", checkpoint"), reports.size() + 1)) {
      return WorkWatch::Cancelled();
    }
    CheckpointReport report = {.name = name};
    auto manifest = ReadManifest(*shard.storage, name);
    report.status = manifest.status();
    report.age_seconds =
        AgeSeconds(shard.storage->Describe(absl::StrCat(name, "/", internal::kManifestName)));
    if (manifest.ok()) {
      for (const CheckpointManifest::File& file : manifest->files) report.bytes += file.bytes;
      report.manifest = *std::move(manifest);
      if (whole) report.status = Checkpoint::Open(*shard.storage, name, shard.identity).status();
    }
    // The server has removed it meanwhile.
    if (!report.status.ok() && !IsListed(shard, name)) continue;
    reports.push_back(std::move(report));
  }
  return reports;
}

absl::StatusOr<ShardReport> VerifyShard(const StoredRun& run, const StateDirectory& shard, WorkWatch* watch) {
  ShardReport report = {.folder = shard.folder, .shard = shard.shard, .lost = shard.lost};
  const auto folders = internal::ListCheckpointFolders(*shard.storage);
  if (!folders.ok()) return folders.status();
  for (const internal::CheckpointFolder& folder : *folders) {
    if (!folder.suffix.empty()) report.unfinished.push_back(folder.name);
  }
  auto machines = ShardMachines::Create(run, shard.shard);
  if (!machines.ok()) return machines.status();
  // A server that writes checkpoints removes older files of the journal: then all is looked at again.
  for (int tries = 1;; ++tries) {
    const uint64_t first = FirstJournalFile(*shard.storage);
    auto checkpoints = ListCheckpoints(shard, false, watch);
    if (!checkpoints.ok()) return checkpoints.status();
    report.checkpoints.clear();
    for (CheckpointReport& checkpoint : *checkpoints) {
      if (checkpoint.status.ok()) {
        checkpoint.status = CheckStates(run, shard, checkpoint.name, machines->get(), watch);
        if (absl::IsCancelled(checkpoint.status)) return checkpoint.status;
      }
      if (!checkpoint.status.ok() && !IsListed(shard, checkpoint.name)) continue;
      report.checkpoints.push_back(std::move(checkpoint));
    }
    if (absl::Status read = ReadJournal(shard, &report.journal, watch); !read.ok()) return read;
    report.recovery = CheckRecovery(report);
    if (!report.damaged() || tries == kTries || first == FirstJournalFile(*shard.storage)) break;
  }
  return report;
}

std::string CheckpointText(const CheckpointReport& report) {
  std::string text = report.name;
  if (report.manifest.has_value()) {
    absl::StrAppend(&text, ": step ", report.manifest->about.step, ", epoch ", report.manifest->about.epoch, ", ",
                    FormatBytes(static_cast<double>(report.bytes)), ", ", FormatDuration(report.age_seconds), " ago");
  } else {
    absl::StrAppend(&text, ":");
  }
  if (!report.status.ok()) absl::StrAppend(&text, " DAMAGED: ", Message(report.status));
  return text;
}

std::string ReportText(const ShardReport& report) {
  std::string text = absl::StrCat(report.folder, " (shard ", report.shard, "): ", report.damaged() ? "DAMAGED" : "whole",
                                  "\n");
  for (const CheckpointReport& checkpoint : report.checkpoints) {
    absl::StrAppend(&text, "  ", CheckpointText(checkpoint));
    if (checkpoint.status.ok()) {
      absl::StrAppend(&text, ", states up to event ", checkpoint.manifest->next_number() - 1);
    }
    absl::StrAppend(&text, "\n");
  }
  if (report.checkpoints.empty()) absl::StrAppend(&text, "  no checkpoint\n");
  for (const std::string& name : report.unfinished) {
    absl::StrAppend(&text, "  ", name, ": never finished, or being removed; nobody reads it\n");
  }
  const JournalReport& journal = report.journal;
  absl::StrAppend(&text, "  journal: ", FormatCount(journal.files), " files, ",
                  FormatBytes(static_cast<double>(journal.bytes)), ", ");
  if (journal.events == 0) {
    absl::StrAppend(&text, "no event");
  } else {
    absl::StrAppend(&text, "events ", journal.first_number, " to ", journal.last_number);
  }
  for (const auto& [first, last] : journal.gaps) {
    absl::StrAppend(&text, ", without ", first, " to ", last, " (it had failed, and training went on)");
  }
  if (!journal.status.ok()) absl::StrAppend(&text, ", then DAMAGED: ", Message(journal.status));
  absl::StrAppend(&text, "\n");
  for (const JournalEnd::Torn& torn : journal.torn) {
    absl::StrAppend(&text, "  ", torn.file, ", offset ", torn.offset, ": a torn end of ", torn.bytes, " bytes (",
                    torn.why, "); an append was under way, nothing of it was acknowledged, the next start cuts it\n");
  }
  if (!report.lost.empty()) {
    absl::StrAppend(&text, "  not all that was acknowledged is here, unless its server runs: ", report.lost, "\n");
  }
  if (!report.recovery.ok()) {
    absl::StrAppend(&text, "  a server cannot go on with this: ", Message(report.recovery), "\n");
  }
  return text;
}

nlohmann::ordered_json CheckpointJson(const CheckpointReport& report) {
  nlohmann::ordered_json json = {{"name", report.name}, {"whole", report.status.ok()}};
  if (report.manifest.has_value()) {
    const CheckpointManifest& manifest = *report.manifest;
    json["number"] = manifest.index;
    json["step"] = manifest.about.step;
    json["epoch"] = manifest.about.epoch;
    json["bytes"] = report.bytes;
    json["age_seconds"] = report.age_seconds;
    json["first_number"] = manifest.first_number();
    json["last_number"] = manifest.next_number() - 1;
    json["journal_file"] = manifest.about.journal_file;
  }
  if (!report.status.ok()) json["error"] = Message(report.status);
  return json;
}

nlohmann::ordered_json ReportJson(const ShardReport& report) {
  nlohmann::ordered_json checkpoints = nlohmann::ordered_json::array(), torn = checkpoints;
  for (const CheckpointReport& checkpoint : report.checkpoints) checkpoints.push_back(CheckpointJson(checkpoint));
  for (const JournalEnd::Torn& end : report.journal.torn) {
    torn.push_back({{"file", end.file}, {"offset", end.offset}, {"bytes", end.bytes}, {"why", end.why}});
  }
  const JournalReport& journal = report.journal;
  nlohmann::ordered_json json = {{"folder", report.folder},
                                 {"shard", report.shard},
                                 {"damaged", report.damaged()},
                                 {"checkpoints", std::move(checkpoints)},
                                 {"unfinished", report.unfinished},
                                 {"journal",
                                  {{"files", journal.files},
                                   {"bytes", journal.bytes},
                                   {"events", journal.events},
                                   {"first_number", journal.first_number},
                                   {"last_number", journal.last_number},
                                   {"gaps", journal.gaps},
                                   {"torn", std::move(torn)}}}};
  if (!report.lost.empty()) json["lost"] = report.lost;
  if (!journal.status.ok()) json["journal"]["error"] = Message(journal.status);
  if (!report.recovery.ok()) json["recovery_error"] = Message(report.recovery);
  return json;
}

}  // namespace foreshard
