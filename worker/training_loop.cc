#include "worker/training_loop.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "glog/logging.h"

namespace foreshard {
namespace {

constexpr absl::Duration kRatioEvery = absl::Seconds(1);
constexpr absl::Duration kStopCheckEvery = absl::Milliseconds(100);

}  // namespace

uint64_t RoundOfTicket(uint64_t ticket, uint64_t batches_per_epoch, uint32_t members) {
  const uint64_t rounds_per_epoch = batches_per_epoch / members;
  return ticket / batches_per_epoch * rounds_per_epoch + ticket % batches_per_epoch / members;
}

TrainingLoop::TrainingLoop(const TrainingLoopOptions& options, GradientComputer* computer,
                           ParameterClient* client, LeadClient* lead, Progress* progress)
    : options_(options),
      computer_(computer),
      client_(client),
      lead_(lead),
      progress_(progress),
      push_(client),
      use_(options.use != nullptr ? options.use : &push_) {}

absl::Status TrainingLoop::Run() {
  uint64_t repaired = 0;
  for (;;) {
    if (Stopped()) {
      absl::Status finished = use_->Flush();
      if (finished.ok()) finished = client_->Finish();
      if (finished.ok()) finished = Fold();
      return finished.ok() ? absl::CancelledError("interrupted") : finished;
    }
    if (options_.fenced) {
      if (const absl::Status fenced = options_.fenced(); !fenced.ok()) return fenced;
    }
    if (!lead_->AwaitTicket()) {
      if (const absl::Status flushed = use_->Flush(); !flushed.ok()) return flushed;
    }
    // Others may wait for this worker's momentum while there is no batch for it.
    lead_->AwaitTicketOrRepair(repaired);
    if (const uint64_t wanted = lead_->repair_ticket(); wanted > repaired) {
      if (const absl::Status status = client_->Repair(wanted); !status.ok()) return status;
      repaired = wanted;
      continue;
    }
    const auto ticket = lead_->NextTicket();
    if (!ticket.ok()) {
      // What was pushed still counts, if the servers take it.
      const absl::Status finished = client_->Finish();
      return finished.ok() ? ticket.status() : finished;
    }
    if (!ticket->has_value()) return client_->Finish();
    if (const absl::Status status = client_->Repair((*ticket)->number); !status.ok()) return status;
    const absl::Status stepped = Step(**ticket);
    // It has waited for a round that nobody closes any more.
    if (absl::IsCancelled(stepped) && !Stopped() && lead_->finished()) return absl::OkStatus();
    if (!stepped.ok()) return stepped;
  }
}

absl::StatusOr<std::optional<GradientStep>> TrainingLoop::Compute(const Ticket& ticket, uint64_t round,
                                                                  const GradientUse::Place& at) {
  // Every segment comes to the round behind that of a push, unless it was late: which is known
  // when it is answered.
  bool enter = options_.views && !(last_.has_value() && ticket.round == last_->round + 1);
  // Where gradients stay on the device the push is made with them, and once.
  const bool pushes_on_device = computer_->gradient() == nullptr;
  if (options_.views && pushes_on_device && !enter) {
    if (const absl::Status ready = use_->Ready(); !ready.ok()) return ready;
    enter = client_->late();
  }
  std::optional<GradientStep> computed;
  for (;;) {
    if (enter) {
      const auto entered = client_->EnterRound(ticket.round);
      if (!entered.ok()) return entered.status();
      if (entered->round != ticket.round) {
        lead_->SkipTo(entered->round, ticket.number);
        return std::nullopt;
      }
      if (computed.has_value() && !entered->renewed) return computed;
    }
    if (const auto next = lead_->PeekTicket(); next.has_value()) computer_->Expect(*next);
    const absl::StatusOr<GradientStep> step = computer_->Compute(
        ticket.number, at.parameters, *at.gate, [&](std::optional<double> clip_norm) {
          return client_->Prepare({.ticket = ticket.number, .round = round}, clip_norm);
        });
    if (!step.ok()) return step.status();
    if (const absl::Status ready = use_->Ready(); !ready.ok()) return ready;
    if (enter || pushes_on_device || !options_.views || !client_->late()) return *step;
    enter = true;
    computed = *step;
  }
}

absl::Status TrainingLoop::Fold() {
  if (!options_.views || !last_.has_value() || !client_->keeps_error()) return absl::OkStatus();
  uint64_t round = last_->round + 1;
  for (bool known = !client_->late(); !known;) {
    const auto entered = client_->EnterRound(round);
    if (!entered.ok()) return entered.status();
    known = entered->round == round;
    round = entered->round;
  }
  // A contribution without a gradient.
  const absl::Status cleared = computer_->Clear([&](std::optional<double> clip_norm) {
    return client_->Prepare({.ticket = last_->number, .round = round, .fold = true}, clip_norm);
  });
  if (!cleared.ok()) return cleared;
  const absl::Status pushed = client_->Push({.ticket = last_->number,
                                             .round = round,
                                             .gradient = computer_->gradient(),
                                             .fold = true});
  return pushed.ok() ? client_->Finish() : pushed;
}

absl::Status TrainingLoop::Step(const Ticket& dealt) {
  const uint64_t ticket = dealt.number;
  const double waited = client_->TakeWaitSeconds();  // by what came after the last step
  const SteadyTime start = SteadyTime::Now();
  const auto at = use_->PlaceOf(dealt);
  if (!at.ok()) return at.status();
  const uint64_t round = options_.views               ? dealt.round
                         : options_.round_members > 0 ? RoundOfTicket(ticket, options_.batches_per_epoch,
                                                                      options_.round_members)
                                                      : 0;
  const auto computed = Compute(dealt, round, *at);
  if (!computed.ok()) return computed.status();
  if (!computed->has_value()) return absl::OkStatus();
  const GradientStep& step = **computed;
  if (options_.views) last_ = dealt;
  const SteadyTime end = SteadyTime::Now();
  StepNotes notes = {.loss = step.loss,
                     .gradient_norm = step.norm,
                     .examples = step.examples,
                     .finite = step.finite,
                     .wait_seconds = client_->TakeWaitSeconds()};
  notes.compute_seconds = std::max(absl::ToDoubleSeconds(end - start) - notes.wait_seconds, 0.0);
  notes.wait_seconds += waited;
  if (!step.finite) {
    LOG_EVERY_N(WARNING, 20) << "ticket " << ticket
                             << ": the gradient is not finite (loss " << step.loss
                             << "); it is skipped";
  }
  const double batch_seconds = Pace(notes.compute_seconds);
  // One that was cut short by the end says nothing.
  if (options_.times != nullptr && !Stopped()) options_.times->Note(batch_seconds);
  if (end >= ratio_due_) {
    progress_->ErrorFeedback(client_->ErrorFeedbackRatio(computer_->gradient()));
    ratio_due_ = end + kRatioEvery;
  }
  const absl::Status taken = use_->Take(
      {.ticket = ticket,
       .round = round,
       .gradient = computer_->gradient(),
       .statistics = computer_->statistics(),
       .finite = step.finite});
  if (!taken.ok()) return taken;
  progress_->Step(notes, SteadyTime::Now());
  lead_->Report(progress_->Figures(client_->traffic()));
  return absl::OkStatus();
}

double TrainingLoop::Pace(double compute_seconds) const {
  double least = options_.slowdown * compute_seconds;
  if (options_.times != nullptr) least = std::max(least, options_.times->LeastSeconds());
  if (least <= compute_seconds) return compute_seconds;
  const SteadyTime start = SteadyTime::Now();
  SleepFor(absl::Seconds(least - compute_seconds));
  return compute_seconds + absl::ToDoubleSeconds(SteadyTime::Now() - start);
}

void TrainingLoop::SleepFor(absl::Duration time) const {
  for (const SteadyTime end = SteadyTime::Now() + time; !Stopped();) {
    const absl::Duration left = end - SteadyTime::Now();
    if (left <= absl::ZeroDuration()) return;
    absl::SleepFor(std::min(left, kStopCheckEvery));
  }
}

}  // namespace foreshard
