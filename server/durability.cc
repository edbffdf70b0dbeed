#include "server/durability.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/net/exchange_message.h"
#include "common/net/job_parts.h"
#include "glog/logging.h"
#include "server/checkpoint_files.h"
#include "server/lead.h"
#include "server/lost_state.h"
#include "server/monotonic_time.h"
#include "server/run_description.h"

namespace foreshard {
namespace {

constexpr double kTellReplaySeconds = 5;

JournalMode ModeOf(const v1::JobSpec& job) {
  if (job.durability().journal() == "off") return JournalMode::kOff;
  return job.durability().journal() == "synced" ? JournalMode::kSynced : JournalMode::kBuffered;
}

}  // namespace

// The shard's segments and the lead's dealer.
class Durability::Target final : public RecoveryTarget {
 public:
  explicit Target(Durability& owner) : owner_(owner) {}

  std::vector<uint32_t> machines() const override {
    std::vector<uint32_t> ids;
    for (const auto& cell : owner_.context_->shard.agreement()->cells) ids.push_back(cell->plan->id);
    if (owner_.lead_ != nullptr) ids.push_back(kDealerSegment);
    return ids;
  }

  void Begin(const CheckpointManifest& checkpoint) override { lead_state_ = LeadStateOf(checkpoint); }

  absl::Status Load(uint32_t machine, const std::string& saved) override {
    if (machine == kDealerSegment) {
      if (!lead_state_.ok()) return lead_state_.status();
      return owner_.lead_->Load(saved, *lead_state_);
    }
    const absl::StatusOr<Shard::Cell*> cell = owner_.context_->shard.FindCell(machine);
    if (!cell.ok()) return cell.status();
    absl::MutexLock lock(&(*cell)->mutex);
    return (*cell)->segment->Load(saved);
  }

  absl::Status Replay(const Event& event) override {
    if (event.segment == kDealerSegment) {
      if (owner_.lead_ != nullptr) return owner_.lead_->Replay(event);
      return absl::InvalidArgumentError("a dealer's event on a server that is not the lead");
    }
    const absl::StatusOr<Shard::Cell*> cell = owner_.context_->shard.FindCell(event.segment);
    if (!cell.ok()) return cell.status();
    if (absl::Status sound = (*cell)->checks->CheckPayload(event); !sound.ok()) return sound;
    absl::MutexLock lock(&(*cell)->mutex);
    return (*cell)->segment->Replay(event);
  }

