// Runs beside each other, from what `foreshard run --results` left of them: a table of losses, bytes
// and times, and their loss in one chart.
//
//   auto runs = ReadRuns({"results/adam", "results/squeeze"});
//   std::fputs(ComparisonTable(*runs).c_str(), stdout);
//   WriteFileAtomically("curves.svg", StandaloneSvg(LossComparison(*runs)));
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"

namespace foreshard {

struct ComparedRun {
  std::string name;  // the job's
  double seconds = 0;
  double updates = 0, pushed_bytes = 0, pulled_bytes = 0;
  double pushed_uncompressed_bytes = 0, pulled_uncompressed_bytes = 0;
  double test_loss = 0, test_accuracy = 0;  // NaN where nothing was evaluated
  std::vector<std::pair<double, double>> losses;  // epoch, mean loss of training batches; epochs rise
};

// `folders`: each with a results.json. NOT_FOUND; INVALID_ARGUMENT naming the file: no results of a run.
absl::StatusOr<std::vector<ComparedRun>> ReadRuns(const std::vector<std::string>& folders);

// Mean of the losses in the twentieth of the run that ends at this part of it; NaN: there are none.
double LossAt(const ComparedRun& run, double part);

// Lines for people, one a run: losses at parts of the run, test loss and accuracy, bytes, seconds.
std::string ComparisonTable(const std::vector<ComparedRun>& runs);

// An SVG of losses by epoch, a curve a run, thinned to what can be seen.
std::string LossComparison(const std::vector<ComparedRun>& runs);

// Adds `foreshard compare`, as those in commands.h.
void AddCompareCommand(CLI::App& program, int* exit_code);

}  // namespace foreshard
