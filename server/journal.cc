#include "server/journal.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "server/journal_reader.h"

namespace foreshard {
namespace {

// Of one write; what is more has to wait for the next.
constexpr size_t kMostRecords = 1024;
constexpr uint64_t kMostBytes = 64 << 20;
// Finished files that a buffered journal leaves to the kernel; the oldest is then
// gigabytes behind and mostly written.
constexpr size_t kMostUnsynced = 8;
// Patience is measured in parts, so that a process that was stopped has lost one of them.
constexpr int kPatienceParts = 10;
constexpr uint64_t kMostPayloadBytes = (uint64_t{1} << 32) - 1 - kEventOverheadBytes;

// Of an event that stays away.
absl::Status Missing(const absl::Status& came) {
  return absl::InternalError(absl::StrCat(came.message(),
                                          ", although it has its number, and later ones wait for it; this is a "
                                          "fault of the server, please report it"));
}

}  // namespace

// What a killed process has written was read and believed; so it must be safe before
// anything is acknowledged that builds upon it.
absl::Status SyncJournalFiles(Storage& storage) {
  const auto files = ListJournalFiles(storage);
  if (!files.ok()) return files.status();
  // Of a buffered one, the file that was written and those that were left to the kernel.
  for (size_t k = files->size() - std::min(files->size(), kMostUnsynced + 1); k < files->size(); ++k) {
    if (absl::Status synced = storage.SyncFile((*files)[k].name); !synced.ok()) return synced;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Journal>> Journal::Open(Storage* storage, JournalOptions options) {
  if (options.mode == JournalMode::kOff) {
    std::unique_ptr<Journal> journal(new Journal(nullptr, std::move(options)));
    journal->first_number_ = journal->options_.least_number;
    return journal;
  }
  auto reader = JournalReader::OpenLastFile(*storage, options.identity);
  if (!reader.ok()) return reader.status();
  for (;;) {
    const auto event = (*reader)->Next();
    if (!event.ok()) return event.status();
    if (!event->has_value()) break;
  }
  const JournalEnd& end = (*reader)->end();
  for (const JournalEnd::Torn& torn : end.torn) {
    LOG(WARNING) << storage->Describe(torn.file) << " is cut at offset " << torn.offset << ": the "
                 << torn.bytes << " bytes behind it are of an append that was never finished (" << torn.why
                 << ")";
    absl::Status cut;
    if (torn.whole_file) {
      cut = storage->Remove(torn.file);
      if (cut.ok()) cut = storage->SyncFolder("");
    } else {
      cut = storage->Truncate(torn.file, torn.offset);
    }
    if (!cut.ok()) return cut;
  }
  if (absl::Status status = SyncJournalFiles(*storage); !status.ok()) return status;
  std::unique_ptr<Journal> journal(new Journal(storage, std::move(options)));
  journal->first_number_ = std::max(end.next_number, journal->options_.least_number);
  if (absl::Status begun = journal->BeginFile(end.files_end, journal->first_number_); !begun.ok()) {
    return begun;
  }
  absl::MutexLock lock(&journal->mutex_);
  journal->next_ = journal->first_number_;
  journal->written_through_ = journal->synced_through_ = journal->first_number_ - 1;
  return journal;
}

Journal::~Journal() {
  if (absl::Status closed = Close(); !closed.ok()) LOG(ERROR) << "the journal was not finished: " << closed;
}

absl::Status Journal::BeginFile(uint64_t sequence, uint64_t first_number) {
  const std::string name = NameOfJournalFile(sequence);
  absl::StatusOr<std::unique_ptr<StorageFile>> file = storage_->Create(name);
  if (!file.ok()) return file.status();
  const std::string header = EncodeJournalHeader({.identity = options_.identity,
                                                  .mode = options_.mode,
                                                  .incarnation = options_.incarnation,
                                                  .sequence = sequence,
                                                  .first_number = first_number});
  absl::Status status = (*file)->Append({AsBytes(header)});
  if (status.ok()) status = (*file)->Sync();
  if (status.ok()) status = storage_->SyncFolder("");
  if (!status.ok()) return status;
  file_ = *std::move(file);
  sequence_ = sequence;
  file_events_ = 0;
  synced_bytes_ = marked_bytes_ = file_->bytes();
  absl::MutexLock lock(&mutex_);
  current_ = file_;
  figures_.file = sequence;
  return absl::OkStatus();
}

absl::Status Journal::SyncRecorded(StorageFile& file) {
  absl::Status synced = file.Sync();
  if (!synced.ok() && options_.mode == JournalMode::kBuffered) may_have_lost_.store(true);
  return synced;
}

absl::Status Journal::FinishFile() {
  const std::string mark =
      EncodeJournalMark({.closed = true, .sequence = sequence_, .synced_bytes = synced_bytes_});
  if (absl::Status status = file_->Append({AsBytes(mark)}); !status.ok()) return status;
  if (options_.mode == JournalMode::kSynced) return file_->Sync();
  std::shared_ptr<StorageFile> oldest;
  {
    absl::MutexLock lock(&mutex_);
    unsynced_.push_back(file_);
    if (unsynced_.size() <= kMostUnsynced) return absl::OkStatus();
    oldest = unsynced_.front();
  }
  if (absl::Status status = SyncRecorded(*oldest); !status.ok()) return status;
  // Not before it is: who syncs meanwhile must see it.
  absl::MutexLock lock(&mutex_);
  if (!unsynced_.empty() && unsynced_.front() == oldest) unsynced_.erase(unsynced_.begin());
  return absl::OkStatus();
}

absl::Status Journal::Write(const std::vector<Pending*>& group, bool new_file, uint64_t first_number) {
  if (new_file) {
    if (absl::Status status = FinishFile(); !status.ok()) return status;
    if (absl::Status status = BeginFile(sequence_ + 1, first_number); !status.ok()) return status;
  }
  std::vector<ByteSpan> pieces;
  std::string mark;
  if (synced_bytes_ > marked_bytes_) {
    mark = EncodeJournalMark({.sequence = sequence_, .synced_bytes = synced_bytes_});
    pieces.push_back(AsBytes(mark));
  }
  for (const Pending* pending : group) {
    pieces.push_back(AsBytes(pending->ends.head));
    pieces.insert(pieces.end(), pending->payload.begin(), pending->payload.end());
    pieces.emplace_back(reinterpret_cast<const uint8_t*>(&pending->ends.checksum),
                        sizeof pending->ends.checksum);
  }
  if (absl::Status status = file_->Append(pieces); !status.ok()) return status;
  file_events_ += group.size();
  if (!mark.empty()) marked_bytes_ = synced_bytes_;
  if (options_.mode == JournalMode::kSynced) {
    if (absl::Status status = file_->Sync(); !status.ok()) return status;
    synced_bytes_ = file_->bytes();
  }
  return absl::OkStatus();
}

void Journal::WriteGroup() {
  busy_ = true;
  // Only who has busy_ set changes file_, so that its length may be looked at here.
  const bool new_file = file_events_ > 0 && file_->bytes() + queue_.front()->bytes + 2 * kJournalMarkBytes >
                                                options_.file_bytes;
  const uint64_t first_number = next_;
  uint64_t bytes = 0;
  const uint64_t base = new_file ? kJournalHeaderBytes : file_->bytes();
  std::vector<Pending*> group;
  do {
    Pending* const pending = queue_.front();
    pending->taken = true;
    bytes += pending->bytes;
    group.push_back(pending);
    queue_.pop_front();
    ++next_;
  } while (FrontIsThere() && group.size() < kMostRecords && bytes + queue_.front()->bytes <= kMostBytes &&
           base + bytes + queue_.front()->bytes + 2 * kJournalMarkBytes <= options_.file_bytes);
  mutex_.Unlock();
  const absl::Status written = Write(group, new_file, first_number);
  mutex_.Lock();
  busy_ = false;
  for (Pending* pending : group) pending->done = true;
  if (!written.ok()) return Fail(written);
  written_through_ = next_ - 1;
  ++figures_.writes;
  figures_.events += group.size();
  figures_.bytes += bytes;
  if (options_.mode == JournalMode::kSynced) {
    ++figures_.syncs;
    synced_through_ = written_through_;
  }
}

void Journal::Fail(absl::Status status) {
  if (!status_.ok()) return;
  status_ = absl::Status(status.code(), absl::StrCat("the journal has failed and ends with event ",
                                                     written_through_, ": ", status.message()));
  failed_.store(true, std::memory_order_release);
  // Whoever is in it sees status_; those that are being written wait for that.
  queue_.clear();
  to_report_.store(true, std::memory_order_release);
}

void Journal::Report() {
  if (!to_report_.load(std::memory_order_acquire) || !to_report_.exchange(false)) return;
  const absl::Status failure = status();
  LOG(ERROR) << failure;
  if (options_.on_failure) options_.on_failure(failure);
}

template <typename Done>
absl::Status Journal::Await(const Done& done) {
  uint64_t seen = next_;
  for (int silent = 0;
       !mutex_.AwaitWithTimeout(absl::Condition(&done), options_.patience / kPatienceParts);) {
    if (busy_ || FrontIsThere() || next_ != seen) {
      silent = 0;
      seen = next_;
    } else if (++silent == kPatienceParts) {
      return absl::DeadlineExceededError(
          absl::StrCat("event ", next_, " was not recorded for ", absl::FormatDuration(options_.patience)));
    }
  }
  return absl::OkStatus();
}

bool Journal::TakeTurn() {
  const auto free = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !busy_; };
  mutex_.Await(absl::Condition(&free));
  if (!status_.ok()) return false;
  busy_ = true;
  return true;
}

void Journal::Record(const Event& event) {
  if (options_.mode == JournalMode::kOff) return;
  Pending mine = {.ends = EndsOf(event),
                  .payload = event.payload.pieces,
                  .bytes = kEventOverheadBytes + event.payload.bytes};
  {
    absl::MutexLock lock(&mutex_);
    // Too far ahead: the queue stays short, and who comes early waits. That ends: the number that is next
    // belongs to a caller that does not wait here, as its event is in no way ahead, nor for an event
    // of its own of a lower number, as there is none that is not written; and it needs no lock of those
    // that wait. Where nobody has that number, patience ends as it does in the queue.
    const auto in_reach = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      // Who is too late says so behind Close, which may still finish the file.
      if (!status_.ok() || closed_) return !status_.ok() || finished_;
      return event.number < next_ || event.number - next_ < options_.most_ahead;
    };
    if (const absl::Status came = Await(in_reach); !came.ok()) Fail(Missing(came));
    if (status_.ok() &&
        (closed_ || event.number < next_ || event.payload.bytes > kMostPayloadBytes)) {
      Fail(absl::InternalError(absl::StrCat(
          "event ", event.number, " of ", event.payload.bytes, " bytes was recorded ",
          closed_ ? "after the journal was closed" : absl::StrCat("where event ", next_, " is the next"))));
    }
    if (status_.ok()) {
      const uint64_t place = event.number - next_;
      if (place >= queue_.size()) queue_.resize(place + 1, nullptr);
      if (queue_[place] != nullptr) {
        Fail(absl::InternalError(absl::StrCat("event ", event.number, " was recorded twice")));
      } else {
        queue_[place] = &mine;
      }
    }
    const auto mine_to_write = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !busy_ && !queue_.empty() && queue_.front() == &mine;
    };
    const auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return mine.done || (!status_.ok() && !mine.taken);
    };
    const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return settled() || mine_to_write(); };
    while (!settled()) {
      if (mine_to_write()) {
        WriteGroup();
      } else {
        const absl::Status came = Await(ready);
        if (!came.ok()) Fail(Missing(came));
      }
    }
  }
  Report();
}

