#include "server/lead.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/core/catalogue.h"
#include "common/net/job_parts.h"
#include "common/net/wire_limits.h"
#include "glog/logging.h"
#include "server/common_run.h"
#include "server/durability.h"
#include "server/job_machines.h"
#include "server/monotonic_time.h"

namespace foreshard {
namespace {

// When a worker that is dealt nothing asks again: of the last batches one may be dealt
// again; a slower worker may complete one at any time; the ramp goes by many batches.
constexpr float kRetrySeconds = 0.1f;
constexpr float kRetryBoundSeconds = 0.01f;
constexpr float kRetryRampSeconds = 0.2f;
// Of one evaluation an epoch this is never reached; beyond, the oldest go.
constexpr size_t kMaxEvaluations = 20'000;
// Starts of workers whose slot was taken again; beyond, the oldest are forgotten.
constexpr size_t kMaxPastWorkers = 10'000;
// A worker may tell of batches that it completed while the lead was away, and hold as many as it was
// dealt before and after the lead forgot what it had dealt.
constexpr uint64_t kReportedHands = 4;

}  // namespace

class ABSL_SCOPED_LOCKABLE Lead::Section {
 public:
  explicit Section(Lead& lead) ABSL_EXCLUSIVE_LOCK_FUNCTION(lead.mutex_) : lead_(lead) {
    lead_.mutex_.Lock();
    lead_.performed_ = &events_;
  }
  ~Section() ABSL_UNLOCK_FUNCTION() {
    lead_.performed_ = nullptr;
    lead_.mutex_.Unlock();
    // Others may have later numbers by now, and wait for these.
    for (const Event& event : events_) lead_.context_.shard.Record(event);
  }
  Section(const Section&) = delete;
  Section& operator=(const Section&) = delete;

