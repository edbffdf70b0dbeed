// foreshard verify: is what servers keep on disk whole?
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "common/core/exit_code.h"
#include "tools/commands.h"
#include "tools/message_json.h"
#include "tools/state/verify.h"

namespace foreshard {
namespace {

struct VerifyFlags {
  std::vector<std::string> directories;
  bool json = false;
};

int Verify(const VerifyFlags& flags) {
  const absl::StatusOr<StoredRun> run = OpenRun(flags.directories, Shards::kAny);
  if (!run.ok()) return Fail("verify", run.status());
  LongWork work;
  bool damaged = false;
  nlohmann::ordered_json reports = nlohmann::ordered_json::array();
  for (const StateDirectory& shard : run->shards) {
    const absl::StatusOr<ShardReport> report = VerifyShard(*run, shard, &work);
    work.Clear();
    if (!report.ok()) return Fail("verify", report.status());
    damaged |= report->damaged();
    if (flags.json) {
      reports.push_back(ReportJson(*report));
    } else {
      std::printf("%s", ReportText(*report).c_str());
      std::fflush(stdout);
    }
  }
  if (flags.json) {
    const nlohmann::ordered_json all = {
        {"job", run->job.name()}, {"shards", run->plan.shards()}, {"damaged", damaged}, {"directories", reports}};
    std::printf("%s", JsonText(all).c_str());
  }
  if (!damaged) return kExitDone;
  std::fprintf(stderr, "foreshard verify: something is damaged; see above\n");
  return kExitFailed;
}

}  // namespace

void AddVerifyCommand(CLI::App& program, int* exit_code) {
  auto flags = std::make_shared<VerifyFlags>();
  CLI::App* verify = program.add_subcommand(
      "verify", "Read all that servers keep in their state directories, and say whether it is whole");
  verify->add_option("directories", flags->directories,
                     "State directories of servers, or a folder that holds them as shard-0, shard-1 ...")
      ->required()
      ->type_name("DIR...");
  verify->add_flag("--json", flags->json, "As JSON");
  verify->footer(
      "Compares every checksum, loads every state, reads the journal to its end. Changes nothing; servers may\n"
      "be writing meanwhile. A torn end of the journal is told and is no damage: nothing in it was acknowledged.\n"
      "Exit status: 0 all is whole, 1 something is damaged, 2 no state there or states of several runs, 130 "
      "interrupted.");
  verify->callback([flags, exit_code] { *exit_code = Verify(*flags); });
}

}  // namespace foreshard
