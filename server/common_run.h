// All servers of a run have the state of that run, and none has lost its own: a run whose servers are of
// different runs, or one of them without the values that the others have worked on, is not gone on with.
//
// The lead gives a run its id when it begins (RegisterReply), workers bring it to each server
// (HelloRequest), and each keeps it (RunDescription.common_run_id). Servers without a state directory
// keep nothing, and go by the rest alone.
//
// In rounds they also have to be of one moment: an older copy of one's directory has the run's id, and what came
// after it is missing. Workers bring each server the highest round that another has open.
#pragma once

#include "absl/status/status.h"
#include "foreshard/v1/exchange.pb.h"
#include "server/server_context.h"

namespace foreshard {

// Whether this server has parameters that first values will not do for: updates were applied, or
// `foreshard import` has brought them.
bool RunBegun(const ServerContext& context);

// Rounds: the highest that a segment of this server has open; else 0. After the shard has agreed.
uint64_t OpenRound(const ServerContext& context);

// HelloReply.common_run_id and RegisterReply's: without a state directory a lead's own start is the run.
uint64_t CommonRunId(const ServerContext& context, bool lead);

// The lead's: common_run_id, run_begun and open_round. After the shard has agreed.
void FillCommonRun(const ServerContext& context, v1::RegisterReply* reply);

// Of a worker's Hello, after the shard has agreed. FAILED_PRECONDITION, with the state directory and what to
// do: it is of another run than the lead's; or the run has begun, and this server has no values; or its rounds are
// behind another server's, further than servers of a run that lose nothing can be.
// UNAVAILABLE: what has to be kept of it cannot be written. Readers, and programs that say no id, pass.
absl::Status CheckCommonRun(ServerContext& context, const v1::HelloRequest& request);

}  // namespace foreshard
