#include "worker/lead_client.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/channel.h"
#include "common/net/exchange_message.h"
#include "common/net/job_parts.h"
#include "common/net/wire_limits.h"
#include "glog/logging.h"

namespace foreshard {
namespace {

// Tickets in hand: enough for this long, within these bounds.
constexpr double kAheadSeconds = 0.1;
constexpr size_t kFewestAhead = 2;
constexpr size_t kMostAhead = 8;
// Completed tickets wait this long for company.
constexpr absl::Duration kCompletedWait = absl::Milliseconds(100);
// With watch: others may wait for this worker meanwhile, or for views that it brings.
constexpr absl::Duration kWatchEvery = absl::Milliseconds(250);
constexpr absl::Duration kFiguresEvery = absl::Seconds(1);
constexpr absl::Duration kShortestAskAgain = absl::Milliseconds(10);
constexpr absl::Duration kLongestAskAgain = absl::Seconds(1);
// Why it is told to wait is logged this often.
constexpr int kLogWaitSeconds = 30;
// Measured rounds that wait to be sent.
constexpr size_t kMostRounds = 256;
constexpr absl::Duration kStopCheckEvery = absl::Milliseconds(100);
constexpr std::chrono::seconds kLeaveDeadline{3};

}  // namespace

absl::StatusOr<std::unique_ptr<LeadClient>> LeadClient::Register(const LeadClientOptions& options) {
  auto stub = v1::Lead::NewStub(MakeChannel(options.address, options.credentials));
  const absl::Duration limit = absl::Seconds(options.connect_seconds);
  Patience patience(ServerName(0, options.address), limit,
                    options.credentials.Explainer(options.address));
  v1::RegisterReply reply;
  const absl::Status status =
      CallPatiently(
          patience, limit, [&] { return options.stop != nullptr && options.stop->load(); },
          [&](grpc::ClientContext& context) {
            return stub->Register(&context, options.registration, &reply);
          });
  if (!status.ok()) return status;
  const auto agreed = AgreedProtocol(options.registration.contract(), reply.protocol(), patience.server());
  if (!agreed.ok()) return agreed.status();
  return std::unique_ptr<LeadClient>(new LeadClient(options, std::move(stub), reply));
}

LeadClient::LeadClient(const LeadClientOptions& options, std::unique_ptr<v1::Lead::Stub> stub,
                       const v1::RegisterReply& registration)
    : options_(options),
      stub_(std::move(stub)),
      registration_(registration),
      patience_(ServerName(0, options.address), absl::Seconds(options.connect_seconds),
                options.credentials.Explainer(options.address)) {
  thread_ = std::thread([this] { Run(); });
}

LeadClient::~LeadClient() { Close(); }

bool LeadClient::Stopped() const {
  return closing_.load() || Interrupted();
}

void LeadClient::Close() {
  {
    absl::MutexLock lock(&mutex_);
    closing_.store(true);
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void LeadClient::Await(absl::FunctionRef<bool()> enough) {
  loop_waits_ = hand_.empty();
  if (loop_waits_) changed_.SignalAll();
  while (hand_.empty() && !finished_ && failure_.ok() && !Interrupted() && !enough()) {
    changed_.WaitWithTimeout(&mutex_, kStopCheckEvery);
  }
  loop_waits_ = false;
}

bool LeadClient::AwaitTicket() {
  absl::MutexLock lock(&mutex_);
  const uint64_t answers = answers_;
  bool told = false;
  // What was said before of tickets to have ahead may be true no more.
  Await([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    told = told_to_wait_ && answers_ > answers;
    return told;
  });
  return !told;
}

absl::StatusOr<std::optional<Ticket>> LeadClient::NextTicket() {
  absl::MutexLock lock(&mutex_);
  Await([] { return false; });
  if (hand_.empty() && !finished_ && failure_.ok()) {
    return absl::CancelledError("interrupted while waiting for a ticket");
  }
  if (finished_) return std::nullopt;
  if (hand_.empty()) return failure_;
  const Ticket ticket = {.number = hand_.front().ticket,
                         .waited = std::exchange(front_waited_, false),
                         .round = hand_.front().round};
  hand_.pop_front();
  taken_.push_back(ticket.number);
  const SteadyTime now = SteadyTime::Now();
  if (last_taken_ != SteadyTime::InfinitePast()) {
    const double seconds = absl::ToDoubleSeconds(now - last_taken_);
    seconds_per_ticket_ += 0.25 * (seconds - seconds_per_ticket_);
  }
  last_taken_ = now;
  changed_.SignalAll();
  return ticket;
}

std::optional<uint64_t> LeadClient::PeekTicket() const {
  absl::MutexLock lock(&mutex_);
  if (hand_.empty()) return std::nullopt;
  return hand_.front().ticket;
}

uint64_t LeadClient::repair_ticket() const {
  absl::MutexLock lock(&mutex_);
  return repair_ticket_;
}

void LeadClient::AwaitTicketOrRepair(uint64_t repaired) {
  absl::MutexLock lock(&mutex_);
  Await([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return repair_ticket_ > repaired; });
}

void LeadClient::Completed(uint64_t ticket, absl::Span<const uint64_t> others) {
  absl::MutexLock lock(&mutex_);
  if (completed_.empty()) first_completed_ = SteadyTime::Now();
  completed_.push_back(ticket);
  completed_.insert(completed_.end(), others.begin(), others.end());
  std::erase_if(taken_, [&](uint64_t taken) {
    return taken == ticket || std::find(others.begin(), others.end(), taken) != others.end();
  });
  changed_.SignalAll();
}

void LeadClient::NoteRound(const RoundSums& sums) {
  absl::MutexLock lock(&mutex_);
  // Where the lead does not answer, the newest count.
  if (rounds_.size() == kMostRounds) rounds_.erase(rounds_.begin());
  rounds_.push_back(sums);
}

void LeadClient::Report(const v1::WorkerFigures& figures) {
  absl::MutexLock lock(&mutex_);
  figures_ = figures;
}

std::string LeadClient::finish_reason() const {
  absl::MutexLock lock(&mutex_);
  return finish_reason_;
}

bool LeadClient::finished() const {
  absl::MutexLock lock(&mutex_);
  return finished_;
}

size_t LeadClient::Ahead() const {
  if (seconds_per_ticket_ <= 0) return kFewestAhead;
  const double wanted = std::ceil(kAheadSeconds / seconds_per_ticket_) + 1;
  return static_cast<size_t>(
      std::clamp(wanted, static_cast<double>(kFewestAhead), static_cast<double>(kMostAhead)));
}

// When the lead is to be asked next, as far as is known now.
SteadyTime LeadClient::FetchTime() const {
  if (!failure_.ok()) return SteadyTime::InfiniteFuture();
  // Others may have died in a round that is still open: their leaving it is a view.
  if (finished_) return options_.watch ? last_asked_ + kWatchEvery : SteadyTime::InfiniteFuture();
  SteadyTime time = SteadyTime::InfiniteFuture();
  if (!completed_.empty()) {
    // Where nothing is left to deal, this may be what ends the job.
    time = hand_.empty() || told_to_wait_ ? SteadyTime::InfinitePast() : first_completed_ + kCompletedWait;
  }
  // Who was told to wait for tickets to have ahead asks when it has none.
  if (hand_.size() <= Ahead() / 2 && (loop_waits_ || !told_to_wait_)) {
    time = std::min(time, ask_again_);
  }
  if (options_.watch) time = std::min(time, last_asked_ + kWatchEvery);
  return time;
}

void LeadClient::Run() {
  absl::MutexLock lock(&mutex_);
  while (!closing_.load()) {
    const SteadyTime now = SteadyTime::Now();
    if (FetchTime() <= now) {
      Fetch();
    } else if (figures_.has_value() && figures_due_ <= now) {
      SendFigures();
    } else {
      const SteadyTime wake = std::min({FetchTime(), std::max(figures_due_, now + kStopCheckEvery),
                                        now + kFiguresEvery});
      changed_.WaitWithTimeout(&mutex_, wake - now);
    }
  }
}

void LeadClient::Fetch() {
  v1::FetchTicketsRequest request;
  request.set_worker(worker());
  request.set_incarnation(incarnation());
  request.set_count(
      static_cast<uint32_t>(!finished_ && Ahead() > hand_.size() ? Ahead() - hand_.size() : 0));
  request.mutable_completed()->Assign(completed_.begin(), completed_.end());
  for (const Dealt& dealt : hand_) request.add_held(dealt.ticket);
  request.mutable_held()->Add(taken_.begin(), taken_.end());
  request.set_view(view_);
  request.set_next_round(std::exchange(skip_to_, 0));
  const std::vector<RoundSums> rounds = std::exchange(rounds_, {});
  for (const RoundSums& sums : rounds) {
    v1::RoundFigures& figures = *request.add_round_figures();
    figures.set_round(sums.round);
    figures.set_variance_sum(sums.variance_sum);
    figures.set_error_ratio(sums.error_ratio);
    figures.set_server_error_ratio(sums.server_error_ratio);
  }
  const size_t reported = completed_.size();
  last_asked_ = SteadyTime::Now();
  mutex_.Unlock();
  v1::FetchTicketsReply reply;
  const absl::Status status =
      CallPatiently(patience_, absl::Seconds(options_.connect_seconds), [this] { return Stopped(); },
                    [&](grpc::ClientContext& context) {
                      return stub_->FetchTickets(&context, request, &reply);
                    });
  mutex_.Lock();
  if (status.ok()) {
    completed_.erase(completed_.begin(), completed_.begin() + static_cast<int64_t>(reported));
    first_completed_ = SteadyTime::Now();
    if (!reply.tickets().empty() && hand_.empty() && taken_.empty()) {
      front_waited_ = told_to_wait_ || options_.staleness_bound;
    }
    for (int k = 0; k < reply.tickets_size(); ++k) {
      const uint64_t round = k < reply.rounds_size() ? reply.rounds(k) : 0;
      // Meanwhile the loop may have given up rounds; the lead hears of it next.
      if (round >= skip_to_) hand_.push_back({.ticket = reply.tickets(k), .round = round});
    }
    repair_ticket_ = std::max(repair_ticket_, reply.repair_ticket());
    ++answers_;
    told_to_wait_ = reply.state() == v1::FetchTicketsReply::WAIT;
    ask_again_ = told_to_wait_ || (reply.tickets().empty() && request.count() > 0)
                     ? SteadyTime::Now() + std::clamp(absl::Seconds(reply.retry_seconds()),
                                                kShortestAskAgain, kLongestAskAgain)
                     : SteadyTime::InfinitePast();
    if (told_to_wait_ && loop_waits_) {
      LOG_EVERY_T(INFO, kLogWaitSeconds) << "waiting for " << reply.reason();
    }
    if (reply.state() == v1::FetchTicketsReply::FINISHED) {
      finished_ = true;
      hand_.clear();
      finish_reason_ = reply.reason();
    }
  } else {
    failure_ = status;
  }
  changed_.SignalAll();
  if (status.ok() && reply.has_view()) BringView(reply.view());
}

void LeadClient::BringView(const v1::View& view) {
  if (bring_ == nullptr || view.number() <= view_) return;
  bringing_ = true;
  mutex_.Unlock();
  const absl::Status brought = bring_(view);
  mutex_.Lock();
  bringing_ = false;
  if (!brought.ok()) {
    LOG_EVERY_T(WARNING, kLogWaitSeconds) << "view " << view.number() << ": " << brought;
    return;  // it comes again
  }
  view_ = std::max(view_, view.number());
  ask_again_ = SteadyTime::InfinitePast();
}

void LeadClient::BringViews(std::function<absl::Status(const v1::View&)> bring) {
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !bringing_; };
  mutex_.Await(absl::Condition(&idle));
  bring_ = std::move(bring);
}

void LeadClient::SkipTo(uint64_t round, uint64_t taken) {
  absl::MutexLock lock(&mutex_);
  skip_to_ = std::max(skip_to_, round);
  while (!hand_.empty() && hand_.front().round < round) hand_.pop_front();
  std::erase(taken_, taken);
  ask_again_ = SteadyTime::InfinitePast();
  changed_.SignalAll();
}

void LeadClient::SendFigures() {
  v1::ReportRequest request;
  request.set_worker(worker());
  request.set_incarnation(incarnation());
  *request.mutable_figures() = *figures_;
  figures_.reset();
  figures_due_ = SteadyTime::Now() + kFiguresEvery;
  mutex_.Unlock();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(kFiguresEvery));
  v1::ReportReply reply;
  // A lost report is made good by the next one.
  const grpc::Status status = stub_->Report(&context, request, &reply);
  if (!status.ok()) VLOG(1) << "report not taken: " << status.error_message();
  mutex_.Lock();
}

void LeadClient::Leave(const std::string& reason) {
  Close();
  v1::LeaveRequest request;
  {
    absl::MutexLock lock(&mutex_);
    // A fenced worker has no slot to give back.
    if (std::exchange(left_, true) || failure_.code() == absl::StatusCode::kAborted) return;
    request.mutable_completed()->Assign(completed_.begin(), completed_.end());
    if (figures_.has_value()) *request.mutable_figures() = *figures_;
  }
  request.set_worker(worker());
  request.set_incarnation(incarnation());
  request.set_reason(FitText(reason, kMostReasonBytes));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kLeaveDeadline);
  v1::LeaveReply reply;
  const grpc::Status status = stub_->Leave(&context, request, &reply);
  if (!status.ok()) {
    LOG(WARNING) << "could not take leave of " << patience_.server() << ": "
                 << status.error_message();
  }
}

}  // namespace foreshard
