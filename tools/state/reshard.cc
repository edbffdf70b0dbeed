#include "tools/state/reshard.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/net/job_parts.h"
#include "common/net/job_spec.h"
#include "server/checkpoint_files.h"
#include "server/job_machines.h"
#include "server/lead_slots.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

// The number of the event that the states stand for. Not 0: a journal that begins with event 1
// would look as if all could be made again from it.
constexpr uint64_t kMadeAt = 1;

bool SameBlocks(const std::vector<Block>& a, const std::vector<Block>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Block& x, const Block& y) {
    return x.offset == y.offset && x.elements == y.elements && x.decayed == y.decayed && x.full == y.full &&
           x.dead == y.dead;
  });
}

// Folders that were made, removed unless all is well.
struct MadeFolders {
  std::vector<std::string> folders;
  bool keep = false;
  ~MadeFolders() {
    std::error_code error;
    for (const std::string& folder : folders) {
      if (!keep) fs::remove_all(folder, error);
    }
  }
};

// With nobody there: what workers had in hand is dealt again.
absl::StatusOr<std::string> DealerWithoutWorkers(const StoredRun& from, const StoredRun& to, const Dealer& dealer) {
  Dealer fresh(MakeDealerOptions(to.job, to.batches_per_epoch));
  if (absl::Status loaded = fresh.Load(dealer.Save()); !loaded.ok()) return loaded;
  for (uint32_t worker = 0; worker < from.job.training().max_workers(); ++worker) {
    fresh.Apply({DealerEvent::Kind::kLost, worker});
  }
  return fresh.Save();
}

// A segment that has these values and nothing else.
absl::StatusOr<std::string> FreshState(const StoredRun& to, uint32_t id, const std::vector<float>& values) {
  auto segment = Segment::Create(MakeSegmentOptions(to.job, to.plan.segments()[id], to.batches_per_epoch));
  if (!segment.ok()) return segment.status();
  const ByteSpan piece(reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float));
  const Event event = {.kind = EventKind::kInitialise,
                       .segment = id,
                       .payload = {absl::MakeConstSpan(&piece, 1), piece.size()}};
  // Which refuses values that are not finite.
  if (absl::Status replayed = (*segment)->Replay(event); !replayed.ok()) return replayed;
  return (*segment)->Save();
}

}  // namespace

absl::StatusOr<StoredRun> PlanRun(const v1::JobSpec& job, const Schema& schema, uint64_t train_examples) {
  StoredRun run;
  run.job = job;
  run.schema = schema;
  auto plan = ShardPlan::Create(schema, MakePlanOptions(job));
  if (!plan.ok()) return plan.status();
  run.plan = *std::move(plan);
  run.train_examples = train_examples;
  run.batches_per_epoch = BatchesPerEpoch(job, train_examples);
  run.synchronous = IsSynchronous(job);
  return run;
}

std::string WhyStatesCannotMove(const StoredRun& from, const StoredRun& to) {
  v1::JobSpec same = from.job;
  same.mutable_servers()->set_shards(to.job.servers().shards());
  if (JobFingerprint(same) != JobFingerprint(to.job)) {
    const std::string difference = JobDifference(same, PrintJobSpec(to.job));
    return absl::StrCat("the job is another (", difference, ")");
  }
  if (from.schema.fingerprint() != to.schema.fingerprint()) return "the model is another";
  if (from.train_examples != to.train_examples) return "the training data are others";
  const auto& before = from.plan.segments();
  const auto& after = to.plan.segments();
  for (size_t k = 0; k < std::min(before.size(), after.size()); ++k) {
    if (before[k].begin != after[k].begin || before[k].elements != after[k].elements || before[k].kind != after[k].kind ||
        !SameBlocks(before[k].blocks, after[k].blocks)) {
      return absl::StrCat("segment ", k, " holds other elements (", before[k].begin, " to ",
                          before[k].begin + before[k].elements - 1, " before, ", after[k].begin, " to ",
                          after[k].begin + after[k].elements - 1, " now)");
    }
  }
  if (before.size() != after.size()) {
    return absl::StrCat("there were ", before.size(), " segments, and now there are ", after.size());
  }
  return "";
}

absl::Status CheckOneMoment(const StoredRun& run, const std::vector<std::unique_ptr<ShardMachines>>& machines,
                            bool whole) {
  if (!run.synchronous || run.shards.size() < 2) return absl::OkStatus();
  for (const StateDirectory& shard : run.shards) {
    if (shard.lost.empty()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        shard.folder, ": ", shard.lost, ", and rounds of ", run.shards.size(), " servers cannot go on with states of different moments"));
  }
  // Each with its shard.
  std::pair<uint64_t, uint32_t> least = {~uint64_t{0}, 0}, greatest = {0, 0};
  for (size_t shard = 0; shard < machines.size(); ++shard) {
    for (const auto& segment : machines[shard]->segments()) {
      if (!machines[shard]->options(segment->plan().id).synchronous) continue;
      const std::pair<uint64_t, uint32_t> open = {segment->open_round(), static_cast<uint32_t>(shard)};
      least = std::min(least, open);
      greatest = std::max(greatest, open);
    }
  }
  if (greatest.first <= least.first + (whole ? 1 : 0)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the shards' states are of different rounds: shard ", least.second, " has round ", least.first, " open (",
      run.shards[least.second].folder, "), shard ", greatest.second, " round ", greatest.first, " (",
      run.shards[greatest.second].folder, "): give directories of one moment, as they are after all servers were ended with SIGTERM"));
}

