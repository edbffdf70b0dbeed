// State directories made for another number of servers, or from a file of parameters: each gets
// run.textproto and one checkpoint, with which a server that is started on it goes on.
//
//   StoredRun target = PlanRun(job, schema, train_examples).value();
//   auto moved = WriteRun(target, *source, &from, "results/state-of-3", &watch).value();
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "foreshard/v1/job.pb.h"
#include "tools/state/long_work.h"
#include "tools/state/replay.h"
#include "tools/state/state_directory.h"
#include "tools/state/whole_model.h"

namespace foreshard {

// A run without directories. Errors as ShardPlan::Create.
absl::StatusOr<StoredRun> PlanRun(const v1::JobSpec& job, const Schema& schema, uint64_t train_examples);

// Why the segments' states, momentum and all, cannot go over from one run's machines to the other's as they
// are; empty where they can. They can where both cut the vector into the same segments (shards may
// be others), and nothing of the job differs but servers.shards, and what is no part of its fingerprint.
std::string WhyStatesCannotMove(const StoredRun& from, const StoredRun& to);

// Whether the shards' states go together. FAILED_PRECONDITION where they are of rounds on several servers and one may
// lack what was acknowledged; or where their open rounds are further apart than a moment can leave them: by one, if
// `whole` states are moved, which go on with what each has; else by none.
absl::Status CheckOneMoment(const StoredRun& run, const std::vector<std::unique_ptr<ShardMachines>>& machines, bool whole);

// What a run is made from beside its parameters.
struct MovedState {
  const StoredRun* run = nullptr;
  const std::vector<std::unique_ptr<ShardMachines>>* machines = nullptr;  // by shard, values in all
};

struct Reshaped {
  // Whole states moved. Else: the parameters, to the bit, and all else begins anew.
  bool states = false;
  std::string why_not;   // where they are not
  // The dealer: training goes on with the batch after those that are complete, else with the first.
  bool dealer = false;
  uint64_t completed_tickets = 0;
  bool stopped = false;  // the job was, and so it stays: nothing more is dealt
};

// Makes `folder`/shard-0, shard-1 and so on. `moved` may be null. ALREADY_EXISTS: one of them is there.
// Where it fails or is cancelled, what was made is removed.
absl::StatusOr<Reshaped> WriteRun(const StoredRun& to, const ParameterSource& source, const MovedState* moved,
                                  const std::string& folder, WorkWatch* watch);

}  // namespace foreshard
