// What a study runs next, as a pure function of the results that there are: so an
// interrupted study goes on where it was, and the order in which runs end changes
// nothing.
//
//   StudyPlan plan(study);
//   RunResults results;
//   for (StudyRun& run : plan.Ready(results, {})) results[run.key] = Simulate(...).value();
//   SearchOutcome search = plan.Search(cell, results);
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/simulate/simulation.h"
#include "tools/simulate/study.h"

namespace foreshard {

// By StudyRun::key.
using RunResults = std::map<std::string, SimulationResult>;

struct SearchCandidate {
  float learning_rate = 0;
  bool done = false;
  bool diverged = false;
  double accuracy = 0;
  double loss = 0;
};

// Successive halving of one cell, as far as it is. Definitions: SearchSpec in study.proto.
struct SearchOutcome {
  // By rung, those that have begun; candidates by rising rate.
  std::vector<std::vector<SearchCandidate>> rungs;
  bool complete = false;
  // When complete. The best of the last rung.
  float learning_rate = 0;
  double accuracy = 0;
  bool diverged = false;  // even the best did
  // When the first rung is complete; nothing where every candidate diverged.
  std::optional<float> largest_stable;
};

struct StudyTotals {
  uint64_t search_runs = 0, full_runs = 0;
  // Sums of the runs' epochs.
  uint64_t search_epochs = 0, full_epochs = 0;
};

// Immutable. The study outlives it.
class StudyPlan {
 public:
  static constexpr double kStablePart = 0.9;

  explicit StudyPlan(const Study& study) : study_(study) {}

  SearchOutcome Search(size_t cell, const RunResults& results) const;

  // Cells that get full-length runs, by group of one fleet; of groups whose search is
  // not complete, none. `failed` are keys of runs that ended with an error: their cells
  // are left out, and nobody waits for them.
  std::vector<size_t> Finalists(const RunResults& results, const std::set<std::string>& failed) const;

  // Full-length runs known by now, done or not; by cell, then seed.
  std::vector<StudyRun> FullRuns(const RunResults& results, const std::set<std::string>& failed) const;

  // Runs that can start: neither in `results` nor in `failed`. The search first, since
  // others wait for it; then long before short, and the first seed of all variants
  // before the second.
  std::vector<StudyRun> Ready(const RunResults& results, const std::set<std::string>& failed) const;

  // Of the whole study.
  StudyTotals Totals() const;

 private:
  bool Failed(size_t cell, const RunResults& results, const std::set<std::string>& failed) const;

  const Study& study_;
};

}  // namespace foreshard
