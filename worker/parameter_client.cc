#include "worker/parameter_client.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/core/catalogue.h"
#include "common/core/steady_time.h"
#include "common/net/channel.h"
#include "common/net/exchange_message.h"
#include "common/net/job_parts.h"
#include "foreshard/v1/exchange.grpc.pb.h"
#include "glog/logging.h"
#include "kernels/codecs/codec.h"
#include "worker/exchange_calls.h"
#include "worker/patience.h"
#include "worker/segment_exchange.h"
#include "worker/statistics_average.h"

namespace foreshard {
namespace {

// Below this a message is made and sent by the computing thread itself: waking
// another would cost more.
constexpr uint64_t kInlineBytes = 64 << 10;
constexpr absl::Duration kAskAgain = absl::Milliseconds(200);
constexpr std::chrono::seconds kViewDeadline{3};
// Between two questions whether all workers' momentum is there, and until it is said
// that it is not.
constexpr absl::Duration kFirstRepairPause = absl::Milliseconds(5);
constexpr absl::Duration kLongestRepairPause = absl::Milliseconds(100);
constexpr absl::Duration kTellAfter = absl::Seconds(1);

absl::Status CheckOptions(const ParameterClientOptions& options) {
  if (options.servers.size() != options.plan.shards()) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.servers.size(), " server addresses for a job with servers.shards: ",
        options.plan.shards(), "; give one address for each shard, in their order"));
  }
  const CodecSet codecs(options.codec_settings);
  for (const std::string& name : {options.push_codec, options.reply_codec}) {
    if (codecs.Find(name) == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("there is no codec '", name, "'"));
    }
  }
  if (options.synchronous && !codecs.Find(options.reply_codec)->replies_carry_values()) {
    return absl::InvalidArgumentError(
        absl::StrCat("codec '", options.reply_codec,
                     "' carries differences to what one worker holds, which rounds do not have"));
  }
  if (options.window == 0 || options.statistics_interval_steps == 0) {
    return absl::InvalidArgumentError(
        "the parameter client's window and statistics interval must be at least 1");
  }
  return absl::OkStatus();
}

class ServersClient : public ParameterClient {
 public:
  explicit ServersClient(const ParameterClientOptions& options)
      : options_(options),
        hello_(options.hello),
        statistics_(options.schema.statistic_elements(), options.statistics_interval_steps) {
    for (size_t shard = 0; shard < options_.servers.size(); ++shard) {
      channels_.push_back(MakeChannel(options_.servers[shard], options_.credentials));
      patience_.emplace_back(ServerName(shard, options_.servers[shard]), Limit(),
                             options_.credentials.Explainer(options_.servers[shard]));
    }
    incarnations_.resize(channels_.size());
    state_ids_.resize(channels_.size());
    run_ids_.resize(channels_.size());
    open_rounds_.resize(channels_.size());
    protocols_.resize(channels_.size());
    missing_.resize(channels_.size());
    if (RepairsSteps(options_)) steps_ = options_.schedule.Steps();
  }

  ~ServersClient() override {
    closing_ = true;
    calls_.reset();
    // Closes the connections, and with them what still waits to be sent from the
    // caller's memory, should a server have stopped reading.
    channels_.clear();
    exchange_.reset();
  }

  absl::Status SayHello() {
    for (uint32_t shard = 0; shard < channels_.size(); ++shard) {
      if (const absl::Status said = Hello(shard); !said.ok()) return said;
    }
    // Those that were asked first have not been told of the later ones' rounds.
    for (uint32_t shard = 0; shard < channels_.size(); ++shard) {
      if (open_rounds_[shard] >= hello_.open_round()) continue;
      if (const absl::Status said = Hello(shard); !said.ok()) return said;
    }
    exchange_ = std::make_unique<SegmentExchange>(
        options_, incarnations_, [this](uint32_t shard) { return WhoAnswers(shard); });
    for (uint32_t shard = 0; shard < channels_.size(); ++shard) {
      exchange_->set_protocol(shard, protocols_[shard]);
    }
    calls_ = std::make_unique<ExchangeCalls>(
        ExchangeCalls::Options{.channels = channels_,
                               .addresses = options_.servers,
                               .window = options_.window,
                               .patience = Limit(),
                               .stop = options_.stop},
        exchange_.get());
    return absl::OkStatus();
  }