absl::StatusOr<Reshaped> WriteRun(const StoredRun& to, const ParameterSource& source, const MovedState* moved,
                                  const std::string& folder, WorkWatch* watch) {
  Reshaped reshaped;
  std::string dealer, lead;
  if (moved == nullptr) {
    reshaped.why_not = "the file has parameters only";
  } else {
    reshaped.why_not = WhyStatesCannotMove(*moved->run, to);
    reshaped.states = reshaped.why_not.empty();
    const Dealer* const before = moved->machines->front()->dealer();
    // Rounds of segments that begin anew are numbered from 0, and so must be the dealer's.
    v1::JobSpec same = moved->run->job;
    same.mutable_servers()->set_shards(to.job.servers().shards());
    const bool deals_alike = JobFingerprint(same) == JobFingerprint(to.job) &&
                             moved->run->train_examples == to.train_examples;
    if (before != nullptr && (reshaped.states || (deals_alike && !to.synchronous))) {
      auto state = reshaped.states ? before->Save() : DealerWithoutWorkers(*moved->run, to, *before);
      if (!state.ok()) return state.status();
      dealer = *std::move(state);
      reshaped.dealer = true;
      reshaped.completed_tickets = before->completed_tickets();
      reshaped.stopped = before->stopped();
      // Whose tickets in hand are dealt again should they not come back.
      v1::LeadState known = moved->machines->front()->lead();
      const auto newer = ReadLeadFile(*moved->run->shards.front().storage);
      if (!newer.ok()) {
        return absl::Status(newer.status().code(),
                            absl::StrCat(newer.status().message(), "; without the file, what was reported since the "
                                         "last checkpoint is left out"));
      }
      if (newer->has_value()) TakeNewer(**newer, &known);
      if (!reshaped.states) {
        known.clear_dealing();
        known.clear_examples();
      }
      lead = PrintText(known);
    }
  }
  for (uint32_t shard = 0; shard < to.plan.shards(); ++shard) {
    const std::string path = (fs::path(folder) / absl::StrCat("shard-", shard)).string();
    std::error_code error;
    if (!fs::exists(path, error)) continue;
    return absl::AlreadyExistsError(absl::StrCat("--output: ", path, " is there already; give a new folder"));
  }
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return StorageError(error.value(), "create", folder);
  MadeFolders made;
  const auto incarnation = static_cast<uint64_t>(absl::ToUnixMicros(absl::Now()));
  std::vector<float> values;
  for (uint32_t shard = 0; shard < to.plan.shards(); ++shard) {
    const std::string path = (fs::path(folder) / absl::StrCat("shard-", shard)).string();
    made.folders.push_back(path);
    auto storage = OpenStorage(path);
    if (!storage.ok()) return storage.status();
    v1::RunDescription description = DescribeRun(to.job, to.schema, to.plan, to.train_examples, shard);
    description.set_state_id(incarnation + shard);
    description.set_incarnation(incarnation);
    description.set_run_id(description.state_id());
    description.set_common_run_id(incarnation);
    description.set_imported(true);
    // All later events are in the journal that a server begins here, from file 1 on.
    CheckpointAbout about = {.identity = IdentityOf(description), .incarnation = incarnation, .journal_file = 1};
    if (shard == 0 && reshaped.dealer) about.extra[kLeadStateKey] = lead;
    if (reshaped.dealer) {
      about.step = reshaped.completed_tickets;
      about.epoch = static_cast<uint32_t>(about.step / to.batches_per_epoch);
    }
    auto writer = CheckpointWriter::Begin(storage->get(), std::move(about), to.schema, to.plan);
    if (!writer.ok()) return writer.status();
    for (const uint32_t id : to.plan.SegmentsOfShard(shard)) {
      if (!watch->Proceed(absl::StrCat("writing ", path, ", segment"), id)) return WorkWatch::Cancelled();
      const SegmentPlan& segment = to.plan.segments()[id];
      values.resize(segment.elements);
      if (absl::Status read = source.Read(segment.begin, absl::MakeSpan(values)); !read.ok()) return read;
      absl::StatusOr<std::string> state;
      if (reshaped.states) {
        state = moved->machines->at(moved->run->plan.segments()[id].shard)->Save(id);
      } else {
        state = FreshState(to, id, values);
      }
      if (!state.ok()) return state.status();
      if (absl::Status added = (*writer)->AddSegment(id, kMadeAt, values, *state); !added.ok()) return added;
    }
    if (shard == 0 && reshaped.dealer) {
      if (absl::Status added = (*writer)->AddDealer(kMadeAt, dealer); !added.ok()) return added;
    }
    if (const auto committed = (*writer)->Commit(1); !committed.ok()) return committed.status();
    if (absl::Status written = WriteRunDescription(storage->get(), description); !written.ok()) return written;
  }
  made.keep = true;
  return reshaped;
}

}  // namespace foreshard
