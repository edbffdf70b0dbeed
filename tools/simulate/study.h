// A study: a StudySpec (proto/foreshard/v1/study.proto) read, checked whole and
// expanded, so that whatever one of its runs would be refused for is said before the
// first of them starts.
//
//   Study study = Study::Load("deploy/jobs/studies/quick.textproto", {}).value();
//   for (size_t cell = 0; cell < study.cells().size(); ++cell) {
//     StudyRun run = study.FinalRun(cell, /*seed=*/1, /*learning_rate=*/0.05f);
//   }
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "foreshard/v1/job.pb.h"
#include "foreshard/v1/study.pb.h"
#include "tools/simulate/clock.h"
#include "tools/simulate/simulation.h"

namespace foreshard {

// What a command line changes in a study's file.
struct StudyChanges {
  std::vector<std::string> set;    // after all other overrides of a job
  std::vector<std::string> rules;  // labels: only these variants, and the baseline's
  std::vector<uint32_t> workers;   // only these numbers; the baseline keeps its one worker
};

// One variant on one fleet: what has its own learning rate.
struct StudyCell {
  size_t variant = 0;  // of spec().rules()
  uint32_t workers = 0;
  std::string machines;
};

// One call of Simulate. Plain data.
struct StudyRun {
  static constexpr int kFinal = -1;

  std::string key;  // unique in the study, the same every time; fit for a file name
  std::string name;  // for people
  size_t cell = 0;
  int rung = kFinal;  // of the search; kFinal: a full-length run
  v1::JobSpec job;    // whole: workers, seed, learning rate and epochs are in it
  // As SimulationOptions has it.
  uint32_t evaluation_interval_epochs = 0;
};

// Immutable.
class Study {
 public:
  // INVALID_ARGUMENT and NOT_FOUND name file, field, value and remedy; of a job that
  // is refused, also the variant.
  static absl::StatusOr<Study> Load(const std::string& path, const StudyChanges& changes);
  // `folder`: what the spec's paths are relative to; `origin` stands for the file's name.
  static absl::StatusOr<Study> Create(v1::StudySpec spec, const std::string& folder,
                                      const std::string& origin, const StudyChanges& changes = {});

  // With the changes and defaults in it.
  const v1::StudySpec& spec() const { return spec_; }
  // Each variant on each fleet, variants outermost.
  const std::vector<StudyCell>& cells() const { return cells_; }
  const std::string& label(size_t cell) const { return spec_.rules(cells_[cell].variant).label(); }
  bool is_baseline(size_t cell) const;
  // Cells of one number of workers and kind of machines, in order of first appearance.
  std::vector<std::vector<size_t>> Groups() const;

  bool has_search() const { return spec_.has_search(); }
  // Candidates, rising.
  std::vector<float> LearningRates(size_t cell) const;
  std::string SearchKey(size_t cell, size_t rung, float learning_rate) const;
  StudyRun SearchRun(size_t cell, size_t rung, float learning_rate) const;
  std::string FinalKey(size_t cell, uint64_t seed) const;
  // A rate of 0: the job's.
  StudyRun FinalRun(size_t cell, uint64_t seed, float learning_rate) const;

  BatchClock MakeClock(const StudyRun& run) const;
  NetworkModel network() const;
  // Whether messages cost anything.
  bool has_network() const;
  // All that determines the run's result but the data, as text.
  std::string Describe(const StudyRun& run) const;

 private:
  struct Templates {
    v1::JobSpec job;                 // full length
    std::vector<v1::JobSpec> rungs;  // of the search
  };

  Study() = default;
  absl::Status Expand(const std::string& job_path);
  absl::StatusOr<Templates> MakeTemplates(const StudyCell& cell, const std::string& text,
                                          const std::string& job_path) const;
  absl::StatusOr<BatchClock> ClockFor(const StudyCell& cell, uint64_t seed) const;
  std::string CellSlug(size_t cell) const;
  std::string CellName(size_t cell) const;

  v1::StudySpec spec_;
  std::string origin_;
  std::vector<std::string> last_overrides_;  // of the command line
  BatchTrace trace_;
  std::vector<StudyCell> cells_;
  std::vector<Templates> templates_;  // by cell
};

// "0.05": the shortest text that reads back as this float.
std::string FormatRateSetting(float learning_rate);

}  // namespace foreshard
