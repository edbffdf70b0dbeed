// The file run.textproto of a state directory: which run its journal and checkpoints are of,
// so that they can be read without a worker, who would otherwise bring the schema.
//
//   auto found = ReadRunDescription(*storage).value();          // none: a new folder
//   RETURN_IF_ERROR(CheckRun(*found, job, shard));
//   RETURN_IF_ERROR(WriteRunDescription(storage.get(), description));
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/core/schema.h"
#include "common/core/shard_plan.h"
#include "common/storage/storage.h"
#include "foreshard/v1/job.pb.h"
#include "foreshard/v1/state.pb.h"
#include "google/protobuf/message.h"
#include "server/format_range.h"
#include "server/state_identity.h"

namespace foreshard {

inline constexpr char kRunFile[] = "run.textproto";
// RunDescription.watched: an empty file. Removing it is a mark that a full disk takes.
inline constexpr char kJournaledFile[] = "journaled";
inline constexpr uint32_t kRunFormat = 1;
inline constexpr FormatRange kRunFormats = {.oldest = 1, .newest = kRunFormat};

// As it lies in the file: its first line is a comment with the checksum of what is below it
// (XXH3-64), which programs that know of none pass over.
std::string RunDescriptionText(const v1::RunDescription& description);

// None where the folder holds no run. DATA_LOSS: the file cannot be read as one, its checksum is
// wrong (it need not have one), or journal and checkpoints are there without it.
// FAILED_PRECONDITION: a format that this program does not read.
absl::StatusOr<std::optional<v1::RunDescription>> ReadRunDescription(const Storage& storage);

// Of a run that begins; ids and incarnation are the caller's to set.
v1::RunDescription DescribeRun(const v1::JobSpec& job, const Schema& schema, const ShardPlan& plan,
                               uint64_t train_examples, uint32_t shard);

// Safe, with its name, when it has returned.
absl::Status WriteRunDescription(Storage* storage, const v1::RunDescription& description);

// FAILED_PRECONDITION: the run is another job's or shard's, with what differs and what to do.
// `where` names the folder.
absl::Status CheckRun(const v1::RunDescription& found, const v1::JobSpec& job, uint32_t shard,
                      const std::string& where);

// What journal and checkpoints of the run carry; the protocol is that of this program.
StateIdentity IdentityOf(const v1::RunDescription& description);

std::string PrintText(const google::protobuf::Message& message);
// Reads a message as protobuf text, fields of newer programs left out. INVALID_ARGUMENT with line,
// column and what is wrong.
absl::Status ParseText(const std::string& text, google::protobuf::Message* message);

// Writes a small file in one piece: whole, or as it was. `sync`: a lost machine, too, leaves it so.
absl::Status WriteWholeFile(Storage* storage, const std::string& name, const std::string& content,
                            bool sync);

}  // namespace foreshard
