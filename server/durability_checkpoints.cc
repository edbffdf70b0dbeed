// Durability's thread: when a checkpoint is due or asked for, and how it is written.
#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "glog/logging.h"
#include "server/checkpoint_files.h"
#include "server/durability.h"
#include "server/lead.h"
#include "server/monotonic_time.h"
#include "server/run_description.h"

namespace foreshard {
namespace {

// How often the thread looks whether a checkpoint is due.
constexpr absl::Duration kLook = absl::Milliseconds(500);

double Mebibytes(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

void Durability::RequestCheckpoint(std::function<void(absl::StatusOr<Written>)> done) {
  {
    absl::MutexLock lock(&mutex_);
    if (!closing_) {
      requests_.push_back(std::move(done));
      return;
    }
  }
  done(absl::UnavailableError("this server is shutting down"));
}

bool Durability::CheckpointIsDue() const {
  if (!begun()) return false;
  if (context_->shard.last_number() <= newest_number_) return false;
  const v1::DurabilitySpec& spec = job_.durability();
  return SecondsBetween(attempted_, MonotonicNanoseconds()) >= spec.checkpoint_seconds() ||
         journal_->figures().bytes - journal_bytes_then_ >= spec.checkpoint_journal_bytes();
}

void Durability::Run() {
  for (;;) {
    std::vector<std::function<void(absl::StatusOr<Written>)>> requests;
    bool due = false, lead_changed = false;
    {
      absl::MutexLock lock(&mutex_);
      const auto wake = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return closing_ || !requests_.empty() || lead_changed_;
      };
      mutex_.AwaitWithTimeout(absl::Condition(&wake), kLook);
      requests.swap(requests_);
      if (closing_ && requests.empty()) return;
      due = CheckpointIsDue();
      lead_changed = std::exchange(lead_changed_, false) && begun();
    }
    if (lead_changed) SaveLead();
    if (!due && requests.empty()) continue;
    const absl::StatusOr<Written> written = WriteCheckpoint();
    for (const auto& done : requests) done(written);
  }
}

void Durability::SaveLead() {
  const absl::Status saved = WriteWholeFile(storage_.get(), kLeadFile, PrintText(lead_->state()),
                                            mode_ == JournalMode::kSynced);
  if (!saved.ok()) LOG(ERROR) << "what the lead was told is not kept: " << saved;
}

absl::StatusOr<Durability::Written> Durability::WriteCheckpoint() {
  const int64_t start = MonotonicNanoseconds();
  const Shard::Agreement* agreed = context_->shard.agreement();
  if (agreed == nullptr || !context_->shard.MissingSegments().empty()) {
    absl::MutexLock lock(&mutex_);
    attempted_ = start;
    return absl::FailedPreconditionError(
        "there is nothing to write yet: no worker has brought the first values");
  }
  const uint64_t number = context_->shard.last_number();
  const uint64_t journal_bytes = journal_->figures().bytes;
  Written written;
  auto committed = WriteFiles(*agreed, &written);
  written.seconds = SecondsBetween(start, MonotonicNanoseconds());
  if (committed.ok()) NoteCheckpoint(number);
  absl::MutexLock lock(&mutex_);
  attempted_ = start;
  if (!committed.ok()) {
    ++failures_;
    LOG(ERROR) << "no checkpoint was written, the last one stays: " << committed.status();
    return committed.status();
  }
  ++checkpoints_;
  checkpoint_seconds_ = written.seconds;
  written_at_ = MonotonicNanoseconds();
  newest_ = written;
  newest_number_ = number;
  journal_bytes_then_ = journal_bytes;
  LOG(INFO) << absl::StrFormat("%s: step %d, %.1f MiB in %.2f s, no segment held for more than %.2f ms",
                               written.path, written.step, Mebibytes(written.bytes), written.seconds,
                               written.longest_hold_seconds * 1e3);
  return written;
}

absl::StatusOr<CheckpointWriter::Committed> Durability::WriteFiles(const Shard::Agreement& agreed,
                                                                   Written* written) {
  CheckpointAbout about = {.identity = identity_, .incarnation = context_->incarnation};
  about.identity.run = common_run_id_;  // workers may have brought it since
  uint64_t highest = 0;  // of the numbers that states have
  if (JournalStands()) {
    const absl::StatusOr<uint64_t> file = journal_->Rotate();
    if (!file.ok()) return file.status();
    about.journal_file = *file;
  }
  for (const auto& cell : agreed.cells) {
    absl::MutexLock lock(&cell->mutex);
    written->step = std::max(written->step, cell->segment->clock());
  }
  written->epoch = static_cast<uint32_t>(written->step / agreed.batches_per_epoch);
  about.step = written->step;
  about.epoch = written->epoch;
  std::optional<Lead::Saved> lead;
  if (lead_ != nullptr) lead = lead_->Save();
  if (lead.has_value()) about.extra[kLeadStateKey] = PrintText(lead->state);
  const bool journaled = about.journal_file != 0;
  auto writer = CheckpointWriter::Begin(storage_.get(), std::move(about), agreed.schema, agreed.plan);
  if (!writer.ok()) return writer.status();
  if (lead.has_value()) {
    highest = std::max(highest, lead->number);
    if (absl::Status added = (*writer)->AddDealer(lead->number, lead->dealer); !added.ok()) return added;
  }
  Shard::Snapshot snapshot;
  for (const auto& cell : agreed.cells) {
    context_->shard.TakeSnapshot(*cell, &snapshot);
    written->longest_hold_seconds = std::max(written->longest_hold_seconds, snapshot.held_seconds);
    highest = std::max(highest, snapshot.number);
    written->bytes += snapshot.state.size() + snapshot.theta.size() * sizeof(float);
    if (absl::Status added =
            (*writer)->AddSegment(cell->plan->id, snapshot.number, snapshot.theta, snapshot.state);
        !added.ok()) {
      return added;
    }
  }
  // No checkpoint may be ahead of the journal.
  if (journaled) {
    if (absl::Status synced = journal_->SyncThrough(highest); !synced.ok()) return synced;
  }
  auto committed = (*writer)->Commit(job_.durability().keep_checkpoints());
  if (!committed.ok()) return committed;
  written->path = storage_->Describe(committed->name);
  if (!committed->removal.ok()) LOG(WARNING) << "older checkpoints stay: " << committed->removal;
  if (JournalStands() && committed->journal_file != 0 && !job_.durability().keep_journal()) {
    if (absl::Status removed = journal_->RemoveBefore(committed->journal_file, committed->journal_number);
        !removed.ok()) {
      LOG(WARNING) << "older files of the journal stay: " << removed;
    }
  }
  return committed;
}

}  // namespace foreshard