absl::Status Journal::status() const {
  if (!failed_.load(std::memory_order_acquire)) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  return status_;
}

JournalFigures Journal::figures() const {
  absl::MutexLock lock(&mutex_);
  JournalFigures figures = figures_;
  figures.waiting = static_cast<uint64_t>(std::count_if(
      queue_.begin(), queue_.end(), [](const Pending* pending) { return pending != nullptr; }));
  return figures;
}

absl::StatusOr<uint64_t> Journal::Rotate() {
  if (options_.mode == JournalMode::kOff) return 0;
  absl::Status status;
  uint64_t sequence = 0;
  {
    absl::MutexLock lock(&mutex_);
    const bool mine = TakeTurn();
    // It may have been closed while this waited for its turn.
    if (mine && closed_) {
      busy_ = false;
      return absl::FailedPreconditionError("the journal is closed");
    }
    if (mine) {
      const uint64_t first_number = next_;
      mutex_.Unlock();
      if (file_events_ > 0) {
        status = FinishFile();
        if (status.ok()) status = BeginFile(sequence_ + 1, first_number);
      }
      mutex_.Lock();
      busy_ = false;
      sequence = sequence_;
      if (!status.ok()) Fail(status);
    }
    status = status_;
  }
  Report();
  if (!status.ok()) return status;
  return sequence;
}