 private:
  Lead& lead_;
  std::vector<Event> events_;
};

Lead::Lead(ServerContext& context)
    : context_(context),
      next_incarnation_(context.incarnation),
      slots_(context.members.slots()),
      figures_(context.members.slots()),
      waiting_for_(context.members.slots()),
      introductions_(context.members.slots()) {}

Deal Lead::Perform(const DealerEvent& event, uint64_t incarnation) {
  const RoundBook* rounds = dealer_->rounds();
  const uint64_t before = rounds == nullptr ? 0 : rounds->changes();
  const uint64_t completed_before = dealer_->completed_tickets();
  Deal deal = slots_.Apply(event, incarnation, context_.job, context_.shard.agreement()->train_examples, dealer_.get());
  // Workers that wait ask many times a second.
  if (event.kind == DealerEvent::Kind::kFetch && deal.tickets.empty() &&
      (rounds == nullptr || rounds->changes() == before)) {
    return deal;
  }
  // Whoever says so may say it twice, or of batches that were never its own.
  if (event.kind == DealerEvent::Kind::kComplete && dealer_->completed_tickets() == completed_before) return deal;
  Event record = ToEvent(event);
  record.incarnation = incarnation;
  record.number = context_.shard.NextNumber();
  performed_->push_back(record);
  return deal;
}

absl::Status Lead::MakeDealer() {
  if (dealer_ != nullptr) return absl::OkStatus();
  const DealerOptions options =
      MakeDealerOptions(context_.job, context_.shard.agreement()->batches_per_epoch);
  if (absl::Status status = Dealer::Check(options); !status.ok()) {
    return absl::FailedPreconditionError(status.message());
  }
  dealer_ = std::make_unique<Dealer>(options);
  if (const auto phases = MakePhaseControlOptions(context_.job, options.batches_per_epoch)) {
    phases_.emplace(*phases);
  }
  if (FindRule(context_.job.update().rule())->worker_half) {
    steps_ = MakeSchedule(context_.job, options.batches_per_epoch).Steps();
  }
  if (stopped_) Perform({DealerEvent::Kind::kStop});
  return absl::OkStatus();
}

absl::StatusOr<v1::RegisterReply> Lead::Register(const v1::RegisterRequest& request) {
  if (context_.stopping) return absl::UnavailableError("this server is shutting down");
  if (absl::Status status = CheckLimits(request); !status.ok()) return status;
  if (absl::Status status = context_.shard.Agree(request.contract(), request.job_name(),
                                                 request.model(), request.train_examples(),
                                                 request.job_text(), request.data_identity());
      !status.ok()) {
    LOG_EVERY_T(WARNING, 1) << "refused to register '" << request.worker_name()
                            << "': " << FitText(status.ToString(), kMostReasonBytes);
    return status;
  }
  Section section(*this);
  if (absl::Status status = MakeDealer(); !status.ok()) return status;
  const RoundBook* rounds = dealer_->rounds();
  const bool gathering = rounds != nullptr && !rounds->started();
  std::optional<uint32_t> slot = request.has_wanted_slot() ? std::optional<uint32_t>(request.wanted_slot())
                                                           : context_.members.FreeSlot();
  // The rounds' first members have the lowest slots, also those of workers that were lost meanwhile.
  if (gathering && !request.has_wanted_slot()) {
    if (const auto low = context_.members.FreeSlot(context_.job.training().workers())) slot = low;
  }
  if (!slot.has_value()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", context_.members.slots(),
                     " worker slots are taken: start fewer workers or raise ",
                     context_.shard.synchronous() && !HasViews(context_.job) ? "training.workers"
                                                                             : "training.max_workers"));
  }
  if (*slot >= context_.members.slots()) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted_slot ", *slot, ": the job has ", context_.members.slots(),
                     " slots (training.max_workers)"));
  }
  if (gathering && *slot >= context_.job.training().workers()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("worker slot ", *slot, " is free, but the first ", context_.job.training().workers(),
                     " workers (training.workers) are still gathering, in slots 0 to ",
                     context_.job.training().workers() - 1, ": try again when training has begun"));
  }
  if (rounds != nullptr && rounds->full() && rounds->members().count(*slot) == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("an epoch has ", context_.shard.agreement()->batches_per_epoch,
                     " batches, and rounds have as many members: start fewer workers"));
  }
  const uint64_t before = context_.members.incarnation(*slot);
  std::optional<v1::WorkerStatus> past;
  if (before != 0) past = PastWorker(*slot);
  const uint64_t newest = std::max(next_incarnation_, before);
  if (newest == ~uint64_t{0}) {
    return absl::FailedPreconditionError(
        "no incarnation is left to give out: the state that this server goes on with has the highest there is");
  }
  next_incarnation_ = newest + 1;
  const uint64_t incarnation = next_incarnation_;
  if (absl::Status status =
          context_.members.Join(*slot, incarnation, request.worker_name(), request.device(),
                                MonotonicNanoseconds());
      !status.ok()) {
    return status;
  }
  if (past.has_value()) {
    if (past_workers_.size() >= kMaxPastWorkers) past_workers_.erase(past_workers_.begin());
    past_workers_.push_back(*std::move(past));
  }
  if (slots_.dealing(*slot) != 0) Perform({DealerEvent::Kind::kLost, *slot});
  Perform({DealerEvent::Kind::kJoin, *slot}, incarnation);
  introductions_[*slot].set_incarnation(incarnation);
  introductions_[*slot].set_name(request.worker_name());
  introductions_[*slot].set_device(request.device());
  Changed();
  figures_[*slot].Clear();
  waiting_for_[*slot].clear();
  context_.figures.ResetWorker(*slot);
  LOG(INFO) << "worker " << *slot << " is '" << request.worker_name() << "' on "
            << request.device() << ", incarnation " << incarnation
            << (before == 0 ? "" : "; an older incarnation of the slot is fenced");
  v1::RegisterReply reply;
  reply.set_worker(*slot);
  reply.set_incarnation(incarnation);
  reply.set_lease_seconds(context_.job.timeouts().lease_seconds());
  reply.set_protocol(CommonProtocol(context_.shard.agreement()->contract, request.contract()));
  FillCommonRun(context_, &reply);
  return reply;
}

