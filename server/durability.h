// What a server keeps on disk of its state: the journal of its events, a checkpoint now and
// then, and after a start the way back. One folder, of this server alone:
//
//   run.textproto           which run it is of (server/run_description.h)
//   journal.*               server/journal.h
//   checkpoint.*            server/checkpoint_files.h
//   lead.textproto          the lead's: what it is told beside its dealer's events (a LeadState)
//   journaled               with a journal, as long as it has taken every event, and lost none
//
//   auto durability = Durability::Open(options, job).value();
//   ServerContext context(job, shard, durability.get(), ...);   // events go through it
//   RETURN_IF_ERROR(durability->Begin(&context, lead));         // recovers, where there is something
//   ...                                                         // serve
//   RETURN_IF_ERROR(durability->Finish());                      // a last checkpoint
//
// An event is acknowledged once the journal has it: Shard::recorded() asks status(). Should the
// journal fail, the job's durability.on_failure says what then:
//   stop      status() is an error from then on, so that nothing is acknowledged that could be
//             lost, and `failed` is called, by which the process ends. The workers wait for the
//             next start, which has all that was acknowledged
//   continue  training goes on without a journal; checkpoints stand alone from then on, and an end
//             writes one with everything. Nothing is acknowledged before the file `journaled` is gone, which a
//             full disk takes; on a disk that takes not even that it is as with stop
// Without a journal (off, or continue after a failure) a process that is killed loses what came after the newest
// checkpoint; with a buffered one a machine that is lost takes the end of the journal with it, which the next
// start sees by its boot id. It says so by another state_id, and workers take its parameters; not in
// rounds of several servers, whose states are of different moments: it is refused. Where nothing was recorded since
// a checkpoint that has everything, or since a start, nothing can be missing: run.textproto says so until
// the next event, which is not acknowledged before it says otherwise.
// A checkpoint that cannot be written is reported and tried again after the next interval: what
// there is, checkpoint and journal, still says it all.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/storage/storage.h"
#include "foreshard/v1/admin.pb.h"
#include "foreshard/v1/job.pb.h"
#include "foreshard/v1/state.pb.h"
#include "server/boot_id.h"
#include "server/journal.h"
#include "server/recovery.h"
#include "server/server_context.h"

namespace foreshard {

class Lead;

struct DurabilityOptions {
  std::string folder;
  uint32_t shard = 0;
  EventSink* also = nullptr;  // gets every event too; outlives this; may be null
  // Called once, by any thread, when the server must end because the journal has failed. May be empty.
  std::function<void(const absl::Status&)> failed;
  std::string boot_id_file = kBootIdFile;
};

// Thread-safe once Begin has returned.
class Durability final : public EventSink {
 public:
  // Takes the folder for this process and reads which run it is of. FAILED_PRECONDITION: of another
  // job or shard. UNAVAILABLE: another process has it. DATA_LOSS: it cannot be read.
  static absl::StatusOr<std::unique_ptr<Durability>> Open(const DurabilityOptions& options,
                                                          const v1::JobSpec& job);
  // The same on a storage that is there, whatever options.folder says.
  static absl::StatusOr<std::unique_ptr<Durability>> Open(const DurabilityOptions& options, const v1::JobSpec& job,
                                                          std::unique_ptr<Storage> storage);
  ~Durability() override;

  // The lowest incarnation that this start may have.
  uint64_t least_incarnation() const { return found_.has_value() ? found_->incarnation() + 1 : 1; }

  // Brings shard, lead (null on other servers) and members back to where the last start was
  // when it ended, however it ended, and begins the journal. In a new folder the journal begins
  // when the shard's Agree settles the schema. Errors as of Recover and Journal::Open;
  // FAILED_PRECONDITION: rounds that cannot go on without what is lost. Context and lead outlive this.
  absl::Status Begin(ServerContext* context, Lead* lead);
  // HelloReply.state_id and .run_id.
  uint64_t state_id() const { return state_id_.load(); }
  uint64_t run_id() const { return run_id_.load(); }
  // Whether this start, or an earlier one since which there is no checkpoint, may lack what had been
  // acknowledged before it.
  bool lost() const { return lost_; }
  // RunDescription.common_run_id; 0: not known yet.
  uint64_t common_run_id() const { return common_run_id_.load(); }
  bool imported() const { return found_.has_value() && found_->imported(); }
  // Takes the run's id and keeps it. From the shard's Agree on. UNAVAILABLE: it cannot be written.
  absl::Status JoinRun(uint64_t common_run_id);
  // The folder, as a person would look for it: "the state directory /var/lib/...".
  std::string Describe() const;
  // Whether a Record may wait for the disk.
  bool slow() const { return mode_ == JournalMode::kSynced; }

  // EventSink.
  void Record(const Event& event) override;
  absl::Status status() const override;

  struct Written {
    std::string path;
    uint64_t step = 0;
    uint32_t epoch = 0;
    uint64_t bytes = 0;
    double seconds = 0;
    // The longest time for which a segment took no push meanwhile.
    double longest_hold_seconds = 0;
  };
  // A checkpoint as soon as possible, written by a thread of this object, which calls `done`.
  // FAILED_PRECONDITION: there is nothing to write yet.
  void RequestCheckpoint(std::function<void(absl::StatusOr<Written>)> done);

