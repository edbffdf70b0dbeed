// From a state directory to the state of the machines: the newest whole checkpoint, and what
// the journal says came after it.
//
//   auto recovered = Recover(*storage, identity, &target).value();
//   // target's machines are as they were after event recovered.next_number - 1
//
// In rounds, the event that completes one may be there without the kRoundClosed that follows
// it: who goes on closes such rounds.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/storage.h"
#include "server/checkpoint_files.h"
#include "server/event.h"
#include "server/state_identity.h"

namespace foreshard {

// The machines: a shard's segments, and the lead's dealer as kDealerSegment.
class RecoveryTarget {
 public:
  virtual ~RecoveryTarget() = default;
  // Ids of all machines; a dealer's state may be missing in a checkpoint, if nobody had registered.
  virtual std::vector<uint32_t> machines() const = 0;
  // The checkpoint that Load is called for next.
  virtual void Begin(const CheckpointManifest& /*checkpoint*/) {}
  // Of a checkpoint, before any event; `saved` as the machine's Save gave it.
  virtual absl::Status Load(uint32_t machine, const std::string& saved) = 0;
  virtual absl::Status Replay(const Event& event) = 0;
};

struct RecoveryOptions {
  // Ends after this event, where that is before the journal's end.
  std::optional<uint64_t> until;
  // Begins with this checkpoint; empty: with the newest that is whole, or with the journal's
  // first event where there is none.
  std::string checkpoint;
  // Begins with the journal's first event, whatever checkpoints there are.
  bool from_start = false;
  // Asked before each event that is replayed, with how many were before it; false ends with
  // CANCELLED. May be empty.
  std::function<bool(const Event& event, uint64_t replayed)> proceed;
};

struct Recovered {
  std::optional<CheckpointManifest> checkpoint;
  std::string checkpoint_name;
  std::vector<PassedOver> passed_over;  // damaged ones that are newer
  uint64_t replayed = 0;                // events
  uint64_t next_number = 1;             // one beyond the last event
};

// Changes nothing on the disk. Errors as of Checkpoint::OpenNewest and JournalReader::Open;
// DATA_LOSS names the event that a machine does not take, and where it lies.
absl::StatusOr<Recovered> Recover(const Storage& storage, const StateIdentity& identity,
                                  RecoveryTarget* target, const RecoveryOptions& options = {});

}  // namespace foreshard
