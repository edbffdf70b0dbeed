#include "server/parameter_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/exchange_message.h"
#include "common/net/job_parts.h"
#include "common/net/retry_after.h"
#include "common/net/wire_limits.h"
#include "glog/logging.h"
#include "server/common_run.h"
#include "server/durability.h"
#include "server/monotonic_time.h"
#include "server/typed_call.h"

namespace foreshard {
namespace {

// Up to this much work is done where the message arrived: a hand-off between
// threads costs as much.
constexpr uint64_t kInlineBytes = 64 << 10;
constexpr int64_t kFetchNanoseconds = 20'000'000'000;
// Of a message that finds no room: what is there is answered within milliseconds, and each that
// waits takes its time after it.
constexpr absl::Duration kRetryAfterStep = absl::Milliseconds(20);
// Of a worker of this run: beyond, no clock can be meant.
constexpr uint64_t kHighestIncarnation = ~uint64_t{0} >> 2;
// So many of those whose momentum a repair waits for are named in its reply.
constexpr int kNamedWorkers = 8;

using Request = ParsedMessage<v1::ExchangeHeader>;

v1::ReplyHeader::Result ToProto(Result result) {
  switch (result) {
    case Result::kApplied:
      return v1::ReplyHeader::APPLIED;
    case Result::kDuplicate:
      return v1::ReplyHeader::DUPLICATE;
    case Result::kDiscarded:
      return v1::ReplyHeader::DISCARDED;
    case Result::kSkipped:
      return v1::ReplyHeader::SKIPPED;
    case Result::kCurrent:
      return v1::ReplyHeader::CURRENT;
    case Result::kInitialised:
      return v1::ReplyHeader::INITIALISED;
    case Result::kPending:
      return v1::ReplyHeader::PENDING;
    case Result::kLate:
      return v1::ReplyHeader::LATE;
  }
  return v1::ReplyHeader::CURRENT;
}

bool SameContract(const v1::Contract& a, const v1::Contract& b) {
  return a.protocol() == b.protocol() && a.oldest_protocol() == b.oldest_protocol() && a.job() == b.job() &&
         a.schema() == b.schema() && a.plan() == b.plan();
}

}  // namespace

// One Exchange on its way.
struct ParameterService::Call {
  Request request;
  grpc::ByteBuffer* reply = nullptr;
  grpc::CallbackServerContext* context = nullptr;
  grpc::ServerUnaryReactor* reactor = nullptr;
  int64_t arrived = 0;
  uint64_t reserved_bytes = 0;
  uint64_t message_bytes = 0;
  Shard::Cell* cell = nullptr;
  Event event;
  bool wants_parameters = false;

  const v1::ExchangeHeader& header() const { return request.header(); }
  bool pushes() const {
    return header().kind() == v1::ExchangeHeader::PUSH ||
           header().kind() == v1::ExchangeHeader::SKIP;
  }
};

// A FETCH: the only call that may wait. Whoever takes it out of the cell's list of
// waiters, and nobody else, finishes it.
class ParameterService::FetchReactor final : public grpc::ServerUnaryReactor, public RoundWaiter {
 public:
  FetchReactor(ParameterService* service, std::unique_ptr<Call> call)
      : service_(service), cell_(call->cell), call_(std::move(call)) {
    round = call_->header().round();
    worker = call_->header().worker();
    absent = call_->header().absent();
    deadline = call_->arrived + kFetchNanoseconds;
    call_->reactor = this;
  }

  std::unique_ptr<Call> TakeCall() { return std::move(call_); }

  void OnCancel() override {
    if (service_->context_.shard.Unpark(*cell_, this)) {
      service_->Finish(TakeCall(), absl::CancelledError("the caller gave up"));
    }
  }
  void OnDone() override { delete this; }

