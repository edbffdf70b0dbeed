// Names and records of a checkpoint's files (internal to server/checkpoint_*.cc).
//
// state.bin, little-endian:
//   header    8 bytes "FSSTATE\n", u32 format (1), u32 zero
//   record    u64 length of what follows
//             u32 segment, 0xffffffff for the dealer; u32 zero
//             u64 number
//             ... the state, as Segment::Save or Dealer::Save made it ...
//             u64 XXH3-64 of all from the segment on
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/storage/storage.h"

namespace foreshard::internal {

inline constexpr char kManifestName[] = "manifest.json";
inline constexpr char kStateName[] = "state.bin";
inline constexpr char kPartSuffix[] = ".part";  // being written
inline constexpr char kOldSuffix[] = ".old";    // being removed

inline constexpr char kStateMagic[] = "FSSTATE\n";
inline constexpr uint64_t kStateHeaderBytes = 16;
// Of a record, before its state and behind it.
inline constexpr uint64_t kStateHeadBytes = 8 + 4 + 4 + 8;
inline constexpr uint64_t kStateTailBytes = 8;

struct CheckpointFolder {
  std::string name;
  uint64_t index = 0;
  std::string suffix;  // "", kPartSuffix, kOldSuffix
};

std::string CheckpointName(uint64_t index);
// By rising index.
absl::StatusOr<std::vector<CheckpointFolder>> ListCheckpointFolders(const Storage& storage);

}  // namespace foreshard::internal
