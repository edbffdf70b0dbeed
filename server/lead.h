// The lead, on the server of shard 0: gives workers their slots, deals batches,
// keeps what workers and the evaluator report, and says when the job is over.
// Knows no gRPC.
//
//   Lead lead(context);
//   absl::StatusOr<v1::RegisterReply> slot = lead.Register(request);
//   absl::StatusOr<v1::FetchTicketsReply> tickets = lead.FetchTickets(request);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "foreshard/v1/admin.pb.h"
#include "foreshard/v1/exchange.pb.h"
#include "foreshard/v1/state.pb.h"
#include "server/dealer.h"
#include "server/lead_slots.h"
#include "server/phase_control.h"
#include "server/server_context.h"

namespace foreshard {

// Thread-safe.
class Lead {
 public:
  explicit Lead(ServerContext& context);

  absl::StatusOr<v1::RegisterReply> Register(const v1::RegisterRequest& request);
  absl::StatusOr<v1::FetchTicketsReply> FetchTickets(const v1::FetchTicketsRequest& request);
  absl::StatusOr<v1::ReportReply> Report(const v1::ReportRequest& request);
  absl::StatusOr<v1::LeaveReply> Leave(const v1::LeaveRequest& request);

  // Whether this or an earlier lead can have given the incarnation: as FetchTickets holds it of workers
  // that were forgotten.
  bool MayHaveGiven(uint64_t incarnation) const;
  // The worker's lease is over: its batches are dealt again.
  void NoteLost(uint32_t worker, uint64_t incarnation);
  // Nothing more is dealt; the first reason stays.
  void Stop(const std::string& reason);

  // Recovery, before there are callers and after the shard has agreed. What a checkpoint has of
  // the dealer; then the dealer's events that came after it.
  absl::Status Load(const std::string& dealer, const v1::LeadState& state);
  absl::Status Replay(const Event& event);
  // What a newer lead.textproto has; then training goes on.
  void Resume(const v1::LeadState* newer);
  // As they are now.
  LeadSlots slots() const;
  // Of the slot's worker; empty where it is not of this incarnation.
  v1::Introduction introduction(uint32_t slot, uint64_t incarnation) const;

  // For a checkpoint: all at one moment, and the number of the last event that may be in it.
  // None: nobody has registered yet.
  struct Saved {
    uint64_t number = 0;
    std::string dealer;
    v1::LeadState state;
  };
  std::optional<Saved> Save() const;
  v1::LeadState state() const;
  // Called, under a lock, when LeadState has changed but by the dealer's events; must not block.
  void set_changed(std::function<void()> changed) { changed_ = std::move(changed); }

  // Fills the lead's fields, and the figures of the workers listed in the reply.
  void FillStatus(v1::StatusReply* reply) const;
  bool finished() const;

 private:
  // Holds the mutex, and when it has let go of it, records what was performed meanwhile: a record
  // may wait for the disk.
  class Section;

  // To be journaled by the section, with a number given under the lock; but for what changes nothing:
  // a fetch that brings nothing, a batch completed that nobody holds. `incarnation`: of who joins.
  Deal Perform(const DealerEvent& event, uint64_t incarnation = 0) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status MakeDealer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether this start of a worker was registered by an earlier one of the lead, which is lost.
  bool WasForgotten(uint32_t worker, uint64_t incarnation) const;
  void StopLocked(const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of a list of tickets: no worker has more of them to tell of.
  absl::Status CheckCount(const char* field, int count) const;
  void Complete(uint32_t worker, const google::protobuf::RepeatedField<uint64_t>& tickets)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What the dealer's rounds need to hear before the worker is dealt to.
  void NoteRounds(const v1::FetchTicketsRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What measured rounds came to may change the phase.
  void NoteFigures(const v1::FetchTicketsRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The rounds of the tickets in the reply, and the view where the worker's is older.
  void SetRounds(const v1::FetchTicketsRequest& request, v1::FetchTicketsReply* reply) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells the worker to ask again: when, and why it was dealt nothing.
  void SetWait(uint32_t worker, Withheld withheld, v1::FetchTicketsReply* reply) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteProgress() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds what the worker reported, and the examples of what it completed.
  void FillReported(v1::WorkerStatus* status) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is known of the start that has the slot now.
  v1::WorkerStatus PastWorker(uint32_t slot) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  v1::LeadState StateLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Changed() {
    if (changed_) changed_();
  }

  ServerContext& context_;
  std::function<void()> changed_;
  mutable absl::Mutex mutex_;
  std::vector<Event>* performed_ ABSL_GUARDED_BY(mutex_) = nullptr;  // of the section
  std::unique_ptr<Dealer> dealer_ ABSL_GUARDED_BY(mutex_);
  std::optional<PhaseControl> phases_ ABSL_GUARDED_BY(mutex_);  // rules that squeeze
  uint64_t next_incarnation_ ABSL_GUARDED_BY(mutex_);
  LeadSlots slots_ ABSL_GUARDED_BY(mutex_);
  // By slot: the last report.
  std::vector<v1::WorkerFigures> figures_ ABSL_GUARDED_BY(mutex_);
  // By slot: why a worker with empty hands was dealt nothing when it last asked.
  std::vector<std::string> waiting_for_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::WorkerStatus> past_workers_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::Introduction> introductions_ ABSL_GUARDED_BY(mutex_);  // by slot
  std::vector<v1::Evaluation> evaluations_ ABSL_GUARDED_BY(mutex_);
  v1::LeadState restored_ ABSL_GUARDED_BY(mutex_);  // between Load and Resume
  // Rules with a worker half: where the learning rate jumps.
  std::vector<uint64_t> steps_ ABSL_GUARDED_BY(mutex_);
  uint32_t epochs_told_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace foreshard