 private:
  ParameterService* const service_;
  Shard::Cell* const cell_;
  std::unique_ptr<Call> call_;
};

grpc::ServerUnaryReactor* ParameterService::Hello(grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer* message,
                                                  grpc::ByteBuffer* out) {
  return ServeTyped<v1::HelloRequest, v1::HelloReply>(
      context_.buffers, context, message, out, Turn::kLater, [this](const auto& call) {
        // The first one makes all segments.
        context_.threads.Run([this, call] {
          const absl::Status status = SayHello(call->request, &call->reply);
          if (!status.ok()) {
            LOG_EVERY_T(WARNING, 1) << "refused Hello of '" << FitText(call->request.worker_name(), kMostNameBytes)
                                    << "': " << FitText(status.ToString(), kMostReasonBytes);
          }
          call->Finish(status);
        });
      });
}

absl::Status ParameterService::SayHello(const v1::HelloRequest& request, v1::HelloReply* reply) {
  if (context_.stopping) return absl::UnavailableError("this server is shutting down");
  if (absl::Status status = CheckLimits(request); !status.ok()) return status;
  if (absl::Status status = context_.shard.Agree(request.contract(), request.job_name(),
                                                 request.model(), request.train_examples(),
                                                 request.job_text(), request.data_identity());
      !status.ok()) {
    return status;
  }
  // Before the run's id is taken from the request.
  if (absl::Status status = CheckIncarnation(request); !status.ok()) return status;
  if (absl::Status status = CheckCommonRun(context_, request); !status.ok()) return status;
  if (!request.reader()) {
    const uint32_t worker = request.worker();
    const uint64_t before =
        worker < context_.members.slots() ? context_.members.incarnation(worker) : 0;
    if (absl::Status status =
            context_.members.Join(worker, request.incarnation(), request.worker_name(), "",
                                  MonotonicNanoseconds());
        !status.ok()) {
      return status;
    }
    if (before != request.incarnation()) context_.figures.ResetWorker(worker);
  }
  reply->set_protocol(CommonProtocol(context_.shard.agreement()->contract, request.contract()));
  reply->set_shard(context_.shard.index());
  reply->set_server_incarnation(context_.incarnation);
  reply->set_state_id(context_.durability == nullptr ? context_.incarnation : context_.durability->state_id());
  reply->set_run_id(context_.durability == nullptr ? context_.incarnation : context_.durability->run_id());
  reply->set_common_run_id(CommonRunId(context_, lead_ != nullptr));
  reply->set_open_round(OpenRound(context_));
  for (const uint32_t segment : context_.shard.MissingSegments()) {
    reply->add_missing_segments(segment);
  }
  return absl::OkStatus();
}

// One that is too high would fence every start of the worker that is to come.
absl::Status ParameterService::CheckIncarnation(const v1::HelloRequest& request) const {
  if (request.reader()) return absl::OkStatus();
  const std::string what = absl::StrCat("worker ", request.worker(), ": incarnation ", request.incarnation(),
                                        " is none that a lead can have given ");
  if (lead_ != nullptr) {
    if (lead_->MayHaveGiven(request.incarnation())) return absl::OkStatus();
    return absl::InvalidArgumentError(what + "so far; register with the lead first");
  }
  // A lead that was started once with a clock far ahead goes on from there. Who brings the run's id has it from
  // the lead that gives these incarnations.
  const uint64_t run = CommonRunId(context_, /*lead=*/false);
  const bool of_run = run != 0 && request.common_run_id() == run && request.incarnation() <= kHighestIncarnation;
  if (of_run || context_.MayBeGiven(request.incarnation())) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      what, "by now. Register with the lead first; if that was done, its clock is more than a day ahead of this server's, or was when "
      "it was started: set it and start the lead again. Where it keeps a state directory, that goes on from the time it had: "
      "begin anew with empty directories, or with those that foreshard import --from-state makes of all servers'"));
}