absl::Status Lead::CheckCount(const char* field, int count) const {
  const uint64_t most = kReportedHands * MaxOutstanding(context_.job);
  if (static_cast<uint64_t>(count) <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", count, " tickets; a worker holds at most ",
                                                 MaxOutstanding(context_.job), ", and ", most,
                                                 " are taken in one message"));
}

void Lead::Complete(uint32_t worker, const google::protobuf::RepeatedField<uint64_t>& tickets) {
  for (const uint64_t ticket : tickets) Perform({DealerEvent::Kind::kComplete, worker, ticket});
  NoteProgress();
}

v1::WorkerStatus Lead::PastWorker(uint32_t slot) const {
  v1::WorkerStatus status = context_.Describe(context_.members.MemberAt(slot));
  // One that was still training when its slot was asked for is fenced.
  if (status.state() == ToString(Membership::State::kTraining)) status.set_state("fenced");
  FillReported(&status);
  return status;
}

void Lead::FillReported(v1::WorkerStatus* status) const {
  *status->mutable_figures() = figures_[status->worker()];
  status->set_examples(slots_.examples(status->worker()));
  // Whoever has gone waits for nothing.
  if (slots_.dealing(status->worker()) == status->incarnation() && (dealer_ == nullptr || !dealer_->finished())) {
    status->set_waiting_for(waiting_for_[status->worker()]);
  }
}

void Lead::NoteProgress() {
  if (dealer_->completed_epochs() > epochs_told_) {
    epochs_told_ = dealer_->completed_epochs();
    LOG(INFO) << "epoch " << epochs_told_ << " of " << context_.job.training().epochs()
              << " is complete: " << dealer_->completed_tickets() << " batches, "
              << dealer_->redealt_tickets() << " dealt again";
  }
  if (dealer_->finished() && reason_.empty()) {
    reason_ = absl::StrCat("all ", context_.job.training().epochs(), " epochs are complete");
    LOG(INFO) << "the job is finished: " << reason_;
  }
}

