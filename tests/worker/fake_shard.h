// A server of one shard for tests of the worker's side: plain SGD per segment,
// every request noted, and faults on demand. With shard 0 it is the lead too.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/core/bytes.h"
#include "common/core/shard_plan.h"
#include "common/net/channel.h"
#include "common/net/retry_after.h"
#include "foreshard/v1/admin.grpc.pb.h"
#include "foreshard/v1/exchange.grpc.pb.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "kernels/codecs/codec.h"

namespace foreshard {

class FakeShard final : public v1::ParameterServer::Service,
                        public v1::Lead::Service,
                        public v1::Admin::Service {
 public:
  struct Options {
    uint32_t shard = 0;
    float eta = 0.1f;
    bool synchronous = false;  // answers a push with PENDING, a FETCH after `pending_fetches` of them
    int pending_fetches = 1;
    int pending_repairs = 0;  // REPAIRs of a segment that are answered with PENDING
    uint64_t tickets = 0;
    uint32_t epochs = 1;
    bool hold_tickets = false;  // as after HoldTicketsBack(true)
    bool rounds = false;        // a ticket's round is its number
    CodecSettings codec_settings;
    uint64_t seed = 0;
    absl::Duration retry_after;  // said with each RESOURCE_EXHAUSTED
  };
  struct State {
    std::vector<float> values;
    bool initialised = false;
    uint64_t version = 0, clock = 0, sequence = 0;
    uint64_t applied = 0, skipped = 0, duplicates = 0;
    int fetches = 0, repairs = 0;
    // What the worker holds after the last reply, and that reply's version.
    std::vector<float> held;
    uint64_t held_version = 0;
    uint64_t differences = 0;  // replies that carried them
  };

  FakeShard(const ShardPlan& plan, const Options& options) : plan_(plan), options_(options) {
    for (const uint32_t id : plan_.SegmentsOfShard(options.shard)) {
      states_[id].values.resize(plan_.segments()[id].elements);
    }
    grpc::ServerBuilder builder;
    ConfigureServer(builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<v1::ParameterServer::Service*>(this));
    builder.RegisterService(static_cast<v1::Lead::Service*>(this));
    builder.RegisterService(static_cast<v1::Admin::Service*>(this));
    server_ = builder.BuildAndStart();
  }
  ~FakeShard() override {
    Hold({});
    HoldHellos(false);
    Stop();
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  void Stop() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_ = nullptr;
  }

  // Asked before a request is handled (apply == false) and after (true); an error
  // is what the caller gets instead of the reply. Under the lock.
  using Fault = std::function<grpc::Status(const v1::ExchangeHeader&, bool applied)>;
  void SetFault(Fault fault) {
    absl::MutexLock lock(&mutex_);
    fault_ = std::move(fault);
  }
  // May change a reply that is ready to go.
  void SetReplyFault(std::function<void(v1::ExchangeReply*)> fault) {
    absl::MutexLock lock(&mutex_);
    reply_fault_ = std::move(fault);
  }
  // Replies for these segments wait until they are no longer in the set.
  void Hold(std::set<uint32_t> segments) {
    absl::MutexLock lock(&mutex_);
    held_ = std::move(segments);
  }
  // While true the lead deals nothing and says that the worker is to wait.
  void HoldTicketsBack(bool hold) {
    absl::MutexLock lock(&mutex_);
    hold_tickets_ = hold;
  }
  // Tickets that are dealt and not reported as completed.
  uint64_t tickets_out() const {
    absl::MutexLock lock(&mutex_);
    return next_ticket_ - completed_.size();
  }
  // The times that a worker was told to wait.
  int waits() const {
    absl::MutexLock lock(&mutex_);
    return waits_;
  }
  // Another start of the server, which has lost what it knew.
  void set_incarnation(uint64_t incarnation) {
    absl::MutexLock lock(&mutex_);
    incarnation_ = incarnation;
    state_id_ = run_id_ = incarnation;
  }
  // One that goes on from a checkpoint, without what came after it.
  std::map<uint32_t, State> Checkpoint() const {
    absl::MutexLock lock(&mutex_);
    return states_;
  }
  void GoOnFrom(const std::map<uint32_t, State>& checkpoint, uint64_t incarnation) {
    absl::MutexLock lock(&mutex_);
    states_ = checkpoint;
    incarnation_ = state_id_ = incarnation;
    forgot_ = true;
  }
  // One that goes on from where the last was.
  void Restart(uint64_t incarnation) {
    absl::MutexLock lock(&mutex_);
    incarnation_ = incarnation;
  }
  // While true, a Hello waits for its answer.
  void HoldHellos(bool hold) { hold_hellos_ = hold; }
  // May be asked by a fault.
  int hellos() const { return hellos_; }
  // As it says in Hello from now on.
  void set_run(uint64_t common_run_id, uint64_t open_round) {
    absl::MutexLock lock(&mutex_);
    common_run_id_ = common_run_id;
    open_round_ = open_round;
  }
  // Of all Hellos.
  std::vector<uint64_t> told_rounds() const {
    absl::MutexLock lock(&mutex_);
    return told_rounds_;
  }
  void set_epochs_done(uint32_t epochs, bool finished) {
    absl::MutexLock lock(&mutex_);
    epochs_done_ = epochs;
    finished_ = finished;
  }

  State state(uint32_t segment) const {
    absl::MutexLock lock(&mutex_);
    return states_.at(segment);
  }
  std::vector<v1::ExchangeRequest> requests() const {
    absl::MutexLock lock(&mutex_);
    return requests_;
  }
  int most_at_once() const {
    absl::MutexLock lock(&mutex_);
    return most_at_once_;
  }
  std::vector<uint64_t> completed() const {
    absl::MutexLock lock(&mutex_);
    return completed_;
  }
  std::vector<v1::Evaluation> evaluations() const {
    absl::MutexLock lock(&mutex_);
    return evaluations_;
  }
  std::vector<std::string> leaves() const {
    absl::MutexLock lock(&mutex_);
    return leaves_;
  }
  std::vector<v1::RoundFigures> round_figures() {
    absl::MutexLock lock(&mutex_);
    return round_figures_;
  }
  v1::WorkerFigures figures() const {
    absl::MutexLock lock(&mutex_);
    return figures_;
  }
  void set_repair_ticket(uint64_t ticket) {
    absl::MutexLock lock(&mutex_);
    repair_ticket_ = ticket;
  }
  int ticket_fetches() const {
    absl::MutexLock lock(&mutex_);
    return ticket_fetches_;
  }
  int most_tickets_out() const {
    absl::MutexLock lock(&mutex_);
    return most_out_;
  }
  int beats() const {
    absl::MutexLock lock(&mutex_);
    return beats_;
  }
  int last_beats() const {  // that take leave
    absl::MutexLock lock(&mutex_);
    return last_beats_;
  }
  // The slot is another's from now on.
  void Fence() {
    SetFault([](const v1::ExchangeHeader&, bool) {
      return grpc::Status(grpc::StatusCode::ABORTED, "a newer incarnation holds the slot");
    });
  }

  // ParameterServer.
  grpc::Status Hello(grpc::ServerContext* context, const v1::HelloRequest* request,
                     v1::HelloReply* reply) override {
    while (hold_hellos_ && !context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    absl::MutexLock lock(&mutex_);
    ++hellos_;
    reply->set_shard(options_.shard);
    reply->set_server_incarnation(incarnation_);
    reply->set_state_id(state_id_);
    reply->set_run_id(run_id_);
    reply->set_common_run_id(common_run_id_);
    reply->set_open_round(open_round_);
    told_rounds_.push_back(request->open_round());
    for (const auto& [id, state] : states_) {
      if (!state.initialised) reply->add_missing_segments(id);
    }
    return grpc::Status::OK;
  }

  grpc::Status Exchange(grpc::ServerContext* context, const v1::ExchangeRequest* request,
                        v1::ExchangeReply* reply) override {
    absl::MutexLock lock(&mutex_);
    requests_.push_back(*request);
    most_at_once_ = std::max(most_at_once_, ++at_once_);
    const grpc::Status status = Handle(*request, reply);
    if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
      AddRetryAfter(*context, options_.retry_after);
    }
    const uint32_t segment = request->header().segment();
    const auto released = [&]() { return held_.count(segment) == 0 || context->IsCancelled(); };
    while (!released()) {
      mutex_.AwaitWithTimeout(absl::Condition(&released), absl::Milliseconds(20));
    }
    --at_once_;
    return status;
  }

  grpc::Status Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest* request,
                         v1::HeartbeatReply* reply) override {
    absl::MutexLock lock(&mutex_);
    ++(request->leaving() ? last_beats_ : beats_);
    reply->set_server_incarnation(incarnation_);
    return fault_ ? fault_({}, false) : grpc::Status::OK;
  }

