#include "tools/state/state_directory.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/net/job_parts.h"
#include "common/net/job_spec.h"
#include "server/boot_id.h"
#include "server/checkpoint_format.h"
#include "server/lost_state.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kShardFolder = "shard-";

// Folders shard-0, shard-1 ... in this one, by number.
std::vector<std::string> ShardFolders(const std::string& parent) {
  std::map<uint32_t, std::string> found;
  std::error_code error;
  for (fs::directory_iterator at(parent, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    uint32_t shard = 0;
    if (name.rfind(kShardFolder, 0) != 0 || !absl::SimpleAtoi(name.substr(kShardFolder.size()), &shard)) continue;
    if (at->is_directory(error)) found[shard] = at->path().string();
  }
  std::vector<std::string> folders;
  for (auto& [shard, folder] : found) folders.push_back(std::move(folder));
  return folders;
}

absl::StatusOr<StateDirectory> Open(const std::string& folder, Others others) {
  StateDirectory directory = {.folder = folder};
  auto storage = OpenStorageToRead(folder, others);
  if (!storage.ok()) return storage.status();
  directory.storage = *std::move(storage);
  auto description = ReadRunDescription(*directory.storage);
  if (!description.ok()) return description.status();
  if (!description->has_value()) {
    return absl::NotFoundError(absl::StrCat(folder, ": holds no state: neither ", kRunFile,
                                            " nor folders shard-0, shard-1 ...; give what "
                                            "foreshard-server was given as --state-directory"));
  }
  directory.description = **std::move(description);
  directory.shard = directory.description.shard();
  directory.identity = IdentityOf(directory.description);
  directory.lost = WhyLost(directory.description, *directory.storage, ReadBootId());
  return directory;
}

// What one description says of the run, checked.
absl::Status FillRun(const StateDirectory& directory, StoredRun* run) {
  const v1::RunDescription& description = directory.description;
  const auto damaged = [&](absl::string_view why) {
    return absl::DataLossError(absl::StrCat(directory.storage->Describe(kRunFile), " is damaged: ", why,
                                            "; restore it from a copy"));
  };
  run->job = description.job();
  if (absl::Status valid = ValidateJobSpec(run->job); !valid.ok()) {
    return damaged(absl::StrCat("its job: ", valid.message()));
  }
  auto schema = FromProto(description.model());
  if (!schema.ok()) return damaged(schema.status().message());
  auto plan = ShardPlan::Create(*schema, MakePlanOptions(run->job));
  if (!plan.ok()) return damaged(plan.status().message());
  run->schema = *std::move(schema);
  run->plan = *std::move(plan);
  const v1::Contract contract = MakeContract(run->job, run->schema, run->plan);
  if (contract.schema() != description.contract().schema()) return damaged("its model is not the contract's");
  if (contract.plan() != description.contract().plan()) return damaged("its plan is not the contract's");
  if (contract.job() != description.contract().job()) return damaged("its job is not the contract's");
  if (description.train_examples() == 0) return damaged("it has no train_examples");
  run->train_examples = description.train_examples();
  run->batches_per_epoch = BatchesPerEpoch(run->job, run->train_examples);
  run->synchronous = IsSynchronous(run->job);
  return absl::OkStatus();
}

absl::Status CheckSameRun(const StateDirectory& first, const StateDirectory& other) {
  const uint64_t run = first.description.common_run_id(), others = other.description.common_run_id();
  if (run != 0 && others != 0 && run != others) {
    return absl::FailedPreconditionError(absl::StrCat(
        first.folder, " and ", other.folder, " are of two runs of the same job, ", absl::Hex(run, absl::kZeroPad16), " and ",
        absl::Hex(others, absl::kZeroPad16), " (common_run_id in ", kRunFile, "): give the directories of one run"));
  }
  StateIdentity theirs = other.identity;
  theirs.shard = first.identity.shard;
  absl::Status same = CheckIdentity(other.folder, first.identity, theirs);
  if (same.ok() && first.description.train_examples() != other.description.train_examples()) {
    same = absl::FailedPreconditionError(
        absl::StrCat(other.folder, ": trained on ", other.description.train_examples(), " examples, not ",
                     first.description.train_examples()));
  }
  if (same.ok()) return same;
  return absl::FailedPreconditionError(absl::StrCat(first.folder, " and ", other.folder,
                                                    " are not of one run: ", same.message()));
}

}  // namespace

absl::StatusOr<StoredRun> OpenRun(const std::vector<std::string>& folders, Shards wanted, Others others) {
  std::vector<std::string> all;
  for (const std::string& folder : folders) {
    std::error_code error;
    if (!fs::is_directory(folder, error)) {
      return absl::NotFoundError(absl::StrCat(folder, ": there is no such folder"));
    }
    std::vector<std::string> parts;
    if (!fs::exists(fs::path(folder) / kRunFile, error)) parts = ShardFolders(folder);
    if (parts.empty()) {
      all.push_back(folder);
    } else {
      all.insert(all.end(), parts.begin(), parts.end());
    }
  }
  if (all.empty()) return absl::InvalidArgumentError("no state directory is given");
  StoredRun run;
  for (const std::string& folder : all) {
    auto opened = Open(folder, others);
    if (!opened.ok()) return opened.status();
    if (!run.shards.empty()) {
      if (absl::Status same = CheckSameRun(run.shards.front(), *opened); !same.ok()) return same;
    }
    for (const StateDirectory& other : run.shards) {
      if (other.shard != opened->shard) continue;
      return absl::FailedPreconditionError(absl::StrCat(other.folder, " and ", folder, " are both of shard ",
                                                        other.shard, "; give each shard once"));
    }
    run.shards.push_back(*std::move(opened));
  }
  if (absl::Status filled = FillRun(run.shards.front(), &run); !filled.ok()) return filled;
  std::sort(run.shards.begin(), run.shards.end(),
            [](const StateDirectory& a, const StateDirectory& b) { return a.shard < b.shard; });
  std::set<uint32_t> missing;
  for (uint32_t shard = 0; shard < run.plan.shards(); ++shard) missing.insert(shard);
  for (const StateDirectory& shard : run.shards) {
    if (missing.erase(shard.shard) > 0) continue;
    return absl::DataLossError(absl::StrCat(shard.storage->Describe(kRunFile), " is damaged: shard ", shard.shard,
                                            " of ", run.plan.shards()));
  }
  if (wanted == Shards::kAll && !missing.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job '", run.job.name(), "' has ", run.plan.shards(), " shards; missing ",
                     missing.size() == 1 ? "is shard " : "are shards ", absl::StrJoin(missing, ", "),
                     "; give the state directories of all servers"));
  }
  return run;
}

absl::StatusOr<CheckpointManifest> ReadManifest(const Storage& storage, const std::string& checkpoint) {
  const std::string path = absl::StrCat(checkpoint, "/", internal::kManifestName);
  const auto bytes = storage.Size(path);
  if (!bytes.ok()) return bytes.status();
  const auto text = storage.ReadAt(path, 0, std::min(*bytes, kMaxManifestBytes + 1));
  if (!text.ok()) return text.status();
  auto manifest = ParseManifest(*text);
  if (manifest.ok()) return manifest;
  return absl::Status(manifest.status().code(),
                      absl::StrCat(storage.Describe(path), ": ", manifest.status().message()));
}

}  // namespace foreshard