  absl::Status Initialise(absl::Span<const float> values) override {
    SegmentExchange::Operation operation = {.kind = v1::ExchangeHeader::INITIALISE,
                                            .values = values.data()};
    for (const auto& missing : missing_) {
      operation.segments.insert(operation.segments.end(), missing.begin(), missing.end());
    }
    return RunToEnd(std::move(operation));
  }

  absl::Status AwaitInitialised() override {
    const SteadyTime start = SteadyTime::Now();
    bool told = false;
    for (uint32_t shard = 0; shard < channels_.size();) {
      if (missing_[shard].empty()) {
        ++shard;
        continue;
      }
      if (Stopped()) {
        return absl::CancelledError("interrupted while waiting for first values");
      }
      const std::string what =
          absl::StrCat(patience_[shard].server(), " has no values yet for ",
                       missing_[shard].size(), " segments: no worker has brought them");
      if (SteadyTime::Now() - start > Limit()) {
        return absl::UnavailableError(
            absl::StrCat(what, " within ", options_.connect_seconds,
                         " s (timeouts.connect_seconds). Are workers running?"));
      }
      if (!told) LOG(INFO) << what << "; waiting";
      told = true;
      absl::SleepFor(kAskAgain);
      if (const absl::Status said = Hello(shard); !said.ok()) return said;
    }
    return absl::OkStatus();
  }

  void NoteStatistics(const float* statistics) override { statistics_.Add(statistics); }

  absl::Status Pull(Parameters which) override {
    SegmentExchange::Operation operation = {.kind = v1::ExchangeHeader::READ,
                                            .lookahead = which == Parameters::kAsSent};
    operation.segments.resize(options_.plan.segments().size());
    std::iota(operation.segments.begin(), operation.segments.end(), 0);
    return RunToEnd(std::move(operation));
  }

  absl::Status Prepare(const StepGradient& coming, std::optional<double> clip_norm) override {
    if (const absl::Status done = Finish(); !done.ok()) return done;
    return exchange_->Prepare(coming, clip_norm);
  }

  absl::Status Push(const StepGradient& step) override {
    if (const absl::Status done = Finish(); !done.ok()) return done;
    if (step.finite) statistics_.Add(step.statistics);
    const bool with_statistics = step.finite && statistics_.Take();
    SegmentExchange::Operation operation = {
        .kind = step.finite ? v1::ExchangeHeader::PUSH : v1::ExchangeHeader::SKIP,
        .ticket = step.ticket,
        .earlier = step.earlier,
        .round = step.round,
        .fold = step.fold,
        .gradient = step.gradient,
        .statistics = statistics_.values()};
    for (const SegmentPlan& segment : options_.plan.segments()) {
      if (segment.kind == TensorKind::kTrainable || with_statistics) {
        operation.segments.push_back(segment.id);
      }
    }
    Run(std::move(operation));
    return absl::OkStatus();
  }

  absl::StatusOr<Entered> EnterRound(uint64_t round) override {
    if (const absl::Status finished = Finish(); !finished.ok()) return finished;
    std::vector<uint32_t> behind = exchange_->Behind(round);
    const bool renewed = !behind.empty();
    if (renewed) {
      const absl::Status fetched = RunToEnd({.kind = v1::ExchangeHeader::FETCH,
                                             .segments = std::move(behind),
                                             .round = round - 1,
                                             .absent = true});
      if (!fetched.ok()) return fetched;
    }
    return Entered{.round = std::max(round, exchange_->open_round()), .renewed = renewed};
  }

  bool late() const override { return exchange_->late(); }

