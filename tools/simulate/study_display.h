// What `foreshard simulate` shows while a study runs, and the summary at the end. All
// text is plain ASCII but for labels.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tools/live_text.h"
#include "tools/simulate/runner.h"
#include "tools/simulate/study.h"
#include "tools/simulate/study_results.h"

namespace foreshard {

// The block redrawn on a terminal.
std::vector<std::string> StudyBlock(const StudyFigures& figures, double seconds);
// The line printed without a terminal.
std::string StudyLine(const StudyFigures& figures, double seconds);
// The runs of a study as a table; of a search, what it starts with.
std::string StudyList(const Study& study);
// Results by variant and fleet, best first.
std::string StudySummary(const Study& study, const std::vector<StudyEntry>& entries);

class StudyDisplay : public StudyObserver {
 public:
  explicit StudyDisplay(std::FILE* out) : text_(out) {}

  void Finished(const StudyRun& run, const SimulationResult& result) override;
  void Failed(const StudyRun& run, const absl::Status& status) override;
  void Searched(const Study& study, size_t cell, const SearchOutcome& search) override;
  void Stale(const StudyRun& run, const std::string& why) override;
  void Show(const StudyFigures& figures) override;
  void Notice(const std::string& text) { text_.Notice(text); }
  void Close() { text_.Close(); }

 private:
  LiveText text_;
  absl::Time started_ = absl::Now();
  double next_seconds_ = 0;
};

}  // namespace foreshard
