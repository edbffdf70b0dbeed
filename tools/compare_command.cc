// foreshard compare: finished runs beside each other.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "common/core/exit_code.h"
#include "tools/commands.h"
#include "tools/compare.h"
#include "tools/files.h"
#include "tools/svg_chart.h"

namespace foreshard {
namespace {

struct CompareFlags {
  std::vector<std::string> folders;
  std::string svg;
};

int Compare(const CompareFlags& flags) {
  const auto runs = ReadRuns(flags.folders);
  if (!runs.ok()) return Fail("compare", runs.status());
  if (!flags.svg.empty()) {
    const absl::Status written = WriteFileAtomically(flags.svg, StandaloneSvg(LossComparison(*runs)));
    if (!written.ok()) return Fail("compare", written);
  }
  std::fputs(ComparisonTable(*runs).c_str(), stdout);
  return kExitDone;
}

}  // namespace

void AddCompareCommand(CLI::App& program, int* exit_code) {
  auto flags = std::make_shared<CompareFlags>();
  CLI::App* compare = program.add_subcommand("compare", "Runs beside each other: losses, bytes, times");
  compare->add_option("folders", flags->folders, "Folders that foreshard run --results has made")
      ->required()
      ->type_name("DIR...");
  compare->add_option("--svg", flags->svg, "Also write their losses by epoch as one picture")->type_name("FILE");
  compare->footer(
      "Losses are means over the twentieth of the run that ends there, of training batches as workers see them.\n"
      "Exit status: 0 done, 1 failed (the disk), 2 bad arguments or no results of a run.");
  compare->callback([flags, exit_code] { *exit_code = Compare(*flags); });
}

}  // namespace foreshard