grpc::ServerUnaryReactor* ParameterService::Heartbeat(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* message,
                                                      grpc::ByteBuffer* out) {
  return ServeTyped<v1::HeartbeatRequest, v1::HeartbeatReply>(
      context_.buffers, context, message, out, Turn::kAtOnce, [this](const auto& call) {
        const uint32_t worker = call->request.worker();
        const uint64_t incarnation = call->request.incarnation();
        call->reply.set_server_incarnation(context_.incarnation);
        const int64_t now = MonotonicNanoseconds();
        if (!call->request.leaving()) return call->Finish(context_.members.Touch(worker, incarnation, now));
        const absl::StatusOr<bool> left = context_.members.Leave(worker, incarnation, now);
        if (!left.ok() || !*left) return call->Finish(left.status());
        // Once for each member, so that nobody can make many wait.
        context_.threads.Run([this, call, worker, incarnation] {
          // Should the worker end before it tells the lead, nothing it held is lost.
          if (lead_ != nullptr) lead_->NoteLost(worker, incarnation);
          context_.Release(EventKind::kLeave, worker, incarnation);
          call->Finish(absl::OkStatus());
        });
      });
}

grpc::ServerUnaryReactor* ParameterService::ChangeView(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* message,
                                                       grpc::ByteBuffer* out) {
  return ServeTyped<v1::View, v1::ViewReply>(
      context_.buffers, context, message, out, Turn::kLater, [this](const auto& call) {
        context_.threads.Run([this, call] { call->Finish(BringView(call->request)); });
      });
}

absl::Status ParameterService::BringView(const v1::View& view) {
  const Shard::Agreement* agreed = context_.shard.agreement();
  if (agreed == nullptr) {
    return absl::FailedPreconditionError("this server knows no model yet: say Hello first");
  }
  if (absl::Status status = CheckContract(agreed->contract, view.contract()); !status.ok()) return status;
  if (absl::Status status = context_.members.Touch(view.worker(), view.incarnation(), MonotonicNanoseconds());
      !status.ok()) {
    return status;
  }
  if (!HasViews(context_.job)) {
    return absl::FailedPreconditionError("this job's rounds, if it has any, have fixed members");
  }
  Shard::View change = {.number = view.number(),
                        .phase = view.compressed() ? Phase::kFrozen : Phase::kFull,
                        .phase_round = view.phase_round()};
  uint64_t furthest = view.phase_round();
  for (const v1::ViewMember& member : view.members()) {
    furthest = std::max(furthest, member.first_round());
    AppendMember({.worker = member.worker(),
                  .incarnation = member.incarnation(),
                  .first_round = member.first_round()},
                 &change.members);
  }
  if (absl::Status status = context_.shard.CheckRound(furthest, AfterLoss()); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat("view ", view.number(), ": ", status.message()));
  }
  std::vector<RoundWaiter*> released;
  const absl::Status status = context_.shard.ChangeView(change, &released);
  for (RoundWaiter* waiter : released) Resume(waiter);
  return status;
}

void ParameterService::CloseWithoutStragglers(int64_t now) {
  const float seconds = context_.job.training().straggler_seconds();
  if (seconds <= 0) return;
  uint64_t absences = 0;
  for (RoundWaiter* waiter : context_.shard.CloseWithoutStragglers(now, seconds, &absences)) Resume(waiter);
  context_.figures.metrics().round_absences->Increment(static_cast<double>(absences));
}

