#include "server/state_identity.h"

#include "absl/strings/str_cat.h"

namespace foreshard {

absl::Status CheckIdentity(absl::string_view what, const StateIdentity& ours, const StateIdentity& theirs) {
  const auto differs = [&](absl::string_view field, const auto& there, const auto& here) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, " has another ", field, ": ", there, " there, ", here,
                     " here; give this server its own folder, or an empty one to start anew"));
  };
  const auto hex = [](uint64_t value) { return absl::StrCat(absl::Hex(value, absl::kZeroPad16)); };
  if (theirs.job != ours.job) return differs("job (fingerprint)", hex(theirs.job), hex(ours.job));
  if (theirs.shards != ours.shards) return differs("number of shards", theirs.shards, ours.shards);
  if (theirs.shard != ours.shard) return differs("shard", theirs.shard, ours.shard);
  if (theirs.schema != ours.schema) {
    return differs("model schema (fingerprint)", hex(theirs.schema), hex(ours.schema));
  }
  if (theirs.plan != ours.plan) {
    return differs("shard plan (fingerprint)", hex(theirs.plan), hex(ours.plan));
  }
  if (theirs.run != 0 && ours.run != 0 && theirs.run != ours.run) {
    return differs("run of the same job (common_run_id)", hex(theirs.run), hex(ours.run));
  }
  return absl::OkStatus();
}

}  // namespace foreshard
