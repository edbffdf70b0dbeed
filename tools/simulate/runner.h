// Runs a study: its runs side by side, each result on the disk as soon as it is there,
// so that a study that was interrupted, killed or extended goes on where it was.
//
//   RunnerOptions options = {.folder = "results/quick", .jobs = 2, .observer = &display};
//   absl::StatusOr<StudyOutcome> outcome = RunStudy(study, options);
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/simulate/simulation.h"
#include "tools/simulate/study.h"
#include "tools/simulate/study_plan.h"

namespace foreshard {

// Where a study is.
struct StudyFigures {
  struct Running {
    std::string name;
    double part = 0;  // 0..1
    double virtual_seconds = 0;
    double seconds = 0;  // real ones, so far
    // Of its last evaluation, 0..1; NaN: there was none yet.
    double accuracy = std::numeric_limits<double>::quiet_NaN();
  };
  uint64_t total_runs = 0;
  uint64_t done_runs = 0;     // failed ones counted
  uint64_t resumed_runs = 0;  // of these, found done
  double part = 0;            // of all epochs of all runs
  std::vector<Running> running;
  // By the speed of this study's runs so far; nothing before there is one.
  std::optional<double> seconds_left;
  // Runs of full length were not timed yet: it takes longer than that.
  bool left_is_bound = false;
};

// Hears what happens, on RunStudy's thread.
class StudyObserver {
 public:
  virtual ~StudyObserver() = default;
  virtual void Finished(const StudyRun& run, const SimulationResult& result) {}
  virtual void Failed(const StudyRun& run, const absl::Status& status) {}
  // A cell's search has come to its end.
  virtual void Searched(const Study& study, size_t cell, const SearchOutcome& search) {}
  // A file in the way of a result: done anew. Says why.
  virtual void Stale(const StudyRun& run, const std::string& why) {}
  // Several times a second.
  virtual void Show(const StudyFigures& figures) {}
};

struct RunnerOptions {
  std::string folder;  // of the study's results; made where it is not there
  uint32_t jobs = 1;   // runs at a time; JobsOf bounds it
  StudyObserver* observer = nullptr;
  std::function<bool()> interrupted;  // asked several times a second; may be empty
  std::function<absl::StatusOr<SimulationResult>(const SimulationOptions&)> simulate = Simulate;
  // Throws std::system_error where there can be no more threads.
  std::function<std::thread(std::function<void()>)> start_thread =
      [](std::function<void()> body) { return std::thread(std::move(body)); };
};

// How many run at a time: as many as asked for, but no more than there are, nor than 256.
uint32_t JobsOf(const Study& study, uint32_t wanted);

struct StudyOutcome {
  RunResults results;            // of all runs that are done
  std::set<std::string> failed;  // keys
  std::vector<std::string> failures;  // "name: why"
  absl::Status first_failure;
  bool interrupted = false;
  StudyFigures figures;  // the last ones
};

// Runs what is not done yet. A run that diverged is a result; one that fails is among
// `failures`, and the others go on. A folder where a run's file belongs is such a failure,
// without running it. Errors are those of the data, of Dealer::Check and of PrepareFolder;
// UNAVAILABLE where a result could not be written, after which nothing more is begun;
// RESOURCE_EXHAUSTED where not one thread can be started (fewer than asked for will do).
absl::StatusOr<StudyOutcome> RunStudy(const Study& study, const RunnerOptions& options);

}  // namespace foreshard
