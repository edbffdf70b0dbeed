// The results of a study as files that other programs read. All of them but timing.json
// are functions of the study and its data alone: the same bytes from every machine of
// one kind, whatever ran when.
//
//   auto entries = StudyEntries(study, outcome.results, outcome.failed);
//   status = WriteStudyResults(study, outcome.results, outcome.failed, "results/quick");
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "tools/simulate/study.h"
#include "tools/simulate/study_plan.h"

namespace foreshard {

// A full-length run that is done.
struct StudyEntry {
  size_t cell = 0;
  uint64_t seed = 0;
  float learning_rate = 0;
  std::string key;
  const SimulationResult* result = nullptr;  // in the results given
  // Percentage points of final accuracy below the baseline's run of the same seed;
  // nothing where there is none.
  std::optional<double> points_lost;
  // Over a synchronous fleet, of the run and of one that never waits; nothing in a study
  // with a network, as the fleets that it would be compared to send nothing.
  std::optional<double> speedup, ideal_speedup;
};

// By cell, then seed.
std::vector<StudyEntry> StudyEntries(const Study& study, const RunResults& results,
                                     const std::set<std::string>& failed);

// results.json: a list, one object a full-length run (README.md, "results.json of a
// study").
nlohmann::ordered_json StudyResultsJson(const Study& study, const std::vector<StudyEntry>& entries);
// search.json: a list, one object a variant and fleet.
nlohmann::ordered_json StudySearchJson(const Study& study, const RunResults& results,
                                       const std::set<std::string>& failed);
// timing.json: a list, one object a run; `overhead` is the part of the time that went
// neither into gradients nor evaluations, over that of the gradients.
nlohmann::ordered_json StudyTimingJson(const Study& study, const RunResults& results,
                                       const std::set<std::string>& failed);
// results.csv: the plain fields of results.json. curves.csv: one line a point.
std::string StudyResultsCsv(const Study& study, const std::vector<StudyEntry>& entries);
std::string StudyCurvesCsv(const Study& study, const std::vector<StudyEntry>& entries);

// Makes the folder the study's, before anything runs: there is a study.textproto then.
// FAILED_PRECONDITION, with the remedy: results of a study of another name are there, or
// of `foreshard run`. Errors as WriteFileAtomically, too.
absl::Status ClaimResultsFolder(const Study& study, const std::string& folder);

// All of these, study.textproto (as it was run), report.html and charts/*.svg; each
// whole or not at all. Takes away a search.json and charts of an earlier form of the
// study that this one does not have. Errors as WriteFileAtomically.
absl::Status WriteStudyResults(const Study& study, const RunResults& results,
                               const std::set<std::string>& failed, const std::string& folder);

}  // namespace foreshard
