// The subcommands of `foreshard`, one file each. Each adds itself to the program and,
// when it was called, leaves its exit status (common/core/exit_code.h) in `*exit_code`.
#pragma once

#include "CLI/CLI.hpp"
#include "absl/status/status.h"

namespace foreshard {

void AddRunCommand(CLI::App& program, int* exit_code);
void AddStatusCommand(CLI::App& program, int* exit_code);
void AddTopCommand(CLI::App& program, int* exit_code);
void AddStopCommand(CLI::App& program, int* exit_code);
void AddBenchCommand(CLI::App& program, int* exit_code);
void AddSimulateCommand(CLI::App& program, int* exit_code);
void AddPackImagesCommand(CLI::App& program, int* exit_code);
void AddPackTextCommand(CLI::App& program, int* exit_code);
void AddLearnVocabularyCommand(CLI::App& program, int* exit_code);
void AddWeightsCommand(CLI::App& program, int* exit_code);
void AddCheckpointCommand(CLI::App& program, int* exit_code);
void AddVerifyCommand(CLI::App& program, int* exit_code);
void AddExportCommand(CLI::App& program, int* exit_code);
void AddImportCommand(CLI::App& program, int* exit_code);
void AddReplayCommand(CLI::App& program, int* exit_code);

// For CLI::Option::check: 1 to the largest uint32_t.
CLI::Validator WholeNumberFromOne();
// Finite numbers, as of seconds.
CLI::Validator NumberAboveZero();
CLI::Validator NumberFromZero();

// Writes "foreshard COMMAND: message" to stderr and returns the status's exit code.
int Fail(const char* command, const absl::Status& status);

}  // namespace foreshard