  // Adds what the status tells, and renews the gauges.
  void FillStatus(v1::StatusReply* reply) const;
  void UpdateMetrics(ServerMetrics* metrics);

  // No event comes any more: a last checkpoint, where something has happened since the newest, and
  // the journal's end. Calling it again does nothing.
  absl::Status Finish();

 private:
  class Target;

  Durability(const DurabilityOptions& options, const v1::JobSpec& job, std::unique_ptr<Storage> storage);

  // Of the Agree that settles the schema, in a new folder.
  absl::Status BeginRun(const Shard::Agreement& agreed);
  absl::Status Restore();
  void RestoreMembers();
  absl::Status OpenJournal(const StateIdentity& identity, uint64_t least_number);
  void JournalFailed(const absl::Status& failure);
  bool JournalStands() const;
  // What the start that begins leaves to the next one, should it not end well. Before OpenJournal.
  absl::Status WatchOver(v1::RunDescription* description);
  // What the next start is to know should this one not end well: as long as nothing is recorded after what is on the disk
  // (`at_rest`), or from then on.
  void SetMarks(bool at_rest, v1::RunDescription* description) const;
  // Whether what they say at rest is something else than while events come.
  bool RestMatters(const v1::RunDescription& at_rest) const;
  // Brings description_ and run.textproto up to this, where it says anything new.
  absl::Status Describe(v1::RunDescription description) ABSL_EXCLUSIVE_LOCKS_REQUIRED(run_mutex_);
  // A checkpoint has all events up to this number: where there are no later ones, nothing can be missing.
  void NoteCheckpoint(uint64_t number);
  // An event comes that is beyond what run.textproto says to be all.
  void EndRest();
  // Marks that events are missing, once, on the disk.
  absl::Status MarkUnjournaled() const;
  // The last checkpoint, or the journal, has everything.
  absl::Status NoteGoodEnd();
  bool begun() const { return begun_.load(std::memory_order_acquire); }

  void Run();
  bool CheckpointIsDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SaveLead();
  // Of the thread, or when that has ended.
  absl::StatusOr<Written> WriteCheckpoint();
  absl::StatusOr<CheckpointWriter::Committed> WriteFiles(const Shard::Agreement& agreed, Written* written);

  const DurabilityOptions options_;
  const v1::JobSpec job_;
  const JournalMode mode_;
  const bool continues_;  // without a journal, should that fail
  const std::unique_ptr<Storage> storage_;
  std::optional<v1::RunDescription> found_;
  ServerContext* context_ = nullptr;
  Lead* lead_ = nullptr;
  std::atomic<uint64_t> state_id_{0}, run_id_{0}, common_run_id_{0};
  // Constant from Begin on.
  std::string why_lost_;  // of this start
  bool lost_ = false;
  const std::string boot_id_;
  std::atomic<uint64_t> replayed_{0};

  // Made before any event is recorded, and there from begun_ on.
  std::unique_ptr<Journal> journal_;
  StateIdentity identity_;
  std::atomic<bool> begun_{false};

  mutable absl::Mutex run_mutex_;
  v1::RunDescription description_ ABSL_GUARDED_BY(run_mutex_);  // as it is on the disk, from begun_ on
  // Up to this number run.textproto says of every event that it is there, whatever becomes of process and
  // machine; kNotAtRest: it says what is true while events come.
  static constexpr uint64_t kNotAtRest = ~uint64_t{0};
  std::atomic<uint64_t> at_rest_through_{kNotAtRest};
  std::atomic<bool> rest_failed_{false};  // EndRest could not write: nothing is acknowledged any more
  // Of MarkUnjournaled: what came of it.
  mutable std::optional<absl::Status> marked_ ABSL_GUARDED_BY(run_mutex_);
  mutable std::atomic<bool> is_marked_{false};

  mutable absl::Mutex mutex_;
  std::string restored_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool lead_changed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::function<void(absl::StatusOr<Written>)>> requests_ ABSL_GUARDED_BY(mutex_);
  // Of MonotonicNanoseconds.
  int64_t attempted_ ABSL_GUARDED_BY(mutex_);                  // the last checkpoint
  std::optional<int64_t> written_at_ ABSL_GUARDED_BY(mutex_);  // the newest that is safe
  Written newest_ ABSL_GUARDED_BY(mutex_);
  uint64_t newest_number_ ABSL_GUARDED_BY(mutex_) = 0;  // last event when it was begun
  uint64_t journal_bytes_then_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t checkpoints_ ABSL_GUARDED_BY(mutex_) = 0, failures_ ABSL_GUARDED_BY(mutex_) = 0;
  double checkpoint_seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  // What the counters have been told.
  struct Told {
    uint64_t events = 0, bytes = 0, syncs = 0, checkpoints = 0, failures = 0;
  } told_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace foreshard
