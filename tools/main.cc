// `foreshard`: what an operator types. Subcommands are in files of their own.
#include <string>

#include "CLI/CLI.hpp"
#include "common/core/exit_code.h"
#include "common/net/logging.h"
#include "common/net/version.h"
#include "tools/commands.h"
#include "tools/compare.h"

int main(int argc, char** argv) {
  foreshard::InitLogging(argv[0], "foreshard");
  CLI::App app("Trains networks on workers that never wait for each other.", "foreshard");
  app.set_version_flag("--version", std::string("foreshard ") + foreshard::kVersion);
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help of all commands");
  app.footer("Exit status: 0 done, 1 failed, 2 bad configuration, 3 device lost, 4 fenced, "
             "130 interrupted.");
  int exit_code = foreshard::kExitDone;
  foreshard::AddRunCommand(app, &exit_code);
  foreshard::AddStatusCommand(app, &exit_code);
  foreshard::AddTopCommand(app, &exit_code);
  foreshard::AddStopCommand(app, &exit_code);
  foreshard::AddBenchCommand(app, &exit_code);
  foreshard::AddSimulateCommand(app, &exit_code);
  foreshard::AddPackImagesCommand(app, &exit_code);
  foreshard::AddPackTextCommand(app, &exit_code);
  foreshard::AddLearnVocabularyCommand(app, &exit_code);
  foreshard::AddWeightsCommand(app, &exit_code);
  foreshard::AddCheckpointCommand(app, &exit_code);
  foreshard::AddVerifyCommand(app, &exit_code);
  foreshard::AddExportCommand(app, &exit_code);
  foreshard::AddImportCommand(app, &exit_code);
  foreshard::AddReplayCommand(app, &exit_code);
  foreshard::AddCompareCommand(app, &exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help and version end with 0; everything else is a command line we can't use.
    const int status = app.exit(error);
    return status == 0 ? foreshard::kExitDone : foreshard::kExitBadConfiguration;
  }
  return exit_code;
}