grpc::ServerUnaryReactor* ParameterService::Exchange(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* reply) {
  auto call = std::make_unique<Call>();
  call->arrived = MonotonicNanoseconds();
  call->reply = reply;
  call->context = context;
  call->message_bytes = request->Length();
  // A fetch gets a reactor of its own below; all others never wait.
  const auto refuse = [&](const absl::Status& status) {
    call->reactor = context->DefaultReactor();
    grpc::ServerUnaryReactor* reactor = call->reactor;
    Finish(std::move(call), status);
    return reactor;
  };
  if (context_.stopping.load(std::memory_order_relaxed)) {
    return refuse(absl::UnavailableError("this server is shutting down"));
  }
  if (!context_.buffers.Reserve(call->message_bytes)) {
    return refuse(absl::ResourceExhaustedError(
        absl::StrCat("this server holds ", context_.buffers.used_bytes(),
                     " bytes of requests and replies, up to its bound of ",
                     context_.buffers.budget_bytes(),
                     " (servers.inflight_bytes): try again after a pause")));
  }
  call->reserved_bytes = call->message_bytes;
  absl::StatusOr<Request> parsed = Request::Parse(*request);
  if (!parsed.ok()) {
    context_.figures.NoteRejected();
    return refuse(parsed.status());
  }
  call->request = *std::move(parsed);
  absl::Status status = Identify(*call);
  if (status.ok()) status = MakeEvent(*call);
  if (!status.ok()) {
    if (call->pushes()) context_.figures.NoteRejected();
    return refuse(status);
  }
  if (call->header().kind() == v1::ExchangeHeader::FETCH) {
    if (call->header().absent()) status = context_.shard.CheckRound(*call->cell, call->header().round(), AfterLoss());
    return status.ok() ? Fetch(std::move(call)) : refuse(status);
  }

  call->reactor = context->DefaultReactor();
  grpc::ServerUnaryReactor* reactor = call->reactor;
  const uint64_t work_bytes = std::max(call->request.payload().bytes, call->cell->reply_bytes);
  if (work_bytes <= kInlineBytes && !WaitsForDisk()) {
    Serve(std::move(call));
  } else {
    context_.threads.Run([this, raw = call.release()] { Serve(std::unique_ptr<Call>(raw)); });
  }
  return reactor;
}

// Who is asking, and whether they may.
absl::Status ParameterService::Identify(Call& call) const {
  const v1::ExchangeHeader& header = call.header();
  const Shard::Agreement* agreed = context_.shard.agreement();
  if (agreed == nullptr) {
    return absl::FailedPreconditionError("this server knows no model yet: say Hello first");
  }
  if (!SameContract(agreed->contract, header.contract())) {
    if (absl::Status status = CheckContract(agreed->contract, header.contract()); !status.ok()) {
      return status;
    }
  }
  absl::StatusOr<Shard::Cell*> cell = context_.shard.FindCell(header.segment());
  if (!cell.ok()) return cell.status();
  call.cell = *cell;
  if (header.incarnation() == 0) {
    if (header.kind() == v1::ExchangeHeader::READ) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "incarnation 0: a reader has no worker slot and may only read");
  }
  return context_.members.Touch(header.worker(), header.incarnation(), call.arrived);
}

// The event this request asks for, with every field of the wire checked.
absl::Status ParameterService::MakeEvent(Call& call) const {
  const v1::ExchangeHeader& header = call.header();
  const auto bad = [&](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment ", header.segment(), ", worker ", header.worker(), ": ", what...));
  };
  if (header.codec() > 255 || !IsCodec(static_cast<CodecId>(header.codec()))) {
    return bad("codec ", header.codec(), " is unknown to this server");
  }
  if (header.reply_codec() != 0 && header.reply_codec() != call.cell->reply_codec) {
    return bad("codec ", header.reply_codec(), " is none that a reply of this job can have");
  }
  const Payload payload = call.request.payload();
  Event& event = call.event;
  event.segment = header.segment();
  event.worker = header.worker();
  event.incarnation = header.incarnation();
  event.codec = static_cast<uint8_t>(header.codec());
  event.reply_codec = static_cast<uint8_t>(header.reply_codec());
  event.held_version = header.held_version();
  event.payload = payload;
  call.wants_parameters = true;
  switch (header.kind()) {
    case v1::ExchangeHeader::PUSH:
    case v1::ExchangeHeader::SKIP: {
      event.kind = call.header().kind() == v1::ExchangeHeader::PUSH ? EventKind::kPush
                                                                    : EventKind::kSkip;
      event.sequence = header.sequence();
      event.ticket = header.ticket();
      event.argument = call.cell->synchronous ? header.round() : 0;
      if (header.sequence() == 0) return bad("sequence 0; the first push has 1");
      const uint64_t tickets = context_.shard.agreement()->tickets;
      if (header.ticket() >= tickets) {
        return bad("ticket ", header.ticket(), "; the job has ", tickets);
      }
      break;
    }
    case v1::ExchangeHeader::REPAIR:
      event.kind = EventKind::kLearningRateRepair;
      event.ticket = header.ticket();
      break;
    case v1::ExchangeHeader::INITIALISE:
      event.kind = EventKind::kInitialise;
      call.wants_parameters = false;
      break;
    case v1::ExchangeHeader::FETCH:
      if (!call.cell->synchronous) return bad("there are no rounds to fetch in this job");
      // It is checked before the wait, during which it would take up room.
      if (payload.bytes != 0) return bad(payload.bytes, " bytes of payload where none belong");
      event.kind = EventKind::kRead;
      event.argument = static_cast<uint64_t>(ReadMode::kRound);
      break;
    case v1::ExchangeHeader::READ:
      event.kind = EventKind::kRead;
      if (header.incarnation() == 0) {
        event.argument = static_cast<uint64_t>(header.lookahead() ? ReadMode::kReaderLookahead
                                                                  : ReadMode::kReaderMaster);
      } else if (!header.lookahead()) {
        event.argument = static_cast<uint64_t>(ReadMode::kReaderMaster);
      }
      break;
    default:
      return bad("kind ", static_cast<int>(header.kind()), " is unknown to this server");
  }
  return absl::OkStatus();
}