absl::StatusOr<v1::FetchTicketsReply> Lead::FetchTickets(
    const v1::FetchTicketsRequest& request) {
  if (absl::Status status = CheckLimits(request); !status.ok()) return status;
  if (absl::Status status = CheckCount("completed", request.completed_size()); !status.ok()) return status;
  if (absl::Status status = CheckCount("held", request.held_size()); !status.ok()) return status;
  const uint32_t worker = request.worker();
  absl::Status known = context_.members.Touch(worker, request.incarnation(), MonotonicNanoseconds());
  const bool forgotten = absl::IsFailedPrecondition(known) && WasForgotten(worker, request.incarnation());
  if (forgotten) {
    known = context_.members.Join(worker, request.incarnation(), "", "", MonotonicNanoseconds());
  }
  if (!known.ok()) return known;
  Section section(*this);
  if (forgotten) {
    if (absl::Status status = MakeDealer(); !status.ok()) return status;
  }
  if (dealer_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", worker, " is not registered: register with the lead first"));
  }
  // A newer start may have registered since.
  if (request.incarnation() < slots_.dealing(worker)) {
    return absl::AbortedError(
        absl::StrCat("worker ", worker, ": a newer incarnation is registered"));
  }
  Complete(worker, request.completed());
  // Of a start that was forgotten there may still be an older one.
  if (slots_.dealing(worker) != 0 && slots_.dealing(worker) < request.incarnation()) {
    Perform({DealerEvent::Kind::kLost, worker});
  }
  if (slots_.dealing(worker) == 0 && !dealer_->finished()) {
    Perform({DealerEvent::Kind::kJoin, worker}, request.incarnation());
  }
  NoteRounds(request);
  v1::FetchTicketsReply reply;
  Deal deal;
  if (!dealer_->finished() && request.count() > 0) {
    // What a lost reply has dealt already comes first.
    const std::set<uint64_t> known(request.held().begin(), request.held().end());
    for (const uint64_t ticket : dealer_->held(worker)) {
      if (known.count(ticket) == 0) deal.tickets.push_back(ticket);
    }
  }
  if (!dealer_->finished() && request.count() > deal.tickets.size()) {
    const uint64_t more = request.count() - deal.tickets.size();
    const Deal fresh = Perform({DealerEvent::Kind::kFetch, worker, more});
    deal.tickets.insert(deal.tickets.end(), fresh.tickets.begin(), fresh.tickets.end());
    deal.withheld = fresh.withheld;
  }
  reply.mutable_tickets()->Assign(deal.tickets.begin(), deal.tickets.end());
  SetRounds(request, &reply);
  reply.set_completed_epochs(dealer_->completed_epochs());
  if (dealer_->next_ticket() > 0) {
    reply.set_repair_ticket(NewestStep(steps_, dealer_->next_ticket() - 1));
  }
  if (request.count() > 0) waiting_for_[worker].clear();
  if (dealer_->finished()) {
    reply.set_state(v1::FetchTicketsReply::FINISHED);
    reply.set_reason(reason_);
  } else if (deal.tickets.empty() && request.count() > 0) {
    SetWait(worker, deal.withheld, &reply);
    if (dealer_->outstanding(worker) == 0) waiting_for_[worker] = reply.reason();
  } else {
    reply.set_state(v1::FetchTicketsReply::TRAINING);
  }
  return reply;
}

bool Lead::MayHaveGiven(uint64_t incarnation) const {
  absl::MutexLock lock(&mutex_);
  return incarnation <= next_incarnation_;
}

bool Lead::WasForgotten(uint32_t worker, uint64_t incarnation) const {
  return context_.durability != nullptr && context_.durability->lost() && worker < context_.members.slots() &&
         incarnation > context_.members.incarnation(worker) && incarnation < context_.incarnation;
}

void Lead::NoteRounds(const v1::FetchTicketsRequest& request) {
  const RoundBook* rounds = dealer_->rounds();
  if (rounds == nullptr) return;
  if (request.view() > rounds->acknowledged_view() && request.view() <= rounds->view()) {
    Perform({DealerEvent::Kind::kViewKnown, request.worker(), request.view()});
  }
  if (request.next_round() > 0) {
    Perform({DealerEvent::Kind::kSkipTo, request.worker(), request.next_round()});
  }
  NoteFigures(request);
}

void Lead::NoteFigures(const v1::FetchTicketsRequest& request) {
  if (!phases_.has_value()) return;
  const RoundBook& rounds = *dealer_->rounds();
  const uint64_t measured = phases_->measured_before();
  for (const v1::RoundFigures& figures : request.round_figures()) {
    // Nobody can have measured a round so far beyond those that were dealt.
    if (figures.round() > rounds.next_round() + Shard::kMostAheadRounds) continue;
    const RoundSums sums = {.round = figures.round(),
                            .variance_sum = figures.variance_sum(),
                            .error_ratio = figures.error_ratio(),
                            .server_error_ratio = figures.server_error_ratio()};
    const std::optional<Phase> phase = phases_->Decide(
        sums, dealer_->completed_tickets(), rounds, [&](Phase decided) ABSL_NO_THREAD_SAFETY_ANALYSIS {
          Perform({DealerEvent::Kind::kAnnounce, 0, static_cast<uint64_t>(decided)});
        });
    if (!phase.has_value()) continue;
    LOG(WARNING) << "from round " << rounds.announced_round() << " on, rounds are "
                 << (*phase == Phase::kFrozen ? "compressed, the variance frozen"
                                              : "in full precision again")
                 << ": " << phases_->reason();
  }
  if (phases_->measured_before() != measured) Changed();
}