  // Lead.
  grpc::Status Register(grpc::ServerContext*, const v1::RegisterRequest*,
                        v1::RegisterReply* reply) override {
    absl::MutexLock lock(&mutex_);
    reply->set_worker(2);
    reply->set_incarnation(++registrations_);
    reply->set_lease_seconds(15);
    return grpc::Status::OK;
  }
  grpc::Status FetchTickets(grpc::ServerContext*, const v1::FetchTicketsRequest* request,
                            v1::FetchTicketsReply* reply) override {
    absl::MutexLock lock(&mutex_);
    if (fault_) {
      if (const grpc::Status status = fault_({}, false); !status.ok()) return status;
    }
    completed_.insert(completed_.end(), request->completed().begin(), request->completed().end());
    for (const v1::RoundFigures& figures : request->round_figures()) round_figures_.push_back(figures);
    ++ticket_fetches_;
    reply->set_repair_ticket(repair_ticket_);
    for (uint32_t k = 0; k < request->count() && next_ticket_ < options_.tickets; ++k) {
      if (hold_tickets_) break;
      if (options_.rounds) reply->add_rounds(next_ticket_);
      reply->add_tickets(next_ticket_++);
    }
    most_out_ = std::max(most_out_, static_cast<int>(next_ticket_ - completed_.size()));
    if (completed_.size() == options_.tickets) {
      reply->set_state(v1::FetchTicketsReply::FINISHED);
      reply->set_reason("all epochs are done");
    } else if (reply->tickets().empty()) {
      ++waits_;
      reply->set_state(v1::FetchTicketsReply::WAIT);
      reply->set_retry_seconds(0.01f);
      reply->set_reason("something");
    }
    return grpc::Status::OK;
  }
  grpc::Status Report(grpc::ServerContext*, const v1::ReportRequest* request,
                      v1::ReportReply* reply) override {
    absl::MutexLock lock(&mutex_);
    evaluations_.insert(evaluations_.end(), request->evaluations().begin(),
                        request->evaluations().end());
    if (request->has_figures()) figures_ = request->figures();
    if (!evaluations_.empty() && !script_.empty()) {
      epochs_done_ = script_.front();
      script_.pop_front();
      finished_ = script_.empty();
    }
    reply->set_completed_epochs(epochs_done_);
    reply->set_finished(finished_);
    return grpc::Status::OK;
  }
  grpc::Status Leave(grpc::ServerContext*, const v1::LeaveRequest* request,
                     v1::LeaveReply*) override {
    absl::MutexLock lock(&mutex_);
    leaves_.push_back(request->reason());
    completed_.insert(completed_.end(), request->completed().begin(), request->completed().end());
    return grpc::Status::OK;
  }
  // Completed epochs as each report that follows the first evaluation is told;
  // with the last one the job is finished.
  void SetReportScript(std::deque<uint32_t> script) {
    absl::MutexLock lock(&mutex_);
    script_ = std::move(script);
  }

