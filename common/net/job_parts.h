// From a JobSpec (loaded, so with its defaults) to what the parts of a program are
// made of, so that servers, workers and tools make the same.
//
//   const v1::JobSpec job = LoadJobSpec(path, {}).value();
//   auto schema = FromProto(request.model());
//   auto plan = ShardPlan::Create(*schema, MakePlanOptions(job));
//   v1::Contract contract = MakeContract(job, *schema, *plan);
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/core/codec_settings.h"
#include "common/core/schedule.h"
#include "common/core/schema.h"
#include "common/core/shard_plan.h"
#include "common/net/protocol.h"
#include "foreshard/v1/exchange.pb.h"
#include "foreshard/v1/job.pb.h"

namespace foreshard {

// Whether the job updates once a round: its rule does always, or the job says so.
bool IsSynchronous(const v1::JobSpec& job);
// Whether members of its rounds may come and go: not with elastic averaging, whose workers
// keep parameters of their own.
bool HasViews(const v1::JobSpec& job);

// Batches in one pass over the data; the last one may be short. At least 1.
uint64_t BatchesPerEpoch(const v1::JobSpec& job, uint64_t train_examples);
// Examples of a ticket's batch: the last one of an epoch is what is left.
uint64_t ExamplesOfTicket(const v1::JobSpec& job, uint64_t train_examples, uint64_t ticket);

// The learning rate over the tickets. Tickets are numbered BatchesPerEpoch an epoch
// in every mode, also where a synchronous one leaves an epoch's last ones out.
Schedule MakeSchedule(const v1::JobSpec& job, uint64_t batches_per_epoch);

ShardPlanOptions MakePlanOptions(const v1::JobSpec& job);

CodecSettings MakeCodecSettings(const v1::JobSpec& job);

v1::ModelSchema ToProto(const Schema& schema);
// INVALID_ARGUMENT as Schema::Create.
absl::StatusOr<Schema> FromProto(const v1::ModelSchema& schema);

// Protocol version and the three fingerprints.
v1::Contract MakeContract(const v1::JobSpec& job, const Schema& schema, const ShardPlan& plan,
                          const ProtocolRange& speaks = {});

// The fields in which another program's job, as text, differs from ours, as
// "training.epochs: 5 here, 6 there"; at most three. Empty where there is no
// difference that counts, or no such text.
std::string JobDifference(const v1::JobSpec& ours, const std::string& theirs);

// "3", "3 to 4".
std::string PrintProtocols(const v1::Contract& contract);
// The protocol that the two use: the newest that both speak; 0: there is none.
uint32_t CommonProtocol(const v1::Contract& ours, const v1::Contract& theirs);

// For a worker: the protocol that `server` has said in its reply; 0, where it says none, is the newest
// of `ours`. FAILED_PRECONDITION: this worker does not speak it.
absl::StatusOr<uint32_t> AgreedProtocol(const v1::Contract& ours, uint32_t said, const std::string& server);

// For a server: FAILED_PRECONDITION naming the first field in which `theirs`, the caller's, differs
// from `ours`, and what to do about it; of protocols, what each speaks and who is to be upgraded.
absl::Status CheckContract(const v1::Contract& ours, const v1::Contract& theirs);

}  // namespace foreshard
