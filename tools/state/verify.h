// Whether what lies in a state directory is whole: checkpoints, the states in them, the journal to
// its end.
//
//   ShardReport report = VerifyShard(run, run.shards[0], &watch).value();
//   if (report.damaged()) std::printf("%s", ReportText(report).c_str());
//
// Changes nothing, and may look while the server writes: what it removes meanwhile is left out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint_manifest.h"
#include "server/journal_reader.h"
#include "tools/state/long_work.h"
#include "tools/state/state_directory.h"

namespace foreshard {

struct CheckpointReport {
  std::string name;
  std::optional<CheckpointManifest> manifest;  // none: it can't be read
  uint64_t bytes = 0;
  double age_seconds = 0;  // since its manifest was written
  absl::Status status;     // why it is not whole
};

struct JournalReport {
  uint64_t files = 0;
  uint64_t bytes = 0;
  uint64_t events = 0;
  uint64_t first_number = 0, last_number = 0;  // 0: no event
  // Events between these that are in no file, first and last, since the journal had failed there and
  // training went on without it: no damage, if no checkpoint needs them.
  std::vector<std::pair<uint64_t, uint64_t>> gaps;
  std::vector<JournalEnd::Torn> torn;          // the next start cuts it; no damage
  absl::Status status;                         // the first damage, with file and offset
};

struct ShardReport {
  std::string folder;
  uint32_t shard = 0;
  std::vector<CheckpointReport> checkpoints;  // oldest first
  std::vector<std::string> unfinished;        // never finished, or being removed; no damage
  JournalReport journal;
  // StateDirectory.lost: no damage.
  std::string lost;
  // What a start would make of it: OK, or why not.
  absl::Status recovery;

  bool damaged() const;
};

// Oldest first, as the manifests say; files are looked at only for `whole`, states only by
// VerifyShard.
absl::StatusOr<std::vector<CheckpointReport>> ListCheckpoints(const StateDirectory& shard, bool whole,
                                                              WorkWatch* watch);

// CANCELLED where the watch ends it.
absl::StatusOr<ShardReport> VerifyShard(const StoredRun& run, const StateDirectory& shard, WorkWatch* watch);

std::string ReportText(const ShardReport& report);
nlohmann::ordered_json ReportJson(const ShardReport& report);
nlohmann::ordered_json CheckpointJson(const CheckpointReport& report);
// "checkpoint.0000000012: step 4000, epoch 3, 1.2 MiB, 5:03 ago".
std::string CheckpointText(const CheckpointReport& report);

}  // namespace foreshard
