// What a checkpoint says of itself: its manifest, a JSON file.
//
//   {
//     "format": "foreshard checkpoint", "format_version": 1,
//     "checkpoint": 12, "protocol": 3,
//     "job": "00...", "schema": "00...", "plan": "00...",    fingerprints, 16 hexadecimal digits
//     "shard": 0, "shards": 2, "incarnation": 1700000000000000,
//     "step": 4000, "epoch": 3, "journal_file": 7,
//     "states": [{"segment": 0, "number": 81234}, ..., {"segment": "dealer", "number": 81299}],
//     "files": [{"name": "state.bin", "bytes": 4711, "xxh3": "00..."}, ...],
//     "extra": {"key": "text"},
//     "run": "00...",                                        RunDescription.common_run_id; left out where not known
//     "xxh3": "00..."
//   }
//
// The last line's checksum is XXH3-64 of the text up to the comma before it, so that no bit
// can change unseen; the file ends with "\n}\n" behind it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/format_range.h"
#include "server/state_identity.h"

namespace foreshard {

struct CheckpointAbout {
  StateIdentity identity;
  uint64_t incarnation = 0;  // of the server that wrote it
  uint64_t step = 0;         // as the server counts them; for people
  uint32_t epoch = 0;
  // The first file of the journal that has later events (Journal::Rotate). 0: there is no journal, or
  // none that goes with it, so that the checkpoint stands alone.
  uint64_t journal_file = 0;
  std::map<std::string, std::string> extra;  // UTF-8

  bool operator==(const CheckpointAbout&) const = default;
};

struct CheckpointManifest {
  // A state machine's state holds what its events up to `number` did, and nothing of later ones.
  struct State {
    uint32_t segment = 0;  // kDealerSegment: the lead's dealer
    uint64_t number = 0;
    bool operator==(const State&) const = default;
  };
  struct File {
    std::string name;
    uint64_t bytes = 0;
    uint64_t checksum = 0;  // XXH3-64
    bool operator==(const File&) const = default;
  };

  uint64_t index = 0;
  CheckpointAbout about;
  std::vector<State> states;  // in the order in which they lie in the state file
  std::vector<File> files;

  // Replay begins with this event: the first that some state lacks. Of the others, those
  // up to a state's number are skipped by its machine.
  uint64_t first_number() const;
  // One beyond the highest number of a state: JournalOptions::least_number.
  uint64_t next_number() const;

  bool operator==(const CheckpointManifest&) const = default;
};

inline constexpr uint32_t kCheckpointFormat = 1;
inline constexpr FormatRange kCheckpointFormats = {.oldest = 1, .newest = kCheckpointFormat};
inline constexpr uint64_t kMaxManifestBytes = 64 << 20;

// INVALID_ARGUMENT: text that is no UTF-8, or what ParseManifest would not read: more than
// kMaxManifestBytes, more than 2^20 states or files.
absl::StatusOr<std::string> EncodeManifest(const CheckpointManifest& manifest);
// DATA_LOSS: cut, changed or not a manifest. FAILED_PRECONDITION: a format that this
// program does not read.
absl::StatusOr<CheckpointManifest> ParseManifest(const std::string& text);

}  // namespace foreshard
