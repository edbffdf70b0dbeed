// A worker's dealings with the lead, the server of shard 0: a slot, tickets
// fetched ahead, figures, and a polite end.
//
//   auto lead = LeadClient::Register(options).value();
//   while (auto ticket = lead->NextTicket().value()) {
//     ...;                              // train on the batch of ticket->number
//     lead->Completed(ticket->number);  // once every segment has acknowledged it
//   }
//   lead->Leave("finished");
//
// One own thread talks to the lead, so the training loop never waits for it while
// there are tickets in hand. A fast worker holds more of them than a slow one.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/core/round_sums.h"
#include "common/core/steady_time.h"
#include "common/net/credentials.h"
#include "foreshard/v1/exchange.grpc.pb.h"
#include "worker/patience.h"

namespace foreshard {

struct LeadClientOptions {
  std::string address;  // of server 0
  Credentials credentials;
  v1::RegisterRequest registration;
  double connect_seconds = 60;
  // The lead is asked also while a batch takes long: for repair_ticket, or for views.
  bool watch = false;
  // The job bounds staleness (training.staleness_bound): every ticket that comes to
  // empty hands counts as waited for, so that parameters are those of its release.
  bool staleness_bound = false;
  const std::atomic<bool>* stop = nullptr;  // ends waits with CANCELLED; null: never
};

// A dealt batch.
struct Ticket {
  uint64_t number = 0;
  // It came when all earlier ones were completed, after the lead had held it back (a
  // bound on dealing, or nothing was left to deal): the parameters that the worker has
  // may be older than the ticket.
  bool waited = false;
  // Rounds whose members may come and go: the one it belongs to.
  uint64_t round = 0;
};

// Thread-safe. Errors as those of ParameterClient; RESOURCE_EXHAUSTED from
// Register when all slots stay taken.
class LeadClient {
 public:
  static absl::StatusOr<std::unique_ptr<LeadClient>> Register(const LeadClientOptions& options);
  // Ends without a word; call Leave first.
  ~LeadClient();

  uint32_t worker() const { return registration_.worker(); }
  uint64_t incarnation() const { return registration_.incarnation(); }
  double lease_seconds() const { return registration_.lease_seconds(); }
  // What every server is to be told of the run (HelloRequest).
  uint64_t common_run_id() const { return registration_.common_run_id(); }
  bool run_begun() const { return registration_.run_begun(); }
  uint64_t open_round() const { return registration_.open_round(); }

  // Waits until a ticket is in hand or none will come any more (true), or the lead has
  // said that it has none to deal for now (false): it may be waiting for what is held
  // back, so that should be pushed before NextTicket.
  bool AwaitTicket();
  // The next dealt batch; nullopt when the job is over.
  absl::StatusOr<std::optional<Ticket>> NextTicket();
  // The ticket that NextTicket would give now without waiting, which may be given back before it
  // comes to that; nullopt: none is in hand.
  std::optional<uint64_t> PeekTicket() const;
  // The newest step of the learning rate for which the fleet gathers, or has gathered,
  // the momentum of rules that keep it at workers; 0: none (ParameterClient::Repair).
  uint64_t repair_ticket() const;
  // Blocks until NextTicket would not, or repair_ticket is above `repaired`, or stop.
  void AwaitTicketOrRepair(uint64_t repaired);
  // Rounds whose members may come and go. Views that the lead has settled are given to
  // `bring`, on the client's thread, which returns OK once every server has taken them; until
  // then the lead deals nothing to their new members. Returns when the one before is not in
  // use any more; null: none.
  void BringViews(std::function<absl::Status(const v1::View&)> bring);
  // Rounds before this one go on without this worker: gives their tickets back, also `taken`.
  void SkipTo(uint64_t round, uint64_t taken);

  // Every segment has acknowledged (or skipped) this ticket, and the others with it.
  void Completed(uint64_t ticket, absl::Span<const uint64_t> others = {});
  // Rules that squeeze: what a round came to, for the lead to decide on the phase; sent with
  // what is completed.
  void NoteRound(const RoundSums& sums);
  // Kept, and sent about once a second.
  void Report(const v1::WorkerFigures& figures);
  // Why the job is over, once NextTicket has said so.
  std::string finish_reason() const;
  // Whether the lead has said that the job is over.
  bool finished() const;

  // Reports what is completed and gives the slot back; does not insist. Only the
  // first call does something.
  void Leave(const std::string& reason);

 private:
  LeadClient(const LeadClientOptions& options, std::unique_ptr<v1::Lead::Stub> stub,
             const v1::RegisterReply& registration);
  void Run();
  // The training loop waits until a ticket is in hand or none will come any more, stop,
  // or `enough` (called under the mutex).
  void Await(absl::FunctionRef<bool()> enough) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BringView(const v1::View& view) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fetch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendFigures() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  SteadyTime FetchTime() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t Ahead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Stopped() const;
  bool Interrupted() const { return options_.stop != nullptr && options_.stop->load(); }
  void Close();

  const LeadClientOptions options_;
  const std::unique_ptr<v1::Lead::Stub> stub_;
  const v1::RegisterReply registration_;
  Patience patience_;  // of the thread

  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  struct Dealt {
    uint64_t ticket = 0;
    uint64_t round = 0;
  };
  std::deque<Dealt> hand_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> taken_ ABSL_GUARDED_BY(mutex_);  // not completed yet
  std::vector<uint64_t> completed_ ABSL_GUARDED_BY(mutex_);
  SteadyTime first_completed_ ABSL_GUARDED_BY(mutex_);
  std::vector<RoundSums> rounds_ ABSL_GUARDED_BY(mutex_);  // noted and not sent yet
  std::optional<v1::WorkerFigures> figures_ ABSL_GUARDED_BY(mutex_);
  SteadyTime figures_due_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
  uint64_t repair_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  // Read without the mutex while `bringing_`, which keeps it from being changed.
  std::function<absl::Status(const v1::View&)> bring_;
  bool bringing_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t view_ ABSL_GUARDED_BY(mutex_) = 0;        // the newest that was brought
  uint64_t skip_to_ ABSL_GUARDED_BY(mutex_) = 0;     // to be said with the next fetch
  SteadyTime last_asked_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
  SteadyTime ask_again_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
  bool told_to_wait_ ABSL_GUARDED_BY(mutex_) = false;  // by the last answer
  uint64_t answers_ ABSL_GUARDED_BY(mutex_) = 0;
  bool front_waited_ ABSL_GUARDED_BY(mutex_) = false;  // hand_'s first, as Ticket says
  bool loop_waits_ ABSL_GUARDED_BY(mutex_) = false;    // for a ticket
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
  std::string finish_reason_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  SteadyTime last_taken_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
  double seconds_per_ticket_ ABSL_GUARDED_BY(mutex_) = 0;

  std::atomic<bool> closing_{false};
  std::thread thread_;
};

}  // namespace foreshard