  // Admin.
  grpc::Status GetStatus(grpc::ServerContext*, const v1::StatusRequest*,
                         v1::StatusReply* reply) override {
    absl::MutexLock lock(&mutex_);
    reply->set_server_incarnation(incarnation_);
    return grpc::Status::OK;
  }

 private:
  grpc::Status Handle(const v1::ExchangeRequest& request, v1::ExchangeReply* reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const v1::ExchangeHeader& header = request.header();
    if (fault_) {
      if (const grpc::Status status = fault_(header, false); !status.ok()) return status;
    }
    const auto at = states_.find(header.segment());
    if (at == states_.end()) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "not a segment of this shard"};
    }
    State& state = at->second;
    const ByteSpan bytes(reinterpret_cast<const uint8_t*>(request.payload().data()),
                         request.payload().size());
    if (!bytes.empty() && Checksum(bytes) != header.checksum()) {
      return {grpc::StatusCode::DATA_LOSS, "wrong checksum"};
    }
    v1::ReplyHeader& out = *reply->mutable_header();
    out.set_segment(header.segment());
    out.set_server_incarnation(incarnation_);
    out.set_result(v1::ReplyHeader::CURRENT);
    bool parameters = true;
    switch (header.kind()) {
      case v1::ExchangeHeader::INITIALISE:
        if (!state.initialised) std::memcpy(state.values.data(), bytes.data(), bytes.size());
        state.initialised = true;
        out.set_result(v1::ReplyHeader::INITIALISED);
        parameters = false;
        break;
      case v1::ExchangeHeader::PUSH:
      case v1::ExchangeHeader::SKIP: {
        if (header.sequence() <= state.sequence) {
          ++state.duplicates;
          out.set_result(v1::ReplyHeader::DUPLICATE);
          break;
        }
        if (header.held_version() > state.version) {
          return {grpc::StatusCode::INVALID_ARGUMENT, "claims a version that was never sent"};
        }
        if (header.sequence() != state.sequence + 1 && !forgot_) {
          return {grpc::StatusCode::INVALID_ARGUMENT, "a sequence number was left out"};
        }
        state.sequence = header.sequence();
        state.clock = std::max(state.clock, header.ticket());
        if (header.kind() == v1::ExchangeHeader::SKIP) {
          ++state.skipped;
          out.set_result(v1::ReplyHeader::SKIPPED);
          break;
        }
        out.set_lag(state.version - header.held_version());
        Apply(header, bytes, &state);
        out.set_result(v1::ReplyHeader::APPLIED);
        if (options_.synchronous) {
          out.set_result(v1::ReplyHeader::PENDING);
          state.fetches = 0;
          parameters = false;
        }
        break;
      }
      case v1::ExchangeHeader::REPAIR:
        if (state.repairs++ < options_.pending_repairs) {
          out.set_result(v1::ReplyHeader::PENDING);
          out.add_missing_workers(5);
          parameters = false;
        } else {
          state.clock = std::max(state.clock, header.ticket());
        }
        break;
      case v1::ExchangeHeader::FETCH:
        if (state.fetches++ < options_.pending_fetches) {
          out.set_result(v1::ReplyHeader::PENDING);
          parameters = false;
        }
        break;
      default:
        break;
    }
    out.set_version(state.version);
    out.set_clock(state.clock);
    out.set_gap_squares(4.0f);
    out.set_surprise_squares(1.0f);
    out.set_sampled_elements(1);
    if (parameters) Write(header, &state, reply);
    if (fault_) {
      if (const grpc::Status status = fault_(header, true); !status.ok()) return status;
    }
    if (reply_fault_) reply_fault_(reply);
    return grpc::Status::OK;
  }

  void Apply(const v1::ExchangeHeader& header, ByteSpan bytes, State* state) {
    const SegmentPlan& plan = plan_.segments()[header.segment()];
    const Codec& codec = *codecs_.Find(static_cast<CodecId>(header.codec()));
    PushPlace place = {.worker = header.worker(), .sequence = header.sequence()};
    if (options_.synchronous) place.round = header.round();
    std::vector<float> values(plan.elements);
    DecodeSegment(codec, plan.blocks, bytes.data(), PushKey(options_.seed, plan.id, place),
                  values.data());
    for (uint64_t k = 0; k < plan.elements; ++k) {
      float& theta = state->values[k];
      // Statistics: what was pushed, to look at.
      theta = plan.kind == TensorKind::kStatistic ? values[k] : theta - options_.eta * values[k];
    }
    ++state->version;
    ++state->applied;
  }

  // A difference where one is wanted and the worker is known to hold what it was sent.
  void Write(const v1::ExchangeHeader& header, State* state, v1::ExchangeReply* reply) {
    const SegmentPlan& plan = plan_.segments()[header.segment()];
    v1::ReplyHeader& out = *reply->mutable_header();
    const Codec* codec = codecs_.Find(static_cast<CodecId>(header.reply_codec()));
    if (out.result() == v1::ReplyHeader::DUPLICATE ||
        (!codec->replies_carry_values() && (out.result() != v1::ReplyHeader::APPLIED ||
                                            state->held_version != header.held_version()))) {
      codec = codecs_.Find(CodecId::kNone);
    }
    const bool delta = !codec->replies_carry_values();
    std::vector<float> values = state->values;
    if (delta) {
      for (size_t k = 0; k < values.size(); ++k) values[k] -= state->held[k];
      out.set_delta(true);
      out.set_delta_base(state->held_version);
      ++state->differences;
    }
    const CodecKey key = ReplyKey(options_.seed, plan.id, header.worker(), state->version);
    std::string& payload = *reply->mutable_payload();
    payload.resize(EncodedBytes(*codec, plan.blocks));
    auto* bytes = reinterpret_cast<uint8_t*>(payload.data());
    EncodeSegment(*codec, plan.blocks, values.data(), nullptr, key, bytes);
    out.set_codec(static_cast<uint32_t>(codec->id()));
    out.set_checksum(Checksum(ByteSpan(bytes, payload.size())));
    DecodeSegment(*codec, plan.blocks, bytes, key, values.data());
    for (size_t k = 0; delta && k < values.size(); ++k) values[k] = state->held[k] + values[k];
    state->held = std::move(values);
    state->held_version = state->version;
  }

  const ShardPlan plan_;
  const Options options_;
  const CodecSet codecs_{options_.codec_settings};
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;

  mutable absl::Mutex mutex_;
  std::map<uint32_t, State> states_ ABSL_GUARDED_BY(mutex_);
  uint64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 77;
  uint64_t state_id_ ABSL_GUARDED_BY(mutex_) = 77;
  uint64_t run_id_ ABSL_GUARDED_BY(mutex_) = 77;
  uint64_t common_run_id_ = 0, open_round_ = 0;
  std::vector<uint64_t> told_rounds_;
  bool forgot_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<int> hellos_{0};
  std::atomic<bool> hold_hellos_{false};
  std::vector<v1::ExchangeRequest> requests_ ABSL_GUARDED_BY(mutex_);
  std::set<uint32_t> held_ ABSL_GUARDED_BY(mutex_);
  Fault fault_ ABSL_GUARDED_BY(mutex_);
  std::function<void(v1::ExchangeReply*)> reply_fault_ ABSL_GUARDED_BY(mutex_);
  int at_once_ ABSL_GUARDED_BY(mutex_) = 0;
  int most_at_once_ ABSL_GUARDED_BY(mutex_) = 0;
  int beats_ ABSL_GUARDED_BY(mutex_) = 0;
  int last_beats_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t registrations_ ABSL_GUARDED_BY(mutex_) = 0;
  bool hold_tickets_ ABSL_GUARDED_BY(mutex_) = options_.hold_tickets;
  int waits_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<uint64_t> completed_ ABSL_GUARDED_BY(mutex_);
  int most_out_ ABSL_GUARDED_BY(mutex_) = 0;
  int ticket_fetches_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t repair_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<v1::Evaluation> evaluations_ ABSL_GUARDED_BY(mutex_);
  std::deque<uint32_t> script_ ABSL_GUARDED_BY(mutex_);
  uint32_t epochs_done_ ABSL_GUARDED_BY(mutex_) = 0;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::string> leaves_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::RoundFigures> round_figures_ ABSL_GUARDED_BY(mutex_);
  v1::WorkerFigures figures_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace foreshard