absl::Status Journal::SyncThrough(uint64_t number) {
  if (options_.mode == JournalMode::kOff) return absl::OkStatus();
  absl::Status status;
  {
    // One after the other, or one would not know of what another has not synced yet.
    absl::MutexLock only(&sync_mutex_);
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return written_through_ >= number || !status_.ok();
    };
    if (absl::Status came = Await(there); !came.ok()) return came;
    if (status_.ok() && synced_through_ < number) {
      const uint64_t through = written_through_;
      std::vector<std::shared_ptr<StorageFile>> files;
      files.swap(unsynced_);
      files.push_back(current_);
      mutex_.Unlock();
      // Others go on appending meanwhile.
      for (const auto& file : files) {
        if (status.ok()) status = SyncRecorded(*file);
      }
      mutex_.Lock();
      ++figures_.syncs;
      if (status.ok()) {
        synced_through_ = std::max(synced_through_, through);
      } else {
        Fail(status);
      }
    }
    status = status_;
  }
  Report();
  return status;
}

absl::Status Journal::RemoveBefore(uint64_t file, uint64_t number) {
  if (options_.mode == JournalMode::kOff) return absl::OkStatus();
  const uint64_t current = figures().file;
  const auto names = ListJournalFiles(*storage_);
  if (!names.ok()) return names.status();
  bool any = false;
  absl::Status status;
  for (size_t k = 0; k + 1 < names->size() && (*names)[k].sequence < std::min(file, current); ++k) {
    if (number != ~uint64_t{0}) {
      // Its events are those before the next one's first.
      const auto bytes = storage_->ReadAt((*names)[k + 1].name, 0, kJournalHeaderBytes);
      const auto next = bytes.ok() ? ParseJournalHeader(AsBytes(*bytes)) : bytes.status();
      status = next.status();
      if (!next.ok() || next->first_number > number) break;
    }
    status = storage_->Remove((*names)[k].name);
    if (!status.ok()) break;
    any = true;
  }
  if (any) status.Update(storage_->SyncFolder(""));
  return status;
}

absl::Status Journal::Close() {
  if (options_.mode == JournalMode::kOff) return absl::OkStatus();
  absl::Status status;
  {
    absl::MutexLock only(&sync_mutex_);
    absl::MutexLock lock(&mutex_);
    // Without a file it was never opened.
    if (closed_ || current_ == nullptr) return status_;
    closed_ = true;
    // Events that came before are written by those who brought them, or they would lie behind the
    // mark that ends the file.
    const auto nobody_left = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return (!busy_ && !FrontIsThere()) || !status_.ok();
    };
    mutex_.Await(absl::Condition(&nobody_left));
    if (TakeTurn()) {
      mutex_.Unlock();
      status = FinishFile();
      std::vector<std::shared_ptr<StorageFile>> files;
      mutex_.Lock();
      files.swap(unsynced_);
      mutex_.Unlock();
      for (const auto& file : files) {
        if (status.ok()) status = SyncRecorded(*file);
      }
      mutex_.Lock();
      busy_ = false;
      if (status.ok()) {
        synced_through_ = written_through_;
      } else {
        Fail(status);
      }
    }
    status = status_;
    finished_ = true;
  }
  Report();
  return status;
}

}  // namespace foreshard
