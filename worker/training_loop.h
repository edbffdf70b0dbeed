// A worker's life between its registration and its leave: ticket, gradient, push; and
// its momentum where the learning rate jumps and others wait for it.
//
//   TrainingLoop loop(options, &computer, client.get(), lead.get(), &progress);
//   absl::Status status = loop.Run();   // OK: the job is finished
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "common/core/steady_time.h"
#include "worker/batch_times.h"
#include "worker/gradient.h"
#include "worker/gradient_use.h"
#include "worker/lead_client.h"
#include "worker/parameter_client.h"
#include "worker/progress.h"

namespace foreshard {

struct TrainingLoopOptions {
  // Every step is made to take this many times its computing time, to play an
  // unequal machine; at least 1.
  double slowdown = 1;
  // What else a step is to take, and where its time is noted: what it took the
  // machine, slow-down and pace included, waits for servers and tickets not. May be
  // null.
  BatchTimes* times = nullptr;
  // Synchronous modes: members of a round. An epoch's batches that fill no round
  // are not dealt; its tickets are numbered `batches_per_epoch` all the same.
  uint32_t round_members = 0;
  // Rounds whose members may come and go: tickets say their rounds.
  bool views = false;
  uint64_t batches_per_epoch = 1;
  // What becomes of gradients, through the same client; null: each is pushed.
  GradientUse* use = nullptr;
  const std::atomic<bool>* stop = nullptr;
  // Looked at before each step; an error ends the run. May be empty.
  std::function<absl::Status()> fenced;
};

// The step, counted over all epochs, in which synchronous modes use this ticket.
uint64_t RoundOfTicket(uint64_t ticket, uint64_t batches_per_epoch, uint32_t members);

// Thread-compatible; what it is given outlives it.
class TrainingLoop {
 public:
  TrainingLoop(const TrainingLoopOptions& options, GradientComputer* computer,
               ParameterClient* client, LeadClient* lead, Progress* progress);

  // Trains until the lead says the job is over (OK), `stop` is set (CANCELLED, with
  // every started push acknowledged where the servers still answer), or something
  // fails.
  absl::Status Run();

 private:
  bool Stopped() const { return options_.stop != nullptr && options_.stop->load(); }
  absl::Status Step(const Ticket& ticket);
  // The gradient of the ticket's batch, when the last push is answered. None: the ticket's round
  // is over, and the ticket goes back.
  absl::StatusOr<std::optional<GradientStep>> Compute(const Ticket& ticket, uint64_t round,
                                                     const GradientUse::Place& at);
  // Before a polite leave: what compression has kept back goes to the servers.
  absl::Status Fold();
  // Makes the step as slow as it should be; returns what it then has taken.
  double Pace(double compute_seconds) const;
  void SleepFor(absl::Duration time) const;

  const TrainingLoopOptions options_;
  GradientComputer* const computer_;
  ParameterClient* const client_;
  LeadClient* const lead_;
  Progress* const progress_;
  PushGradients push_;
  GradientUse* const use_;
  std::optional<Ticket> last_;  // that was pushed
  SteadyTime ratio_due_ = SteadyTime::InfinitePast();
};

}  // namespace foreshard