void Lead::SetRounds(const v1::FetchTicketsRequest& request, v1::FetchTicketsReply* reply) const {
  const RoundBook* rounds = dealer_->rounds();
  if (rounds == nullptr) return;
  const auto member = rounds->members().find(request.worker());
  for (const uint64_t ticket : reply->tickets()) {
    reply->add_rounds(member->second.hand.at(ticket));
  }
  if (request.view() >= rounds->view()) return;
  v1::View& view = *reply->mutable_view();
  *view.mutable_contract() = context_.shard.agreement()->contract;
  view.set_number(rounds->view());
  for (const auto& [worker, one] : rounds->members()) {
    v1::ViewMember& listed = *view.add_members();
    listed.set_worker(worker);
    listed.set_incarnation(slots_.dealing(worker));
    listed.set_first_round(one.first_round);
  }
  view.set_compressed(rounds->announced_phase() == Phase::kFrozen);
  view.set_phase_round(rounds->announced_round());
}

void Lead::SetWait(uint32_t worker, Withheld withheld, v1::FetchTicketsReply* reply) const {
  const auto batches = [](uint64_t count) {
    return absl::StrCat(count, count == 1 ? " batch" : " batches");
  };
  reply->set_state(v1::FetchTicketsReply::WAIT);
  reply->set_retry_seconds(kRetrySeconds);
  switch (withheld) {
    case Withheld::kBound:
      reply->set_retry_seconds(kRetryBoundSeconds);
      reply->set_reason(absl::StrCat(
          "a slower worker: with ", batches(dealer_->clock(worker)), " behind it and ",
          dealer_->outstanding(worker), " in hand, this one is as far ahead as ",
          "training.staleness_bound (", context_.job.training().staleness_bound(),
          ") lets it be; the slowest has ", batches(dealer_->slowest_clock().value_or(0)), " behind it"));
      break;
    case Withheld::kRamp:
      reply->set_retry_seconds(kRetryRampSeconds);
      reply->set_reason(absl::StrCat(
          "the worker ramp (schedule.ramp_epochs), which admits ", dealer_->admitted_workers(), " of ",
          dealer_->joined_workers(), " workers so far, those of the lowest slots"));
      break;
    case Withheld::kMembers:
      reply->set_retry_seconds(kRetryRampSeconds);
      reply->set_reason(absl::StrCat("the members of the first round: ", dealer_->joined_workers(), " of ",
                                     context_.job.training().workers(),
                                     " workers (training.workers) are there"));
      break;
    case Withheld::kView:
      reply->set_retry_seconds(kRetryBoundSeconds);
      reply->set_reason("the servers to know of a new member of the rounds, or of their new phase");
      break;
    case Withheld::kHandsFull:
      reply->set_reason("the batches in its hands, as many as a worker may have");
      break;
    default:
      reply->set_reason("the last batches, which others are computing");
  }
}