bool ParameterService::WaitsForDisk() const {
  return context_.durability != nullptr && context_.durability->slow();
}

bool ParameterService::AfterLoss() const {
  return context_.durability != nullptr && context_.durability->lost();
}

void ParameterService::Serve(std::unique_ptr<Call> call) {
  const absl::Status status = Answer(*call);
  if (!status.ok() && call->pushes() && !absl::IsResourceExhausted(status)) {
    context_.figures.NoteRejected();
  }
  Finish(std::move(call), status);
}

// Readers, whom nobody has registered, leave a quarter of the room to workers: else a few that never
// read their replies could bring training to a stand. One at a time is always served.
uint64_t ParameterService::KeptFree(const Call& call) const {
  if (call.header().incarnation() != 0) return 0;
  const uint64_t budget = context_.buffers.budget_bytes();
  const uint64_t own = call.reserved_bytes + call.cell->reply_bytes;
  return std::min(budget / 4, budget - std::min(own, budget));
}

absl::Status ParameterService::Answer(Call& call) {
  const v1::ExchangeHeader& header = call.header();
  Shard::Cell& cell = *call.cell;
  if (call.event.payload.bytes > 0 && Checksum(call.event.payload) != header.checksum()) {
    return absl::DataLossError(
        absl::StrCat("segment ", header.segment(), ", worker ", header.worker(),
                     ": the checksum of the payload is wrong: it was damaged on its way"));
  }
  if (absl::Status status = cell.checks->CheckPayload(call.event); !status.ok()) return status;
  std::optional<ReplyBuffers::Buffer> buffer;
  Reply parameters;
  if (call.wants_parameters) {
    buffer = context_.buffers.Take(cell.reply_bytes, KeptFree(call));
    if (!buffer.has_value()) {
      return absl::ResourceExhaustedError(
          "no room for a reply within servers.inflight_bytes: try again after a pause");
    }
    parameters.data = buffer->data;
  }
  absl::StatusOr<Shard::Performed> performed =
      context_.shard.Perform(cell, call.event, &parameters);
  if (!performed.ok()) {
    if (buffer.has_value()) context_.buffers.Return(*buffer);
    return performed.status();
  }
  if (performed->round_closed) {
    context_.figures.metrics().round_duration_seconds->Observe(performed->round_seconds);
  }
  for (RoundWaiter* waiter : performed->released) Resume(waiter);
  // Nobody may build upon what the journal has not taken.
  if (absl::Status recorded = context_.shard.recorded(); !recorded.ok()) {
    if (buffer.has_value()) context_.buffers.Return(*buffer);
    return recorded;
  }
  WriteReply(call, *performed, parameters, buffer.has_value() ? &*buffer : nullptr);
  return absl::OkStatus();
}

