#include "server/common_run.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/net/job_parts.h"
#include "server/durability.h"
#include "server/job_machines.h"

namespace foreshard {
namespace {

std::string Hex(uint64_t id) { return absl::StrCat(absl::Hex(id, absl::kZeroPad16)); }

// One server alone may have lost something, and its workers know more.
absl::Status CheckOpenRound(const ServerContext& context, const v1::HelloRequest& request, const std::string& where) {
  if (!context.shard.synchronous() || context.job.servers().shards() < 2) return absl::OkStatus();
  const uint64_t ours = OpenRound(context);
  if (request.open_round() <= ours || request.open_round() - ours <= MostRoundsApart(context.job)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      where.empty() ? "this server" : where, " has round ", ours, " open, and the server of shard ", request.open_round_shard(),
      " round ", request.open_round(), ": they are not of one moment of the run. Is one an older copy? Give every server "
      "the directory that it had when all of them had ended, or copies that were made then; or begin anew with the parameters that "
      "there are (foreshard export --force, then foreshard import --from)"));
}

}  // namespace

uint64_t OpenRound(const ServerContext& context) {
  uint64_t round = 0;
  for (const auto& cell : context.shard.agreement()->cells) {
    if (!cell->synchronous) continue;
    absl::MutexLock lock(&cell->mutex);
    round = std::max(round, cell->segment->open_round());
  }
  return round;
}

bool RunBegun(const ServerContext& context) {
  if (context.durability != nullptr && context.durability->imported()) return true;
  const Shard::Agreement* agreed = context.shard.agreement();
  if (agreed == nullptr) return false;
  return std::any_of(agreed->cells.begin(), agreed->cells.end(), [](const auto& cell) {
    absl::MutexLock lock(&cell->mutex);
    return cell->segment->version() > 0 || cell->segment->clock() > 0;
  });
}

uint64_t CommonRunId(const ServerContext& context, bool lead) {
  if (context.durability != nullptr) return context.durability->common_run_id();
  return lead ? context.incarnation : 0;
}

void FillCommonRun(const ServerContext& context, v1::RegisterReply* reply) {
  reply->set_common_run_id(CommonRunId(context, /*lead=*/true));
  reply->set_run_begun(context.durability != nullptr && RunBegun(context));
  reply->set_open_round(OpenRound(context));
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
  if (missing == 0) {
    if (absl::Status one = CheckOpenRound(context, request, where); !one.ok()) return one;
  }
  return durability == nullptr ? absl::OkStatus() : durability->JoinRun(request.common_run_id());
}

}  // namespace foreshard