absl::StatusOr<v1::ReportReply> Lead::Report(const v1::ReportRequest& request) {
  if (absl::Status status = CheckLimits(request); !status.ok()) return status;
  if (request.incarnation() != 0) {
    if (absl::Status status = context_.members.Touch(request.worker(), request.incarnation(),
                                                     MonotonicNanoseconds());
        !status.ok()) {
      return status;
    }
  }
  if (request.evaluations_size() > 0) {
    const Shard::Agreement* agreed = context_.shard.agreement();
    if (agreed == nullptr) {
      return absl::FailedPreconditionError("there is no model yet that could be evaluated");
    }
    if (absl::Status status = CheckContract(agreed->contract, request.contract()); !status.ok()) {
      return status;
    }
  }
  absl::MutexLock lock(&mutex_);
  if (request.incarnation() != 0 && request.has_figures()) {
    figures_[request.worker()] = request.figures();
  }
  for (const v1::Evaluation& evaluation : request.evaluations()) {
    if (evaluations_.size() >= kMaxEvaluations) evaluations_.erase(evaluations_.begin());
    evaluations_.push_back(evaluation);
    LOG(INFO) << "evaluation after epoch " << evaluation.epoch() << " ("
              << evaluation.parameters() << "): accuracy " << evaluation.accuracy() << ", loss "
              << evaluation.loss();
  }
  if (request.evaluations_size() > 0) Changed();
  v1::ReportReply reply;
  reply.set_finished(stopped_ || (dealer_ != nullptr && dealer_->finished()));
  if (dealer_ != nullptr) reply.set_completed_epochs(dealer_->completed_epochs());
  return reply;
}

absl::StatusOr<v1::LeaveReply> Lead::Leave(const v1::LeaveRequest& request) {
  if (absl::Status status = CheckLimits(request); !status.ok()) return status;
  if (absl::Status status = CheckCount("completed", request.completed_size()); !status.ok()) return status;
  const uint32_t worker = request.worker();
  const absl::StatusOr<bool> left =
      context_.members.Leave(worker, request.incarnation(), MonotonicNanoseconds());
  if (!left.ok()) return left.status();
  {
    Section section(*this);
    if (dealer_ != nullptr) Complete(worker, request.completed());
    if (request.has_figures()) figures_[worker] = request.figures();
    if (slots_.dealing(worker) == request.incarnation()) Perform({DealerEvent::Kind::kLost, worker});
  }
  if (*left) {
    LOG(INFO) << "worker " << worker << " has left: " << FitText(request.reason(), kMostReasonBytes);
    context_.Release(EventKind::kLeave, worker, request.incarnation());
  }
  return v1::LeaveReply();
}

void Lead::NoteLost(uint32_t worker, uint64_t incarnation) {
  Section section(*this);
  if (slots_.dealing(worker) == 0 || slots_.dealing(worker) != incarnation) return;
  Perform({DealerEvent::Kind::kLost, worker});
}

void Lead::Stop(const std::string& reason) {
  Section section(*this);
  StopLocked(reason);
}

void Lead::StopLocked(const std::string& reason) {
  if (stopped_ || (dealer_ != nullptr && dealer_->finished())) return;
  stopped_ = true;
  reason_ = reason.empty() ? "stopped" : reason;
  if (dealer_ != nullptr) Perform({DealerEvent::Kind::kStop});
  Changed();
  LOG(INFO) << "the job is stopped: " << reason_;
}

bool Lead::finished() const {
  absl::MutexLock lock(&mutex_);
  return stopped_ || (dealer_ != nullptr && dealer_->finished());
}

void Lead::FillStatus(v1::StatusReply* reply) const {
  absl::MutexLock lock(&mutex_);
  reply->set_lead(true);
  reply->set_epochs(context_.job.training().epochs());
  reply->set_batch_size(context_.job.training().batch_size());
  if (dealer_ != nullptr) {
    reply->set_total_tickets(dealer_->total_tickets());
    reply->set_completed_tickets(dealer_->completed_tickets());
    reply->set_redealt_tickets(dealer_->redealt_tickets());
    reply->set_completed_epochs(dealer_->completed_epochs());
  }
  if (phases_.has_value()) reply->set_variance_stability(phases_->stability());
  for (const v1::Evaluation& evaluation : evaluations_) *reply->add_evaluations() = evaluation;
  reply->set_finished(stopped_ || (dealer_ != nullptr && dealer_->finished()));
  reply->set_finish_reason(reason_);
  for (v1::WorkerStatus& worker : *reply->mutable_workers()) {
    FillReported(&worker);
  }
  reply->mutable_past_workers()->Assign(past_workers_.begin(), past_workers_.end());
}

