// A shard's machines made again from its checkpoint and journal, bit for bit.
//
//   auto machines = ShardMachines::Create(run, shard).value();
//   machines->set_observer([](const Event& event, const std::string& did) { ... });
//   auto recovered = Recover(*shard.storage, shard.identity, machines.get(), options).value();
//   machines->Find(3)->theta();
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "foreshard/v1/state.pb.h"
#include "server/dealer.h"
#include "server/lead_slots.h"
#include "server/recovery.h"
#include "server/segment.h"
#include "tools/state/long_work.h"
#include "tools/state/state_directory.h"

namespace foreshard {

// What an event came to; one of the two.
struct Effect {
  const Segment* segment = nullptr;
  Outcome outcome;
  EventKind kind = EventKind::kRead;  // what Admit made of it
  const Dealer* dealer = nullptr;
  Deal deal;
};

// Thread-compatible. The run outlives it.
class ShardMachines final : public RecoveryTarget {
 public:
  // FAILED_PRECONDITION: too little memory, with the figures.
  static absl::StatusOr<std::unique_ptr<ShardMachines>> Create(const StoredRun& run, uint32_t shard);

  // Hears of every event replayed.
  void set_observer(std::function<void(const Event&, const Effect&)> observer) { observer_ = std::move(observer); }
  // Hears, once a machine, of its state when all its events up to this number are in it and no
  // later one: of machines that get so far.
  void WatchAt(std::map<uint32_t, uint64_t> numbers,
               std::function<absl::Status(uint32_t machine, const std::string& state)> reached);
  // After Recover: machines whose last number was not passed by a later event of theirs. `last`:
  // number of the last event replayed.
  absl::Status FinishWatch(uint64_t last);

  // RecoveryTarget. Loaded states that were given a number in WatchAt are beyond it, or at it.
  std::vector<uint32_t> machines() const override;
  void Begin(const CheckpointManifest& checkpoint) override;
  absl::Status Load(uint32_t machine, const std::string& saved) override;
  absl::Status Replay(const Event& event) override;

  // Closes rounds that are complete, as a server does that starts on this state; returns the
  // segments' ids.
  std::vector<uint32_t> CloseCompleteRounds();
  // Segments whose open round is complete.
  std::vector<uint32_t> CompleteRounds() const;

  const std::vector<std::unique_ptr<Segment>>& segments() const { return segments_; }
  // Null: of another shard.
  Segment* Find(uint32_t id) const;
  Dealer* dealer() const { return dealer_.get(); }  // null on shards other than 0
  // What the lead knows beside it, kept up as the lead does; evaluations are the checkpoint's.
  v1::LeadState lead() const;
  const SegmentOptions& options(uint32_t id) const { return options_.at(id); }
  std::string Save(uint32_t machine) const;

 private:
  explicit ShardMachines(const StoredRun& run) : run_(run) {}
  absl::Status Pass(uint32_t machine);

  const StoredRun& run_;
  std::map<uint32_t, SegmentOptions> options_;
  std::vector<std::unique_ptr<Segment>> segments_;
  std::unique_ptr<Dealer> dealer_;
  absl::StatusOr<v1::LeadState> lead_{v1::LeadState()};  // of the checkpoint whose states are loaded
  LeadSlots slots_{0};
  std::vector<uint8_t> reply_;
  std::function<void(const Event&, const Effect&)> observer_;
  std::map<uint32_t, uint64_t> watched_;  // not reached yet
  std::function<absl::Status(uint32_t, const std::string&)> reached_;
};

// The machines of all of the run's directories after all of their journals. CANCELLED where the
// watch ends it; errors as of Recover.
absl::StatusOr<std::vector<std::unique_ptr<ShardMachines>>> ReplayRun(const StoredRun& run, WorkWatch* watch);

// Compares what a machine came to with what a checkpoint has of it. Empty: the same to the bit. Else
// in words: the first parameter that differs, or that something else does.
std::string Difference(const ShardMachines& machines, uint32_t machine, const std::string& state,
                       const std::string& expected);

// XXH3-64 of the parameters as they lie in memory.
uint64_t ParametersChecksum(const Segment& segment);

}  // namespace foreshard