 private:
  Durability& owner_;
  absl::StatusOr<v1::LeadState> lead_state_{v1::LeadState()};
};

Durability::Durability(const DurabilityOptions& options, const v1::JobSpec& job,
                       std::unique_ptr<Storage> storage)
    : options_(options),
      job_(job),
      mode_(ModeOf(job)),
      continues_(job.durability().on_failure() == "continue"),
      storage_(std::move(storage)),
      boot_id_(ReadBootId(options.boot_id_file)),
      attempted_(MonotonicNanoseconds()) {}

Durability::~Durability() {
  if (absl::Status finished = Finish(); !finished.ok()) LOG(ERROR) << finished;
}

absl::StatusOr<std::unique_ptr<Durability>> Durability::Open(const DurabilityOptions& options,
                                                             const v1::JobSpec& job) {
  absl::StatusOr<std::unique_ptr<Storage>> storage = OpenStorage(options.folder);
  if (!storage.ok()) {
    return absl::Status(storage.status().code(),
                        absl::StrCat("--state-directory: ", storage.status().message()));
  }
  return Open(options, job, *std::move(storage));
}

absl::StatusOr<std::unique_ptr<Durability>> Durability::Open(const DurabilityOptions& options, const v1::JobSpec& job,
                                                             std::unique_ptr<Storage> storage) {
  absl::StatusOr<std::optional<v1::RunDescription>> found = ReadRunDescription(*storage);
  if (!found.ok()) return found.status();
  if (found->has_value()) {
    if (absl::Status same = CheckRun(**found, job, options.shard, storage->Describe("")); !same.ok()) return same;
  }
  std::unique_ptr<Durability> made(new Durability(options, job, std::move(storage)));
  made->found_ = *std::move(found);
  return made;
}

absl::Status Durability::Begin(ServerContext* context, Lead* lead) {
  context_ = context;
  lead_ = lead;
  if (lead != nullptr) {
    lead->set_changed([this] {
      absl::MutexLock lock(&mutex_);
      lead_changed_ = true;
    });
  }
  state_id_ = run_id_ = context->incarnation;
  if (found_.has_value()) {
    if (absl::Status restored = Restore(); !restored.ok()) return restored;
  } else {
    context->shard.set_agreed([this](const Shard::Agreement& agreed) { return BeginRun(agreed); });
  }
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

absl::Status Durability::BeginRun(const Shard::Agreement& agreed) {
  v1::RunDescription description =
      DescribeRun(job_, agreed.schema, agreed.plan, agreed.train_examples, options_.shard);
  description.set_state_id(context_->incarnation);
  description.set_incarnation(context_->incarnation);
  description.set_run_id(context_->incarnation);
  // To others workers bring it.
  if (lead_ != nullptr) description.set_common_run_id(context_->incarnation);
  absl::Status status = WatchOver(&description);
  if (status.ok()) status = OpenJournal(IdentityOf(description), 1);
  if (!status.ok()) {
    LOG(ERROR) << "the state directory cannot be used: " << status;
    return absl::UnavailableError(absl::StrCat("this server cannot write its state: ", status.message()));
  }
  context_->shard.set_last_number(journal_->first_number() - 1);
  return absl::OkStatus();
}

std::string Durability::Describe() const { return absl::StrCat("the state directory ", storage_->Describe("")); }

absl::Status Durability::JoinRun(uint64_t common_run_id) {
  absl::MutexLock lock(&run_mutex_);
  if (lead_ != nullptr || description_.common_run_id() == common_run_id) return absl::OkStatus();
  v1::RunDescription description = description_;
  description.set_common_run_id(common_run_id);
  if (absl::Status written = WriteRunDescription(storage_.get(), description); !written.ok()) {
    return absl::UnavailableError(absl::StrCat("this server cannot write its state: ", written.message()));
  }
  description_ = std::move(description);
  common_run_id_ = common_run_id;
  return absl::OkStatus();
}

void Durability::SetMarks(bool at_rest, v1::RunDescription* description) const {
  const bool journaled = mode_ != JournalMode::kOff;
  description->set_unjournaled(!journaled && !at_rest);
  description->set_boot_id(mode_ == JournalMode::kBuffered && !at_rest ? boot_id_ : "");
  // One that has failed, or said that it might, lacks nothing that a checkpoint has.
  description->set_watched(journaled && (!at_rest || !begun() || (JournalStands() && !is_marked_.load())));
}

absl::Status Durability::WatchOver(v1::RunDescription* description) {
  // What an earlier start has left to the kernel is believed from now on.
  if (absl::Status synced = SyncJournalFiles(*storage_); !synced.ok()) return synced;
  SetMarks(true, description);
  description->set_after_loss(lost_);
  const auto make_mark = [&] {
    if (!description->watched() || storage_->Size(kJournaledFile).ok()) return absl::OkStatus();
    return WriteWholeFile(storage_.get(), kJournaledFile, "", true);
  };
  // Killed in between, the next start must not take a loss for none, nor none for a loss.
  absl::Status status = why_lost_.empty() ? make_mark() : absl::OkStatus();
  if (status.ok()) status = WriteRunDescription(storage_.get(), *description);
  if (status.ok()) status = make_mark();
  if (!status.ok()) return status;
  absl::MutexLock lock(&run_mutex_);
  description_ = *description;
  common_run_id_ = description->common_run_id();
  if (RestMatters(*description)) at_rest_through_ = 0;
  return absl::OkStatus();
}

bool Durability::RestMatters(const v1::RunDescription& at_rest) const {
  v1::RunDescription active = at_rest;
  SetMarks(false, &active);
  return PrintText(active) != PrintText(at_rest);
}

absl::Status Durability::Describe(v1::RunDescription description) {
  if (PrintText(description) == PrintText(description_)) return absl::OkStatus();
  if (absl::Status written = WriteRunDescription(storage_.get(), description); !written.ok()) return written;
  description_ = std::move(description);
  return absl::OkStatus();
}

void Durability::NoteCheckpoint(uint64_t number) {
  absl::MutexLock lock(&run_mutex_);
  v1::RunDescription description = description_;
  description.set_after_loss(false);
  // Said before looking for later events: who has one then has seen it, and waits in EndRest.
  const uint64_t before = at_rest_through_.exchange(number);
  const bool at_rest = context_->shard.last_number() == number;
  if (at_rest) SetMarks(true, &description);
  if (absl::Status written = Describe(std::move(description)); !written.ok()) {
    // What is on the disk is not known then, and with the next event it is written anew.
    LOG(WARNING) << storage_->Describe(kRunFile) << " does not say that nothing is missing: " << written;
    return;
  }
  if (!at_rest) {
    at_rest_through_ = before;
  } else if (!RestMatters(description_)) {
    at_rest_through_ = kNotAtRest;
  }
}

void Durability::EndRest() {
  absl::Status written;
  bool watched;
  {
    absl::MutexLock lock(&run_mutex_);
    if (at_rest_through_ == kNotAtRest) return;
    v1::RunDescription description = description_;
    SetMarks(false, &description);
    written = WriteRunDescription(storage_.get(), description);
    if (written.ok()) {
      description_ = std::move(description);
      at_rest_through_ = kNotAtRest;
      return;
    }
    watched = description_.watched();
  }
  // Where the mark counts it says as much, and a full disk takes it.
  if (continues_ && watched && MarkUnjournaled().ok()) {
    LOG(ERROR) << "training goes on (durability.on_failure: continue), though it cannot be written that there is more "
                  "to keep ("
               << written << "): the next start will take what comes after the newest checkpoint for lost";
    absl::MutexLock lock(&run_mutex_);
    at_rest_through_ = kNotAtRest;
    return;
  }
  if (rest_failed_.exchange(true)) return;
  LOG(ERROR) << "this server ends, since it cannot write that there is more to keep (" << written
             << "); start it again when the disk can be written";
  if (options_.failed) options_.failed(written);
}

absl::Status Durability::OpenJournal(const StateIdentity& identity, uint64_t least_number) {
  absl::StatusOr<std::unique_ptr<Journal>> journal =
      Journal::Open(storage_.get(), {.mode = mode_,
                                     .identity = identity,
                                     .incarnation = context_->incarnation,
                                     .least_number = least_number,
                                     .on_failure = [this](const absl::Status& failure) {
                                       JournalFailed(failure);
                                     }});
  if (!journal.ok()) return journal.status();
  journal_ = *std::move(journal);
  identity_ = identity;
  begun_.store(true, std::memory_order_release);
  return absl::OkStatus();
}

absl::Status Durability::Restore() {
  const int64_t start = MonotonicNanoseconds();
  v1::RunDescription& found = *found_;
  // It was checked that the job is the same; how servers and workers talk may have changed.
  v1::Contract contract = found.contract();
  Shard& shard = context_->shard;
  contract.set_protocol(shard.speaks().newest);
  contract.set_oldest_protocol(shard.speaks().oldest);
  if (absl::Status agreed = shard.Agree(contract, job_.name(), found.model(), found.train_examples());
      !agreed.ok()) {
    return absl::Status(agreed.code(), absl::StrCat(storage_->Describe(kRunFile), ": ", agreed.message()));
  }
  const StateIdentity identity = IdentityOf(found);
  int64_t told = start;
  Target target(*this);
  absl::StatusOr<Recovered> recovered = Recover(
      *storage_, identity, &target, {.proceed = [&](const Event& event, uint64_t replayed) {
        if (SecondsBetween(told, MonotonicNanoseconds()) > kTellReplaySeconds) {
          told = MonotonicNanoseconds();
          LOG(INFO) << "replaying the journal: at event " << event.number << ", " << replayed << " so far";
        }
        return true;
      }});
  if (!recovered.ok()) return recovered.status();
  why_lost_ = WhyLost(found, *storage_, boot_id_);
  const bool lost_now = !why_lost_.empty();
  lost_ = lost_now || found.after_loss();
  // Where nothing was kept yet, it begins anew like any other.
  const bool anything = recovered->checkpoint.has_value() || recovered->replayed > 0;
  if (lost_now && shard.synchronous() && job_.servers().shards() > 1 && anything) {
    return absl::FailedPreconditionError(absl::StrCat(
        storage_->Describe(""), ": ", why_lost_, ", and rounds cannot go on where ", job_.servers().shards(),
        " servers have states of different moments; begin anew with these parameters (foreshard export, then foreshard "
        "import --from), and with a journal that lasts"));
  }
  for (const PassedOver& passed : recovered->passed_over) {
    LOG(WARNING) << storage_->Describe(passed.name) << " was passed over: " << passed.why;
  }
  if (lead_ != nullptr) {
    const absl::StatusOr<std::optional<v1::LeadState>> newer = ReadLeadFile(*storage_);
    // Only what was reported is lost with it.
    if (absl::IsDataLoss(newer.status())) LOG(WARNING) << newer.status().message() << "; it is passed over";
    if (!newer.ok() && !absl::IsDataLoss(newer.status())) return newer.status();
    lead_->Resume(newer.ok() && newer->has_value() ? &**newer : nullptr);
  }
  found.set_incarnation(context_->incarnation);
  if (found.run_id() == 0) found.set_run_id(found.state_id());
  if (lead_ != nullptr && (found.common_run_id() == 0 || (lost_now && !anything))) {
    // A state that was written before runs had one keeps it from now on; and what begins anew is another run.
    found.set_common_run_id(anything ? found.run_id() : context_->incarnation);
  }
  if (lost_now) {
    LOG(WARNING) << storage_->Describe("") << ": " << why_lost_ << "; workers go on with what there is";
    found.set_state_id(context_->incarnation);
  }
  *found.mutable_job() = job_;
  *found.mutable_contract() = contract;
  if (absl::Status watched = WatchOver(&found); !watched.ok()) return watched;
  state_id_ = found.state_id();
  run_id_ = found.run_id();
  if (absl::Status opened = OpenJournal(identity, recovered->next_number); !opened.ok()) return opened;
  shard.set_last_number(journal_->first_number() - 1);
  const uint64_t closed = shard.CloseCompleteRounds();
  RestoreMembers();
  replayed_ = recovered->replayed;
  const double seconds = SecondsBetween(start, MonotonicNanoseconds());
  absl::MutexLock lock(&mutex_);
  restored_ = absl::StrFormat(
      "%s, %d events of the journal replayed, in %.2f s%s",
      recovered->checkpoint_name.empty() ? "no checkpoint" : recovered->checkpoint_name, recovered->replayed,
      seconds, lost_now ? absl::StrCat("; ", why_lost_) : "");
  if (recovered->checkpoint.has_value()) {
    newest_.path = storage_->Describe(recovered->checkpoint_name);
    newest_.step = recovered->checkpoint->about.step;
    newest_.epoch = recovered->checkpoint->about.epoch;
    written_at_ = start;  // as far as this start knows
    newest_number_ = recovered->checkpoint->next_number() - 1;
  }
  LOG(INFO) << "goes on from " << storage_->Describe("") << ": " << restored_ << "; next event "
            << shard.last_number() + 1 << (closed == 0 ? "" : absl::StrCat(", ", closed, " rounds closed"));
  return absl::OkStatus();
}

// Whoever was there has a lease from now on; who comes back must be known, so that older
// incarnations stay fenced.
void Durability::RestoreMembers() {
  const int64_t now = MonotonicNanoseconds();
  const LeadSlots known = lead_ == nullptr ? LeadSlots(0) : lead_->slots();
  for (uint32_t worker = 0; worker < context_->members.slots(); ++worker) {
    uint64_t incarnation = worker < known.size() ? known.known(worker) : 0;
    bool training = worker < known.size() && known.dealing(worker) != 0;
    for (const auto& cell : context_->shard.agreement()->cells) {
      absl::MutexLock lock(&cell->mutex);
      const uint64_t there = cell->segment->incarnation(worker);
      if (there < incarnation) continue;
      training = cell->segment->joined(worker) || (there == incarnation && training);
      incarnation = there;
    }
    if (incarnation == 0) continue;
    const v1::Introduction was = lead_ == nullptr ? v1::Introduction() : lead_->introduction(worker, incarnation);
    context_->members.Restore(worker, incarnation, training, was.name(), was.device(), now);
  }
}

void Durability::Record(const Event& event) {
  if (options_.also != nullptr) options_.also->Record(event);
  if (!begun()) return;
  if (event.number > at_rest_through_.load()) EndRest();
  journal_->Record(event);
}

bool Durability::JournalStands() const {
  return mode_ != JournalMode::kOff && begun() && journal_->status().ok();
}

absl::Status Durability::MarkUnjournaled() const {
  if (is_marked_.load(std::memory_order_acquire)) return absl::OkStatus();
  absl::MutexLock lock(&run_mutex_);
  if (!marked_.has_value()) {
    absl::Status removed = storage_->Remove(kJournaledFile);
    if (removed.ok() || absl::IsNotFound(removed)) removed = storage_->SyncFolder("");
    marked_ = removed;
    is_marked_.store(removed.ok(), std::memory_order_release);
  }
  return *marked_;
}

absl::Status Durability::NoteGoodEnd() {
  absl::MutexLock lock(&run_mutex_);
  v1::RunDescription description = description_;
  SetMarks(true, &description);
  description.set_watched(false);
  return Describe(std::move(description));
}

absl::Status Durability::status() const {
  if (!begun()) return absl::OkStatus();
  if (rest_failed_.load(std::memory_order_acquire)) {
    return absl::UnavailableError("this server ends, since it cannot write its state; start it again when the disk can be written");
  }
  const absl::Status journal = journal_->status();
  if (journal.ok()) return journal;
  // Nobody is told that something is kept before the next start would know what is not.
  if (continues_ && MarkUnjournaled().ok()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("this server ends, since it cannot keep what it is told: ",
                                             journal.message()));
}

void Durability::JournalFailed(const absl::Status& failure) {
  if (continues_) {
    const absl::Status marked = MarkUnjournaled();
    if (marked.ok()) {
      LOG(ERROR) << "training goes on without a journal (durability.on_failure: continue): what comes after "
                    "the newest checkpoint is lost if this server dies";
      return;
    }
    LOG(ERROR) << "this server ends, though durability.on_failure is continue: not even a mark can be left that the "
                  "journal lacks something, without which the next start would not know ("
               << marked.message() << "); start it again when the disk can be written";
  } else {
    if (journal_->may_have_lost()) {
      if (absl::Status marked = MarkUnjournaled(); !marked.ok()) {
        LOG(ERROR) << "no mark can be left that the journal may lack something (" << marked << ")";
      }
    }
    LOG(ERROR) << "this server ends (durability.on_failure: stop); start it again when the disk can be written";
  }
  if (options_.failed) options_.failed(failure);
}

void Durability::FillStatus(v1::StatusReply* reply) const {
  const absl::Status journal = begun() ? journal_->status() : absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  reply->set_state_directory(storage_->Describe(""));
  reply->set_journal(journal.ok() ? job_.durability().journal() : absl::StrCat("failed: ", journal.message()));
  reply->set_checkpoint_age_seconds(
      written_at_.has_value() ? SecondsBetween(*written_at_, MonotonicNanoseconds()) : -1);
  reply->set_checkpoint_step(newest_.step);
  reply->set_replayed_events(replayed_);
  reply->set_restored(restored_);
}

void Durability::UpdateMetrics(ServerMetrics* metrics) {
  if (!begun()) return;
  const JournalFigures figures = journal_->figures();
  absl::MutexLock lock(&mutex_);
  const auto add = [](prometheus::Counter* counter, uint64_t now, uint64_t* told) {
    counter->Increment(static_cast<double>(now - std::exchange(*told, now)));
  };
  add(metrics->journal_events, figures.events, &told_.events);
  add(metrics->journal_bytes, figures.bytes, &told_.bytes);
  add(metrics->journal_syncs, figures.syncs, &told_.syncs);
  add(metrics->checkpoints, checkpoints_, &told_.checkpoints);
  add(metrics->checkpoint_failures, failures_, &told_.failures);
  metrics->journal_failed->Set(journal_->status().ok() ? 0 : 1);
  metrics->checkpoint_duration_seconds->Set(checkpoint_seconds_);
  // Before the first one: since the start.
  metrics->checkpoint_age_seconds->Set(
      SecondsBetween(written_at_.value_or(context_->started), MonotonicNanoseconds()));
}

absl::Status Durability::Finish() {
  {
    absl::MutexLock lock(&mutex_);
    if (closing_) return absl::OkStatus();
    closing_ = true;
  }
  if (thread_.joinable()) thread_.join();
  if (!begun()) return absl::OkStatus();
  bool changed, write;
  {
    absl::MutexLock lock(&mutex_);
    changed = std::exchange(lead_changed_, false);
    write = context_->shard.last_number() > newest_number_;
  }
  absl::Status status;
  if (changed && lead_ != nullptr) SaveLead();
  if (write && context_->shard.MissingSegments().empty()) status = WriteCheckpoint().status();
  absl::Status closed = journal_->Close();
  if (continues_ && !closed.ok()) {
    // As it was asked to; what the checkpoint has is all there is.
    if (status.ok()) {
      LOG(WARNING) << "trained on without a journal, as durability.on_failure: continue says, since that failed ("
                   << closed.message() << "): the last checkpoint has everything";
    }
    closed = absl::OkStatus();
  }
  status.Update(closed);
  const bool has_all = [&] {
    absl::MutexLock lock(&mutex_);
    return context_->shard.last_number() <= newest_number_;
  }();
  if (has_all || (status.ok() && JournalStands())) status.Update(NoteGoodEnd());
  return status;
}

}  // namespace foreshard