v1::LeadState Lead::StateLocked() const {
  v1::LeadState state;
  slots_.Save(&state);
  state.mutable_introductions()->Assign(introductions_.begin(), introductions_.end());
  if (phases_.has_value()) {
    const PhaseControl::History history = phases_->history();
    v1::PhaseHistory& saved = *state.mutable_phases();
    saved.set_announced_round(history.announced_round);
    for (const auto& [round, sum] : history.variance_sums) {
      saved.add_rounds(round);
      saved.add_variance_sums(sum);
    }
    saved.set_stability(history.stability);
  }
  for (const v1::Evaluation& evaluation : evaluations_) *state.add_evaluations() = evaluation;
  if (stopped_) state.set_stop_reason(reason_);
  return state;
}

v1::LeadState Lead::state() const {
  absl::MutexLock lock(&mutex_);
  return StateLocked();
}

std::optional<Lead::Saved> Lead::Save() const {
  absl::MutexLock lock(&mutex_);
  if (dealer_ == nullptr) return std::nullopt;
  return Saved{.number = context_.shard.last_number(), .dealer = dealer_->Save(), .state = StateLocked()};
}

absl::Status Lead::Load(const std::string& dealer, const v1::LeadState& state) {
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = MakeDealer(); !status.ok()) return status;
  if (absl::Status status = dealer_->Load(dealer); !status.ok()) return status;
  if (absl::Status status = slots_.Load(state); !status.ok()) return status;
  stopped_ = dealer_->stopped();
  restored_ = state;
  return absl::OkStatus();
}

absl::Status Lead::Replay(const Event& event) {
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = MakeDealer(); !status.ok()) return status;
  const absl::StatusOr<Deal> dealt =
      slots_.Replay(event, context_.job, context_.shard.agreement()->train_examples, dealer_.get());
  stopped_ = dealer_->stopped();
  return dealt.status();
}

void Lead::Resume(const v1::LeadState* newer) {
  absl::MutexLock lock(&mutex_);
  v1::LeadState state = std::exchange(restored_, {});
  if (newer != nullptr) TakeNewer(*newer, &state);
  for (int slot = 0; slot < std::min<int>(state.introductions_size(), introductions_.size()); ++slot) {
    introductions_[slot] = state.introductions(slot);
  }
  // Without a dealer it was stopped before anybody had registered.
  if (dealer_ == nullptr) stopped_ = !state.stop_reason().empty();
  if (stopped_) reason_ = state.stop_reason().empty() ? "stopped" : state.stop_reason();
  if (dealer_ == nullptr) return;
  evaluations_.assign(state.evaluations().begin(), state.evaluations().end());
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    next_incarnation_ = std::max(next_incarnation_, slots_.known(slot));
  }
  if (phases_.has_value() && dealer_->rounds() != nullptr && dealer_->rounds()->announced_round() > 0) {
    phases_->Announced(dealer_->rounds()->announced_phase(), dealer_->rounds()->announced_round());
  }
  if (phases_.has_value()) {
    const v1::PhaseHistory& saved = state.phases();
    PhaseControl::History history = {.announced_round = saved.announced_round(), .stability = saved.stability()};
    for (int k = 0; k < std::min(saved.rounds_size(), saved.variance_sums_size()); ++k) {
      history.variance_sums[saved.rounds(k)] = saved.variance_sums(k);
    }
    phases_->Resume(history);
  }
  epochs_told_ = dealer_->completed_epochs();
  NoteProgress();
}

LeadSlots Lead::slots() const {
  absl::MutexLock lock(&mutex_);
  return slots_;
}

v1::Introduction Lead::introduction(uint32_t slot, uint64_t incarnation) const {
  absl::MutexLock lock(&mutex_);
  const v1::Introduction& found = introductions_[slot];
  return found.incarnation() == incarnation ? found : v1::Introduction();
}

}  // namespace foreshard