void ParameterService::WriteReply(Call& call, const Shard::Performed& performed,
                                          const Reply& parameters,
                                          const ReplyBuffers::Buffer* buffer) {
  const Shard::Cell& cell = *call.cell;
  const Outcome& outcome = performed.outcome;
  v1::ReplyHeader header;
  header.set_result(ToProto(outcome.result));
  header.set_segment(call.event.segment);
  header.set_version(outcome.version);
  header.set_clock(outcome.clock);
  header.set_codec(static_cast<uint32_t>(parameters.codec));
  header.set_delta(parameters.delta);
  header.set_delta_base(parameters.delta_base);
  header.set_lag(outcome.lag);
  header.set_learning_rate(outcome.eta);
  header.set_gap_squares(static_cast<float>(outcome.gap_squares));
  header.set_surprise_squares(static_cast<float>(outcome.surprise_squares));
  header.set_sampled_elements(static_cast<uint32_t>(outcome.sampled_elements));
  header.set_members(outcome.members);
  if (cell.synchronous) {
    header.set_round(outcome.round);
    header.set_frozen(outcome.phase == Phase::kFrozen);
    header.set_fold(outcome.fold);
    header.set_parts(parameters.parts);
    if (outcome.measure.has_value()) {
      v1::RoundMeasure& measure = *header.mutable_measure();
      measure.set_round(outcome.measure->round);
      measure.set_variance_sum(outcome.measure->variance_sum);
      measure.set_error_squares(outcome.measure->error_squares);
      measure.set_momentum_squares(outcome.measure->momentum_squares);
    }
  }
  header.set_server_incarnation(context_.incarnation);
  for (const uint32_t worker : performed.missing_workers) {
    if (header.missing_workers_size() == kNamedWorkers) break;
    header.add_missing_workers(worker);
  }

  std::vector<grpc::Slice> payload;
  if (parameters.bytes > 0) {
    header.set_checksum(Checksum(ByteSpan(parameters.data, parameters.bytes)));
    payload.push_back(context_.buffers.Share(*buffer, parameters.bytes));
  } else if (buffer != nullptr) {
    context_.buffers.Return(*buffer);
  }
  grpc::ByteBuffer message = MakeMessage(header, payload);
  if (call.pushes()) {
    Outcome counted = outcome;
    // A synchronous skip is noted like a push.
    if (performed.kind == EventKind::kSkip) counted.result = Result::kSkipped;
    if (performed.kind == EventKind::kResend) counted.result = Result::kDuplicate;
    context_.figures.NotePush(call.event.worker, counted, cell.trainable, call.message_bytes,
                              cell.plan->elements);
    ServerMetrics& metrics = context_.figures.metrics();
    metrics.apply_duration_seconds->Observe(performed.apply_seconds);
    if (cell.trainable && cell.plan->id == context_.shard.agreement()->first_segment) {
      metrics.parameter_version->Set(static_cast<double>(outcome.version));
      metrics.round->Set(static_cast<double>(outcome.round));
      metrics.compressed_phase->Set(outcome.phase == Phase::kFrozen ? 1 : 0);
      metrics.epoch->Set(static_cast<double>(outcome.clock) /
                         static_cast<double>(context_.shard.agreement()->batches_per_epoch));
    }
  }
  if (cell.trainable && parameters.bytes > 0) {
    context_.figures.NotePull(message.Length(), cell.plan->elements);
  }
  call.reply->Swap(&message);
}