  absl::Status ChangeView(const v1::View& settled) override {
    v1::View view = settled;
    view.set_worker(options_.hello.worker());
    view.set_incarnation(options_.hello.incarnation());
    for (uint32_t shard = 0; shard < channels_.size(); ++shard) {
      const auto stub = v1::ParameterServer::NewStub(channels_[shard]);
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + kViewDeadline);
      v1::ViewReply reply;
      const grpc::Status status = stub->ChangeView(&context, view, &reply);
      if (!status.ok()) {
        const absl::Status refused = FromGrpc(status);
        return absl::Status(refused.code(), absl::StrCat("server ", shard, " at ", options_.servers[shard],
                                                         " has not taken it: ", refused.message()));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Repair(uint64_t ticket) override {
    const uint64_t step = NewestStep(steps_, ticket);
    // A server that has lost something may be before the step again.
    if (lost_.exchange(false)) repaired_ = 0;
    if (step <= repaired_) return absl::OkStatus();
    if (const absl::Status done = Finish(); !done.ok()) return done;
    const SteadyTime start = SteadyTime::Now();
    bool told = false;
    absl::Duration pause = kFirstRepairPause;
    std::vector<uint32_t> segments = exchange_->Unrepaired(step);
    while (!segments.empty()) {
      if (const absl::Status asked = RunToEnd({.kind = v1::ExchangeHeader::REPAIR,
                                               .segments = segments,
                                               .ticket = step});
          !asked.ok()) {
        return asked;
      }
      segments = exchange_->pending_repairs();
      if (segments.empty()) break;
      const absl::Duration waited = SteadyTime::Now() - start;
      const std::string what = absl::StrCat(
          "the momentum of workers ", absl::StrJoin(exchange_->missing_workers(), ", "),
          ", for the learning rate's step at ticket ", step);
      if (Stopped()) return absl::CancelledError("interrupted while waiting for " + what);
      if (waited > Limit()) {
        return absl::DeadlineExceededError(
            absl::StrCat("waited ", options_.connect_seconds, " s (timeouts.connect_seconds) for ",
                         what, ": is a batch of theirs longer than that?"));
      }
      if (!told && waited > kTellAfter) {
        told = true;
        LOG(INFO) << "waiting for " << what;
      }
      absl::SleepFor(pause);
      repair_wait_seconds_ += absl::ToDoubleSeconds(pause);
      pause = std::min(2 * pause, kLongestRepairPause);
    }
    repaired_ = step;
    VLOG(1) << "past the learning rate's step at ticket " << step << " after "
            << absl::ToDoubleSeconds(SteadyTime::Now() - start) << " s";
    return absl::OkStatus();
  }

  absl::Status WaitFor(uint64_t begin, uint64_t elements) override {
    return exchange_->WaitFor(begin, elements);
  }
  bool on_device() const override { return options_.step_receiver != nullptr; }
  absl::Status Finish() override { return exchange_->WaitDone(); }
  float* parameters() override { return exchange_->parameters(); }
  uint64_t clock(uint32_t segment) const override { return exchange_->clock(segment); }
  double TakeWaitSeconds() override {
    return exchange_->TakeWaitSeconds() + std::exchange(repair_wait_seconds_, 0);
  }
  double ErrorFeedbackRatio(const float* gradient) const override {
    return exchange_->ErrorFeedbackRatio(gradient);
  }
  bool keeps_error() const override { return exchange_->keeps_error(); }
  absl::Span<const float> error() const override { return exchange_->error(); }
  Traffic traffic() const override { return exchange_->traffic(); }
  std::shared_ptr<grpc::Channel> channel(uint32_t shard) const override {
    return channels_[shard];
  }

 private:
  absl::Duration Limit() const { return absl::Seconds(options_.connect_seconds); }

  bool Stopped() const { return options_.stop != nullptr && options_.stop->load(); }

  absl::Status Hello(uint32_t shard) {
    const absl::StatusOr<v1::HelloReply> reply = SayHelloTo(shard, &patience_[shard]);
    if (!reply.ok()) return reply.status();
    incarnations_[shard] = reply->server_incarnation();
    state_ids_[shard] = reply->state_id();
    run_ids_[shard] = reply->run_id();
    if (const absl::Status one = CheckOneRun(shard, reply->common_run_id()); !one.ok()) return one;
    open_rounds_[shard] = reply->open_round();
    // Later another thread may be saying it.
    if (exchange_ == nullptr && !hello_.reader() && reply->open_round() > hello_.open_round()) {
      hello_.set_open_round(reply->open_round());
      hello_.set_open_round_shard(shard);
    }
    protocols_[shard] = reply->protocol();
    missing_[shard].assign(reply->missing_segments().begin(), reply->missing_segments().end());
    return absl::OkStatus();
  }

  // Workers bring the run's id, by which servers refuse them; readers bring none.
  absl::Status CheckOneRun(uint32_t shard, uint64_t run) {
    if (!hello_.reader() || run == 0 || run == common_run_) return absl::OkStatus();
    if (common_run_ == 0) {
      common_run_ = run;
      common_run_shard_ = shard;
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(absl::StrCat(
        patience_[shard].server(), " has the state of run ", absl::Hex(run, absl::kZeroPad16), " of the job, and ",
        patience_[common_run_shard_].server(), " that of run ", absl::Hex(common_run_, absl::kZeroPad16),
        ": their parameters do not belong together. Give every server the directory that it had in one run"));
  }

  absl::StatusOr<v1::HelloReply> SayHelloTo(uint32_t shard, Patience* patience) const {
    const auto stub = v1::ParameterServer::NewStub(channels_[shard]);
    v1::HelloReply reply;
    const absl::Status status = CallPatiently(
        *patience, Limit(), [this] { return Stopped() || closing_; },
        [&](grpc::ClientContext& context) { return stub->Hello(&context, hello_, &reply); });
    if (!status.ok()) return status;
    if (reply.shard() != shard) {
      return absl::FailedPreconditionError(
          absl::StrCat(patience->server(), " serves shard ", reply.shard(), ", not ", shard,
                       ": give the servers' addresses in the order of their shards"));
    }
    const auto agreed = AgreedProtocol(options_.hello.contract(), reply.protocol(), patience->server());
    if (!agreed.ok()) return agreed.status();
    reply.set_protocol(*agreed);
    for (const uint32_t id : reply.missing_segments()) {
      if (id >= options_.plan.segments().size() || options_.plan.segments()[id].shard != shard) {
        return absl::InternalError(
            absl::StrCat(patience->server(), " asks for segment ", id, ", which is not its"));
      }
    }
    return reply;
  }

  // On the thread that asks, after a refusal: says hello again, should the server be another one now.
  absl::StatusOr<ServerNow> WhoAnswers(uint32_t shard) {
    Patience patience(ServerName(shard, options_.servers[shard]), Limit());
    const absl::StatusOr<v1::HelloReply> reply = SayHelloTo(shard, &patience);
    if (!reply.ok()) return reply.status();
    const uint64_t now = reply->server_incarnation();
    const uint64_t before = std::exchange(incarnations_[shard], now);
    if (now == before) return ServerNow{now};
    exchange_->set_protocol(shard, reply->protocol());  // it may be of another release
    if (reply->state_id() != state_ids_[shard]) {
      const std::string lost = absl::StrCat(patience.server(), " was started again (incarnation ", before,
                                            " before, now ", now, ") and has lost ");
      const bool from_checkpoint = reply->run_id() != 0 && reply->run_id() == run_ids_[shard] &&
                                   reply->missing_segments().empty();
      if (!from_checkpoint) {
        return absl::UnavailableError(absl::StrCat(lost, "what it knew: was it started without its state "
                                                         "directory, or with an empty one? With that it can be started once "
                                                         "more; without it, start the job anew"));
      }
      if (options_.synchronous && !options_.hello.reader()) {
        return absl::UnavailableError(absl::StrCat(
            lost, "what came after its last checkpoint, or a part of it; a member of rounds that has seen more cannot go on with it: "
            "start the workers again"));
      }
      LOG(WARNING) << lost << "what came after its last checkpoint, or a part of it (its log says why): going on with its "
                      "parameters";
      state_ids_[shard] = reply->state_id();
      lost_ = true;
      return ServerNow{.incarnation = now, .lost = true};
    }
    LOG(WARNING) << patience.server() << " was started again and has its state: going on (incarnation "
                 << before << " before, now " << now << ")";
    return ServerNow{now};
  }

  void Run(SegmentExchange::Operation operation) {
    if (operation.segments.empty()) return;
    exchange_->Begin(std::move(operation));
    calls_->Start(exchange_->PayloadBytes() <= kInlineBytes);
  }

  absl::Status RunToEnd(SegmentExchange::Operation operation) {
    if (const absl::Status done = Finish(); !done.ok()) return done;
    Run(std::move(operation));
    return Finish();
  }

  const ParameterClientOptions options_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<Patience> patience_;
  // As last seen; from the first hello on the thread's that asks.
  std::vector<uint64_t> incarnations_, state_ids_, run_ids_;
  v1::HelloRequest hello_;  // constant once all servers were told
  std::vector<uint64_t> open_rounds_;
  uint64_t common_run_ = 0;  // a reader's, as the server of common_run_shard_ said
  uint32_t common_run_shard_ = 0;
  std::atomic<bool> closing_{false};
  std::atomic<bool> lost_{false};  // a server has lost something, which Repair has not looked at yet
  std::vector<uint32_t> protocols_;  // agreed on with each server in the first hello
  std::vector<std::vector<uint32_t>> missing_;
  StatisticsAverage statistics_;
  std::vector<uint64_t> steps_;  // of the rate, for rules with a worker half
  uint64_t repaired_ = 0;        // the newest of them that is behind us
  double repair_wait_seconds_ = 0;
  std::unique_ptr<SegmentExchange> exchange_;
  std::unique_ptr<ExchangeCalls> calls_;
};

}  // namespace

PushEncoderOptions MakeEncoderOptions(const ParameterClientOptions& options) {
  const bool reader = options.hello.reader();
  return {.rule = reader ? "" : options.rule,
          .half = options.half,
          .codec = reader ? "none" : options.push_codec,
          .codec_settings = options.codec_settings,
          .seed = options.seed,
          .schedule = options.schedule,
          .trainable_elements = options.schema.trainable_elements(),
          .segments = options.plan.segments().size(),
          .squeeze = reader ? std::nullopt : options.squeeze};
}

kernels::StepReceiverOptions MakeReceiverOptions(const ParameterClientOptions& options,
                                                 const CodecSet& codecs,
                                                 kernels::StepEncoder* encoder) {
  // A round's result is in the codec of its contributions.
  const bool rounds = options.squeeze.has_value();
  kernels::StepReceiverOptions made = {
      .codec = codecs.Find(rounds ? options.push_codec : options.reply_codec),
      .encoder = rounds ? encoder : nullptr};
  for (const SegmentPlan& segment : options.plan.segments()) {
    if (segment.kind != TensorKind::kTrainable) continue;
    made.segments.push_back(
        {.begin = segment.begin, .elements = segment.elements, .blocks = segment.blocks});
  }
  return made;
}

bool RepairsSteps(const ParameterClientOptions& options) {
  const RuleTraits* rule = FindRule(options.rule);
  return rule != nullptr && rule->worker_half && !options.schedule.Steps().empty();
}

ParameterClient::~ParameterClient() = default;

absl::StatusOr<std::unique_ptr<ParameterClient>> ParameterClient::Connect(
    const ParameterClientOptions& options) {
  if (const absl::Status checked = CheckOptions(options); !checked.ok()) return checked;
  auto client = std::make_unique<ServersClient>(options);
  if (const absl::Status said = client->SayHello(); !said.ok()) return said;
  return client;
}

}  // namespace foreshard
