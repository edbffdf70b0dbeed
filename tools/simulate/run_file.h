// The file of one finished run, RESULTS/runs/KEY.json: its result, what it was run
// with, and a fingerprint of all that determines it.
//
//   status = WriteRunFile(folder, {key, fingerprint, description, result});
//   auto file = ReadRunFile(folder, key);
//   if (file.ok() && file->fingerprint == fingerprint) ...  // no need to run it again
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tools/simulate/simulation.h"

namespace foreshard {

struct RunFile {
  std::string key;
  uint64_t fingerprint = 0;
  std::string description;  // for people; not read back
  SimulationResult result;
};

// [{"round": 96, "compressed": true}, ...].
nlohmann::ordered_json PhaseChangesJson(const SimulationResult& result);

std::string RunFilePath(const std::string& folder, const std::string& key);

// Errors as WriteFileAtomically.
absl::Status WriteRunFile(const std::string& folder, const RunFile& file);

// NOT_FOUND where there is none; DATA_LOSS where it is no such file, of another format,
// or not what its checksum (XXH3-64, of all that follows it) says. What was not finite
// comes back as NaN.
absl::StatusOr<RunFile> ReadRunFile(const std::string& folder, const std::string& key);

// XXH3-64 of a run's description, its data's checksum, the version of the program and the
// instruction set that its kernels use.
uint64_t RunFingerprint(const std::string& description, uint64_t data_checksum);

}  // namespace foreshard