void ParameterService::Finish(std::unique_ptr<Call> call, const absl::Status& status) {
  ServerMetrics& metrics = context_.figures.metrics();
  const double seconds = SecondsBetween(call->arrived, MonotonicNanoseconds());
  if (call->header().kind() == v1::ExchangeHeader::FETCH) {
    metrics.fetch_duration_seconds->Observe(seconds);
  } else {
    metrics.exchange_duration_seconds->Observe(seconds);
  }
  context_.buffers.Release(call->reserved_bytes);
  metrics.inflight_bytes->Set(static_cast<double>(context_.buffers.used_bytes()));
  if (absl::IsResourceExhausted(status)) {
    metrics.refusals->Increment();
    // One behind the other: who is refused later comes later.
    const uint32_t before = refused_in_a_row_.fetch_add(1, std::memory_order_relaxed);
    AddRetryAfter(*call->context, std::min(kLongestRetryAfter, kRetryAfterStep * (std::min(before, 1000u) + 1)));
  } else if (status.ok() && refused_in_a_row_.load(std::memory_order_relaxed) != 0) {
    refused_in_a_row_.store(0, std::memory_order_relaxed);
  }
  grpc::ServerUnaryReactor* reactor = call->reactor;
  call.reset();
  reactor->Finish(ToGrpc(status));
}

grpc::ServerUnaryReactor* ParameterService::Fetch(std::unique_ptr<Call> call) {
  Shard::Cell& cell = *call->cell;
  const v1::ExchangeHeader& header = call->header();
  const std::optional<Event> absent =
      header.absent() ? std::optional<Event>({.kind = EventKind::kAbsent,
                                              .segment = header.segment(),
                                              .worker = header.worker(),
                                              .incarnation = header.incarnation(),
                                              .argument = header.round() + 1})
                      : std::nullopt;
  auto* reactor = new FetchReactor(this, std::move(call));
  if (!absent.has_value()) {
    Await(reactor, cell);
    return reactor;
  }
  // It may be what a round has waited for.
  context_.threads.Run([this, reactor, &cell, event = *absent] {
    const absl::StatusOr<Shard::Performed> performed = context_.shard.Perform(cell, event, nullptr);
    if (!performed.ok()) {
      Finish(reactor->TakeCall(), performed.status());
      return;
    }
    for (RoundWaiter* waiter : performed->released) Resume(waiter);
    Await(reactor, cell);
  });
  return reactor;
}

void ParameterService::Await(FetchReactor* reactor, Shard::Cell& cell) {
  const absl::StatusOr<bool> parked = context_.shard.Park(cell, reactor);
  if (!parked.ok()) {
    Finish(reactor->TakeCall(), parked.status());
  } else if (!*parked) {
    Resume(reactor);
  } else if (context_.stopping && context_.shard.Unpark(cell, reactor)) {
    // The end may have answered all waiters before this one was there.
    Finish(reactor->TakeCall(), absl::UnavailableError("this server is shutting down"));
  }
}

// The round is closed: reads the parameters for a waiter.
void ParameterService::Resume(RoundWaiter* waiter) {
  std::unique_ptr<Call> call = static_cast<FetchReactor*>(waiter)->TakeCall();
  if (call->cell->reply_bytes <= kInlineBytes && !WaitsForDisk()) return Serve(std::move(call));
  context_.threads.Run([this, raw = call.release()] { Serve(std::unique_ptr<Call>(raw)); });
}

void ParameterService::AnswerWaiters(bool all, const std::string& lost) {
  const Shard::Agreement* agreed = context_.shard.agreement();
  if (agreed == nullptr || !context_.shard.synchronous()) return;
  const int64_t now = MonotonicNanoseconds();
  for (const auto& cell : agreed->cells) {
    for (RoundWaiter* waiter : context_.shard.TakeWaiters(*cell, now, all || !lost.empty())) {
      auto call = static_cast<FetchReactor*>(waiter)->TakeCall();
      absl::Status status;
      if (!lost.empty()) {
        status = absl::InternalError(
            absl::StrCat("round ", waiter->round, " cannot close any more: ", lost));
      } else if (all) {
        status = absl::UnavailableError("this server is shutting down");
      } else {
        v1::ReplyHeader header;
        header.set_result(v1::ReplyHeader::PENDING);
        header.set_segment(call->event.segment);
        header.set_server_incarnation(context_.incarnation);
        grpc::ByteBuffer message = MakeMessage(header, {});
        call->reply->Swap(&message);
      }
      Finish(std::move(call), status);
    }
  }
}

}  // namespace foreshard
