#include "tools/simulate/study_results.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/net/spec_text.h"
#include "google/protobuf/text_format.h"
#include "tools/files.h"
#include "tools/message_json.h"
#include "tools/json_number.h"
#include "tools/simulate/run_file.h"
#include "tools/simulate/study_report.h"

namespace foreshard {
namespace {

using nlohmann::ordered_json;

constexpr char kStudyFile[] = "study.textproto";

// 0.05, not 0.05000000074505806.
ordered_json Rate(float learning_rate) {
  return Number(std::strtod(FormatRateSetting(learning_rate).c_str(), nullptr));
}

ordered_json Optional(const std::optional<double>& value) {
  return value.has_value() ? Number(*value) : ordered_json(nullptr);
}

std::string CsvField(const ordered_json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return value.dump();
  const std::string text = value.get<std::string>();
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

// Plain fields as columns, from a list of objects with the same fields.
std::string ToCsv(const ordered_json& list) {
  std::string csv;
  for (const ordered_json& object : list) {
    std::string header, line;
    for (const auto& [name, value] : object.items()) {
      if (value.is_structured()) continue;
      absl::StrAppend(&header, header.empty() ? "" : ",", name);
      absl::StrAppend(&line, line.empty() ? "" : ",", CsvField(value));
    }
    if (csv.empty()) csv = header + "\n";
    csv += line + "\n";
  }
  return csv;
}

std::string SpecText(const Study& study) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(study.spec(), &text);
  return text;
}

// What an earlier form of the study had, and this one has not.
absl::Status RemoveOthers(const std::string& folder,
                          const std::vector<std::pair<std::string, std::string>>& files) {
  std::vector<std::string> there = {"search.json"};
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/charts", error)) {
    if (entry.path().extension() == ".svg") {
      there.push_back(absl::StrCat("charts/", entry.path().filename().string()));
    }
  }
  for (const std::string& name : there) {
    const auto same = [&](const auto& file) { return file.first == name; };
    if (std::any_of(files.begin(), files.end(), same)) continue;
    const std::string path = absl::StrCat(folder, "/", name);
    std::filesystem::remove(path, error);
    if (error) {
      return absl::ErrnoToStatus(error.value(), absl::StrCat("can't remove the old ", path));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<StudyEntry> StudyEntries(const Study& study, const RunResults& results,
                                     const std::set<std::string>& failed) {
  std::vector<StudyEntry> entries;
  // By machines and seed; the same seed on other machines trains the same with one worker.
  std::map<std::pair<std::string, uint64_t>, double> baselines;
  std::map<uint64_t, double> any_machines;
  for (const StudyRun& run : StudyPlan(study).FullRuns(results, failed)) {
    const auto found = results.find(run.key);
    if (found == results.end()) continue;
    StudyEntry entry = {.cell = run.cell,
                        .seed = run.job.seed(),
                        .learning_rate = run.job.schedule().learning_rate(),
                        .key = run.key,
                        .result = &found->second};
    const SimulationResult& result = found->second;
    if (!study.has_network()) {
      entry.speedup = result.speedup_over_synchronous();
      entry.ideal_speedup =
          result.ideal_seconds > 0 ? result.synchronous_seconds / result.ideal_seconds : 0;
    }
    if (study.is_baseline(run.cell)) {
      baselines[{study.cells()[run.cell].machines, entry.seed}] = found->second.final_accuracy;
      any_machines.emplace(entry.seed, found->second.final_accuracy);
    }
    entries.push_back(std::move(entry));
  }
  for (StudyEntry& entry : entries) {
    const double accuracy = entry.result->final_accuracy;
    const auto own = baselines.find({study.cells()[entry.cell].machines, entry.seed});
    if (own != baselines.end()) {
      entry.points_lost = 100 * (own->second - accuracy);
    } else if (auto any = any_machines.find(entry.seed); any != any_machines.end()) {
      entry.points_lost = 100 * (any->second - accuracy);
    }
  }
  return entries;
}

ordered_json StudyResultsJson(const Study& study, const std::vector<StudyEntry>& entries) {
  ordered_json list = ordered_json::array();
  for (const StudyEntry& entry : entries) {
    const SimulationResult& result = *entry.result;
    const StudyCell& cell = study.cells()[entry.cell];
    list.push_back({{"rule", study.label(entry.cell)},
                    {"workers", cell.workers},
                    {"machines", cell.machines},
                    {"seed", entry.seed},
                    {"final_accuracy", Number(result.final_accuracy)},
                    {"best_accuracy", Number(result.best_accuracy)},
                    {"diverged", result.diverged},
                    {"lag_mean", Number(result.lag_mean)},
                    {"lag_p99", result.lag_p99},
                    {"gap_mean", Number(result.gap_mean)},
                    {"virtual_seconds", Number(result.virtual_seconds)},
                    {"speedup_over_synchronous", Optional(entry.speedup)},
                    {"ideal_speedup", Optional(entry.ideal_speedup)},
                    {"points_lost", Optional(entry.points_lost)},
                    {"learning_rate", Rate(entry.learning_rate)},
                    {"diverged_epoch", result.diverged ? Number(result.diverged_epoch) : nullptr},
                    {"final_loss", Number(result.final_loss)},
                    {"surprise_mean", Number(result.surprise_mean)},
                    {"lag_max", result.lag_max},
                    {"synchronous_seconds", Number(result.synchronous_seconds)},
                    {"ideal_seconds", Number(result.ideal_seconds)},
                    {"batches", result.batches},
                    {"updates", result.updates},
                    {"discarded", result.discarded},
                    {"skipped", result.skipped},
                    {"push_bytes", result.push_bytes},
                    {"pull_bytes", result.pull_bytes},
                    {"parameters_checksum", absl::StrFormat("%016x", result.parameters_checksum)},
                    {"worker_batches", result.worker_batches}});
    if (!result.phase_changes.empty()) list.back()["phase_changes"] = PhaseChangesJson(result);
  }
  return list;
}

ordered_json StudySearchJson(const Study& study, const RunResults& results,
                             const std::set<std::string>& failed) {
  ordered_json list = ordered_json::array();
  if (!study.has_search()) return list;
  const StudyPlan plan(study);
  const std::vector<size_t> finalists = plan.Finalists(results, failed);
  for (size_t cell = 0; cell < study.cells().size(); ++cell) {
    const SearchOutcome search = plan.Search(cell, results);
    ordered_json rungs = ordered_json::array();
    for (size_t r = 0; r < search.rungs.size(); ++r) {
      ordered_json candidates = ordered_json::array();
      for (const SearchCandidate& candidate : search.rungs[r]) {
        if (!candidate.done) continue;
        candidates.push_back({{"learning_rate", Rate(candidate.learning_rate)},
                              {"accuracy", Number(candidate.accuracy)},
                              {"loss", Number(candidate.loss)},
                              {"diverged", candidate.diverged}});
      }
      rungs.push_back({{"epochs", study.spec().search().epochs(r)}, {"candidates", candidates}});
    }
    const bool chosen = search.complete;
    list.push_back(
        {{"rule", study.label(cell)},
         {"workers", study.cells()[cell].workers},
         {"machines", study.cells()[cell].machines},
         {"seed", study.spec().search().seed()},
         {"learning_rate", chosen ? Rate(search.learning_rate) : nullptr},
         {"accuracy", chosen ? Number(search.accuracy) : nullptr},
         {"diverged", chosen ? ordered_json(search.diverged) : nullptr},
         {"largest_stable_rate",
          search.largest_stable.has_value() ? Rate(*search.largest_stable) : nullptr},
         {"full_length", std::find(finalists.begin(), finalists.end(), cell) != finalists.end()},
         {"rungs", rungs}});
  }
  return list;
}

ordered_json StudyTimingJson(const Study& study, const RunResults& results,
                             const std::set<std::string>& failed) {
  ordered_json list = ordered_json::array();
  const auto add = [&](const std::string& key) {
    const auto found = results.find(key);
    if (found == results.end()) return;
    const SimulationResult& result = found->second;
    const double beyond =
        result.total_seconds - result.gradient_seconds - result.evaluation_seconds;
    list.push_back({{"run", key},
                    {"batches", result.batches},
                    {"total_seconds", Number(result.total_seconds)},
                    {"gradient_seconds", Number(result.gradient_seconds)},
                    {"evaluation_seconds", Number(result.evaluation_seconds)},
                    {"overhead", Number(beyond / result.gradient_seconds)}});
  };
  const StudyPlan plan(study);
  for (size_t cell = 0; study.has_search() && cell < study.cells().size(); ++cell) {
    const SearchOutcome search = plan.Search(cell, results);
    for (size_t r = 0; r < search.rungs.size(); ++r) {
      for (const SearchCandidate& candidate : search.rungs[r]) {
        add(study.SearchKey(cell, r, candidate.learning_rate));
      }
    }
  }
  for (const StudyRun& run : plan.FullRuns(results, failed)) add(run.key);
  return list;
}

std::string StudyResultsCsv(const Study& study, const std::vector<StudyEntry>& entries) {
  return ToCsv(StudyResultsJson(study, entries));
}

std::string StudyCurvesCsv(const Study& study, const std::vector<StudyEntry>& entries) {
  std::string csv =
      "rule,workers,machines,seed,epoch,virtual_seconds,training_loss,loss,accuracy\n";
  for (const StudyEntry& entry : entries) {
    const StudyCell& cell = study.cells()[entry.cell];
    const std::string run = absl::StrCat(CsvField(study.label(entry.cell)), ",", cell.workers, ",",
                                         cell.machines, ",", entry.seed);
    for (const CurvePoint& point : entry.result->curve) {
      absl::StrAppend(&csv, run);
      for (double value : {point.epoch, point.virtual_seconds, point.training_loss, point.loss,
                           point.accuracy}) {
        absl::StrAppend(&csv, ",", CsvField(Number(value)));
      }
      csv += "\n";
    }
  }
  return csv;
}

absl::Status ClaimResultsFolder(const Study& study, const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kStudyFile);
  const auto refuse = [&](const std::string& what) {
    return absl::FailedPreconditionError(
        absl::StrCat("results folder ", folder, " ", what,
                     "; give another folder with --results, or remove that one"));
  };
  absl::StatusOr<std::string> text = ReadFile(path);
  if (text.ok()) {
    v1::StudySpec there;
    if (!ParseSpecText(*text, path, &there).ok()) {
      return refuse(absl::StrCat("has a ", kStudyFile, " that can't be read"));
    }
    if (there.name() != study.spec().name()) {
      return refuse(absl::StrCat("holds the study '", there.name(), "', and this is '",
                                 study.spec().name(), "'"));
    }
    return absl::OkStatus();
  }
  if (!absl::IsNotFound(text.status())) {
    return text.status();
  }
  if (std::filesystem::exists(folder + "/results.json")) {
    return refuse("holds results that are not of a study");
  }
  return WriteFileAtomically(path, SpecText(study));
}

absl::Status WriteStudyResults(const Study& study, const RunResults& results,
                               const std::set<std::string>& failed, const std::string& folder) {
  const std::vector<StudyEntry> entries = StudyEntries(study, results, failed);
  const StudyReport report = MakeStudyReport(study, results, failed);
  std::vector<std::pair<std::string, std::string>> files = {
      {kStudyFile, SpecText(study)},
      {"results.json", JsonText(StudyResultsJson(study, entries))},
      {"results.csv", StudyResultsCsv(study, entries)},
      {"curves.csv", StudyCurvesCsv(study, entries)},
      {"timing.json", JsonText(StudyTimingJson(study, results, failed))},
      {"report.html", report.html}};
  if (study.has_search()) {
    files.emplace_back("search.json", JsonText(StudySearchJson(study, results, failed)));
  }
  const std::string charts = absl::StrCat(folder, "/charts");
  if (absl::Status status = PrepareFolder(charts); !status.ok()) return status;
  for (const auto& [name, svg] : report.charts) {
    files.emplace_back(absl::StrCat("charts/", name, ".svg"), svg);
  }
  if (absl::Status status = RemoveOthers(folder, files); !status.ok()) return status;
  for (const auto& [name, content] : files) {
    if (absl::Status status = WriteFileAtomically(absl::StrCat(folder, "/", name), content);
        !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace foreshard
