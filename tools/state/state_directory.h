// State directories of a run's servers, opened to read: who has written them, and what is needed
// to make sense of their checkpoints and journals.
//
//   auto run = OpenRun({"results/state"}, Shards::kAll).value();   // its folders shard-0, shard-1 ...
//   run.shards[1].storage->Describe("");
//   run.plan.SegmentsOfShard(1);
//
// Changes nothing, and may be used while servers write there, unless it says that they must
// not. Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/core/schema.h"
#include "common/core/shard_plan.h"
#include "common/storage/storage.h"
#include "foreshard/v1/state.pb.h"
#include "server/checkpoint_manifest.h"
#include "server/run_description.h"
#include "server/state_identity.h"

namespace foreshard {

struct StateDirectory {
  std::string folder;
  uint32_t shard = 0;
  std::unique_ptr<Storage> storage;
  v1::RunDescription description;
  StateIdentity identity;
  // Of what its server had acknowledged, what may be missing, and why (server/lost_state.h); empty: nothing.
  std::string lost;
};

struct StoredRun {
  v1::JobSpec job;
  Schema schema;
  ShardPlan plan;
  uint64_t train_examples = 0;
  uint64_t batches_per_epoch = 0;
  bool synchronous = false;
  std::vector<StateDirectory> shards;  // by rising shard
};

enum class Shards { kAny, kAll };

// Each of `folders` is a server's own, or holds those of several as shard-0, shard-1 and so on.
// NOT_FOUND: no such folder, or no state in it. FAILED_PRECONDITION, with what differs: of several
// runs; one shard twice; with kAll, shards missing; a server that runs there and must not. DATA_LOSS:
// run.textproto is damaged.
absl::StatusOr<StoredRun> OpenRun(const std::vector<std::string>& folders, Shards wanted,
                                  Others others = Others::kMayWrite);

// A checkpoint's manifest alone: its files are not looked at. Errors name the file.
absl::StatusOr<CheckpointManifest> ReadManifest(const Storage& storage, const std::string& checkpoint);

}  // namespace foreshard
