#include "server/common_run.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/durability.h"

namespace foreshard {
namespace {

std::string Hex(uint64_t id) { return absl::StrCat(absl::Hex(id, absl::kZeroPad16)); }

}  // namespace

bool RunBegun(const ServerContext& context) {
  if (context.durability != nullptr && context.durability->imported()) return true;
  const Shard::Agreement* agreed = context.shard.agreement();
  if (agreed == nullptr) return false;
  return std::any_of(agreed->cells.begin(), agreed->cells.end(), [](const auto& cell) {
    absl::MutexLock lock(&cell->mutex);
    return cell->segment->version() > 0 || cell->segment->clock() > 0;
  });
}

void FillCommonRun(const ServerContext& context, v1::RegisterReply* reply) {
  const Durability* durability = context.durability;
  reply->set_common_run_id(durability == nullptr ? context.incarnation : durability->common_run_id());
  reply->set_run_begun(durability != nullptr && RunBegun(context));
}

absl::Status CheckCommonRun(ServerContext& context, const v1::HelloRequest& request) {
  if (request.reader() || request.common_run_id() == 0) return absl::OkStatus();
  const size_t segments = context.shard.agreement()->cells.size();
  const size_t missing = context.shard.MissingSegments().size();
  Durability* const durability = context.durability;
  const std::string where = durability == nullptr ? "" : durability->Describe();
  if (durability != nullptr && missing < segments) {
    const uint64_t ours = durability->common_run_id();
    constexpr char kRemedy[] =
        " Give every server the directory that it had in the run that is to go on; or begin anew, with an empty one for "
        "each, or with those that foreshard import makes (of what foreshard export has made of one run's directories)";
    if (ours != 0 && ours != request.common_run_id()) {
      return absl::FailedPreconditionError(absl::StrCat(
          where, " holds the state of run ", Hex(ours), ", and the lead, the server of shard 0, has that of run ",
          Hex(request.common_run_id()), ", or was started without its own: what they hold does not belong together.", kRemedy));
    }
    // Of a program that knew no ids; that it is of the same run as the lead's state is to be taken on trust.
    if (ours == 0 && !request.run_begun() && RunBegun(context)) {
      return absl::FailedPreconditionError(
          absl::StrCat(where, " holds the state of a run that has begun, and the lead, the server of shard 0, begins one: "
                       "it was started without its own state.", kRemedy));
    }
  }
  if (request.run_begun() && missing > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        durability == nullptr ? std::string("this server was started without --state-directory, and has")
                              : absl::StrCat(where, " has"),
        " no values of ", missing, " of ", segments, " segments, and run ", Hex(request.common_run_id()),
        " has begun on the lead, the server of shard 0: first values would not go with what that has. Is it the directory "
        "that this server had (a volume that is not mounted, a new claim, a slip in the path)? Bring that back and start this "
        "server again; or begin anew, with an empty one for each server, or with those that foreshard import makes"));
  }
  return durability == nullptr ? absl::OkStatus() : durability->JoinRun(request.common_run_id());
}

}  // namespace foreshard
