// The journal of a server: its events in files, from which, with a checkpoint, the state is
// made again after the process or the machine is gone. server/journal_file.h has the bytes,
// server/journal_reader.h reads them back.
//
//   auto journal = Journal::Open(storage.get(), {.mode = JournalMode::kBuffered, ...}).value();
//   journal->Record(event);            // numbered from journal->first_number() on
//   if (!journal->status().ok()) ...   // the event may be lost: do not acknowledge it
//
// Modes:
//   off       nothing is written
//   buffered  an event is in the kernel's hands when Record returns: a killed process loses none
//   synced    and on the disk: a lost machine loses none. Callers that come meanwhile share
//             the next sync
// In both, Record returns only when all events of lower numbers are as safe. For segments take
// their events in the order of their numbers: with the later one of two but not the earlier,
// recovery would make another state than the one that was acknowledged. So records lie in
// files in the order of their numbers, without holes: who comes early waits for its predecessors,
// whose callers have their numbers already and are about to record, and then shares their write.
// Callers hold no lock that a predecessor's caller may want, and one that has several events records
// them in the order of their numbers.
//
// Several starts of a server follow each other in one folder. Each begins a file of its own,
// whose header has the first number in it: one beyond the last event that is there, or
// least_number, if that is more. A torn end of the last start's file is cut.
//
// A checkpoint:
//
//   file = journal->Rotate();                // 1. what the files before hold was applied already
//   number = shard's last number             // 2. segment by segment, under its mutex, with Save()
//   journal->SyncThrough(highest number);    // 3. no checkpoint may be ahead of the journal
//   writer->Commit(keep);                    // 4. server/checkpoint_files.h
//   journal->RemoveBefore(oldest kept one's file);
//
// A failure (disk full, read-only, broken) is final: nothing more is written, status() says
// why, on_failure is called once, and Record returns at once from then on.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/storage/storage.h"
#include "server/event_sink.h"
#include "server/journal_file.h"

namespace foreshard {

struct JournalOptions {
  JournalMode mode = JournalMode::kBuffered;
  StateIdentity identity;
  uint64_t incarnation = 0;
  // No event is numbered lower: one beyond the highest number that a checkpoint stands for.
  uint64_t least_number = 1;
  // A file is finished before it would grow beyond this; a larger record has one of its own.
  uint64_t file_bytes = uint64_t{256} << 20;
  // A number whose event has not come for so long, all others waiting, is a failure.
  absl::Duration patience = absl::Seconds(30);
  // How far ahead of its predecessors an event may lie in wait; who comes earlier waits to be let in.
  uint64_t most_ahead = 1 << 16;
  // Called once, by a thread that records or syncs, without a lock.
  std::function<void(const absl::Status&)> on_failure;
};

struct JournalFigures {
  uint64_t events = 0;  // by this start
  uint64_t bytes = 0;   // of their records
  uint64_t writes = 0;
  uint64_t syncs = 0;
  uint64_t file = 0;     // place of the file being written
  uint64_t waiting = 0;  // events that wait for others, or for the disk
};

// Puts on the disk what earlier starts may have left to the kernel.
absl::Status SyncJournalFiles(Storage& storage);

// Thread-safe.
class Journal final : public EventSink {
 public:
  // Reads the last file, cuts its torn end, syncs what the last start may have left unsynced,
  // and begins a new file, so that a disk that takes nothing is known at once. Errors as of JournalReader::Open and Storage. The storage
  // outlives this; null with kOff.
  static absl::StatusOr<std::unique_ptr<Journal>> Open(Storage* storage, JournalOptions options);
  ~Journal() override;

  // The number that the first event must have.
  uint64_t first_number() const { return first_number_; }

  // May block for its predecessors and the disk. From number first_number() on, each once.
  void Record(const Event& event) override;

  // OK as long as all events whose Record has returned are as safe as the mode says.
  absl::Status status() const override;
  JournalFigures figures() const;
  // Whether it has failed in a way that may have lost events whose Record had returned, although the machine
  // runs: what a buffered one had left to the kernel could not be put on the disk.
  bool may_have_lost() const { return may_have_lost_.load(); }

  // Finishes the file, if there is an event in it. Returns the place of the one that is
  // written from now on: all whose Record has returned are in files before it. 0 with kOff.
  absl::StatusOr<uint64_t> Rotate();
  // Returns when all events up to this number are on the disk, in either mode. Waits for
  // those that are not recorded yet: DEADLINE_EXCEEDED after the journal's patience.
  absl::Status SyncThrough(uint64_t number);
  // Removes the files before this place, oldest first, up to one with events from `number` on;
  // never the one being written.
  absl::Status RemoveBefore(uint64_t file, uint64_t number = ~uint64_t{0});
  // Finishes the file, behind the events that are being recorded; those that come later are a
  // failure, though not of this call.
  absl::Status Close();

 private:
  // An event whose Record has not returned.
  struct Pending {
    RecordEnds ends;
    absl::Span<const ByteSpan> payload;
    uint64_t bytes = 0;
    bool taken = false;  // whoever writes it has it in hand
    bool done = false;
  };

  Journal(Storage* storage, JournalOptions options) : storage_(storage), options_(std::move(options)) {}

  // With busy_ set by the caller, without the lock.
  absl::Status BeginFile(uint64_t sequence, uint64_t first_number);
  absl::Status FinishFile();
  // Of a file with events whose Record may have returned.
  absl::Status SyncRecorded(StorageFile& file);
  absl::Status Write(const std::vector<Pending*>& group, bool new_file, uint64_t first_number);

  void WriteGroup() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until nobody writes, and then is the one who does; false: failed.
  bool TakeTurn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for `done`, which others bring about. DEADLINE_EXCEEDED: an event stays away.
  template <typename Done>
  absl::Status Await(const Done& done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool FrontIsThere() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !queue_.empty() && queue_.front() != nullptr;
  }
  void Report();

  Storage* const storage_;
  const JournalOptions options_;
  uint64_t first_number_ = 1;

  absl::Mutex sync_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // of SyncThrough and Close
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> failed_{false};  // status_ is an error: asked for every reply
  std::atomic<bool> to_report_{false};
  std::atomic<bool> may_have_lost_{false};
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;  // somebody writes
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;    // nothing more is taken
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;  // Close has done what it can
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;  // number of queue_.front(), there or not
  std::deque<Pending*> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t written_through_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t synced_through_ ABSL_GUARDED_BY(mutex_) = 0;
  JournalFigures figures_ ABSL_GUARDED_BY(mutex_);
  // Finished by a buffered journal, not synced yet.
  std::vector<std::shared_ptr<StorageFile>> unsynced_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<StorageFile> current_ ABSL_GUARDED_BY(mutex_);  // as file_

  // Of whoever has set busy_.
  std::shared_ptr<StorageFile> file_;
  uint64_t sequence_ = 0;
  uint64_t file_events_ = 0;
  uint64_t synced_bytes_ = 0;  // of file_
  uint64_t marked_bytes_ = 0;  // what its last mark says
};

}  // namespace foreshard
