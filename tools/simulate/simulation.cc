#include "tools/simulate/simulation.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/core/bytes.h"
#include "common/core/catalogue.h"
#include "common/core/shard_plan.h"
#include "common/net/job_parts.h"
#include "kernels/codecs/codec.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/device.h"
#include "server/job_machines.h"
#include "tools/simulate/push_measures.h"
#include "tools/simulate/round_reply.h"
#include "tools/simulate/virtual_network.h"
#include "worker/elastic_replica.h"
#include "worker/evaluator.h"
#include "worker/gradient.h"
#include "worker/job_setup.h"
#include "worker/push_encoder.h"
#include "worker/reply_reader.h"
#include "worker/statistics_average.h"
#include "worker/training_loop.h"

namespace foreshard {
namespace {

// Gradients that are not finite, in sequence, after which no worker will have one again.
constexpr uint64_t kHopelessSkips = 20;
constexpr uint64_t kProgressEvery = 32;
// Slots of one start of a worker: nobody is restarted here.
constexpr uint64_t kIncarnation = 1;

struct VirtualWorker {
  VirtualWorker(const PushEncoderOptions& encoder, uint64_t elements, uint64_t statistics,
                uint32_t interval, size_t segments)
      : encoder(encoder),
        statistics(statistics, interval),
        parameters(elements),
        sequence(segments),
        held_version(segments),
        clock(segments) {}

  PushEncoder encoder;
  StatisticsAverage statistics;
  std::vector<float> parameters;  // of its last replies
  // Elastic averaging: its own parameters; the last replies are the center.
  std::optional<ElasticReplica> replica;
  // By segment.
  std::vector<uint64_t> sequence, held_version, clock;
  uint64_t step = 0;
  uint64_t ticket = 0;
  bool computing = false;  // or exchanging, so that it takes no batch
  bool joined = false;     // the segments know it
  // Momentum at workers: the steps of the rate to which its share was brought, and to
  // which everybody's was; and whether it holds its batch back until then.
  uint64_t brought = 0, repaired = 0;
  bool waits_for_repair = false;
  bool pulling = false;         // elastic: the replies that it waits for are the center's
  bool exchange_waits = false;  // elastic: for the push under way
  // Of the push under way.
  std::vector<uint64_t> pushed;  // its tickets
  size_t replies_left = 0;
};

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options) : options_(options), job_(options.job) {}

  absl::Status Prepare();
  absl::Status Run();
  SimulationResult TakeResult();

 private:
  enum class What : uint8_t { kComputed, kArrived, kReplied };
  struct Due {
    double time = 0;
    uint32_t worker = 0;
    uint64_t number = 0;  // order of making: what was sent first comes first
    What what = What::kComputed;
    uint32_t segment = 0;
    size_t message = 0;  // kArrived, kReplied: index in messages_
    bool operator>(const Due& other) const {
      return std::tie(time, worker, number) > std::tie(other.time, other.worker, other.number);
    }
  };
  // What travels, where there is a network.
  struct Message {
    Event event;
    std::vector<uint8_t> payload;
    Outcome outcome;
    CodecId codec = CodecId::kNone;
    uint32_t parts = 0;
  };

  bool IsTrainable(uint32_t segment) const {
    return plan_.segments()[segment].kind == TensorKind::kTrainable;
  }
  void Schedule(double time, uint32_t worker, What what, uint32_t segment = 0, size_t message = 0) {
    due_.push({time, worker, next_number_++, what, segment, message});
  }
  // Keeps what travels; its place.
  size_t Keep(Message message, ByteSpan payload);
  Message Take(size_t place);

  absl::Status Initialise();
  // Gives free workers batches, lowest slot first, as far as the dealer lets it.
  absl::Status DealToAll(double now);
  // Where batches beyond a step of the rate are dealt: workers that are at rest bring
  // their momentum, and go on once all have.
  absl::Status RepairMomentum(double now);
  absl::Status RepairSegments(uint32_t worker, uint64_t step, bool with_share);
  uint64_t StepDealt() const;
  absl::Status Begin(uint32_t worker, uint64_t ticket, bool fresh, double now);
  Event ReadEvent(uint32_t worker, uint32_t segment) const;
  absl::Status Read(uint32_t worker, uint32_t segment);
  absl::Status Compute(uint32_t worker, double now);
  uint64_t Round(uint64_t ticket) const;
  // Sends `gradient` (of trainable segments; what the rule pushes) for worker.pushed.
  absl::Status Push(uint32_t worker, uint64_t ticket, uint64_t round, bool finite,
                    float* gradient, double now);
  // Elastic averaging: the next local step, or the exchange that is due before it.
  absl::Status GoOn(uint32_t worker, double now);
  absl::Status Exchange(uint32_t worker, double now);
  absl::Status PushDifference(uint32_t worker, double now);
  absl::Status Send(uint32_t worker, Event event, ByteSpan payload, double now);
  absl::Status Arrive(Event event, double now);
  absl::Status CloseRound(uint32_t segment, double now);
  // Rules that squeeze: a segment's measured round. The last one's may change the phase.
  absl::Status NoteMeasure(const RoundMeasure& measure);
  absl::Status Answer(uint32_t worker, uint32_t segment, const Outcome& outcome,
                      const Reply& reply, double now);
  absl::Status TakeReply(uint32_t worker, uint32_t segment, const Outcome& outcome,
                         ByteSpan payload, CodecId codec, uint32_t parts);
  absl::Status Acknowledge(uint32_t worker, double now);
  absl::Status Evaluate(double now);
  std::vector<float> Master() const;
  absl::Status Diverged(double now);

  const SimulationOptions& options_;
  const v1::JobSpec& job_;
  absl::Time started_ = absl::Now();
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<GradientComputer> computer_;
  std::unique_ptr<Evaluator> evaluator_;
  ShardPlan plan_;
  std::vector<uint64_t> steps_;  // of the rate, where momentum is at workers
  std::vector<std::unique_ptr<Segment>> segments_;
  std::unique_ptr<Dealer> dealer_;
  std::optional<PhaseControl> phases_;
  uint32_t trainable_segments_ = 0;
  RoundTotals measured_;  // of the round that is being measured
  std::vector<VirtualWorker> workers_;
  std::optional<VirtualNetwork> network_;
  std::optional<PushMeasures> measures_;
  CodecSet codecs_;
  const Codec* reply_codec_ = nullptr;
  bool synchronous_ = false;
  uint64_t batches_per_epoch_ = 1;
  OpenGate gate_;

  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  uint64_t next_number_ = 0;
  std::vector<Message> messages_;
  std::vector<size_t> free_messages_;
  std::vector<uint8_t> payload_, reply_;
  ReplyReader reader_;

  SimulationResult result_;
  double now_ = 0;
  double loss_sum_ = 0;
  uint64_t loss_batches_ = 0;
  uint64_t skips_in_sequence_ = 0;
  uint32_t epochs_seen_ = 0;
  bool over_ = false;
};

absl::Status Simulation::Prepare() {
  const uint32_t workers = job_.training().workers();
  if (options_.clock.workers() < workers) {
    return absl::InvalidArgumentError(absl::StrCat("simulation: a clock of ",
                                                   options_.clock.workers(), " machines for ",
                                                   workers, " workers"));
  }
  auto device = kernels::MakeDevice("cpu");
  if (!device.ok()) return device.status();
  device_ = *std::move(device);
  auto model = MakeJobModel(job_, *options_.train, *device_);
  if (!model.ok()) return model.status();
  model_ = *std::move(model);
  const Schema& schema = model_->schema();
  const auto client = MakeClientOptions(job_, schema, options_.train->examples(), {});
  if (!client.ok()) return client.status();
  plan_ = client->plan;
  synchronous_ = IsSynchronous(job_);
  batches_per_epoch_ = BatchesPerEpoch(job_, options_.train->examples());
  for (const SegmentPlan& segment : plan_.segments()) {
    SegmentOptions segment_options = MakeSegmentOptions(job_, segment, batches_per_epoch_);
    if (options_.exact_gaps) segment_options.sample_stride = 1;
    auto made = Segment::Create(segment_options);
    if (!made.ok()) return made.status();
    segments_.push_back(*std::move(made));
    trainable_segments_ += segment.kind == TensorKind::kTrainable;
  }
  const DealerOptions dealer = MakeDealerOptions(job_, batches_per_epoch_);
  if (const absl::Status status = Dealer::Check(dealer); !status.ok()) return status;
  dealer_ = std::make_unique<Dealer>(dealer);
  if (const absl::Status status = CheckFreeze(job_, batches_per_epoch_); !status.ok()) return status;
  if (const auto phases = MakePhaseControlOptions(job_, batches_per_epoch_)) phases_.emplace(*phases);
  codecs_ = CodecSet(client->codec_settings);
  reply_codec_ = codecs_.Find(job_.compression().reply());
  if (RepairsSteps(*client)) steps_ = client->schedule.Steps();
  workers_.reserve(workers);
  for (uint32_t k = 0; k < workers; ++k) {
    workers_.emplace_back(MakeEncoderOptions(*client), schema.elements(), schema.statistic_elements(),
                          job_.training().statistics_interval_steps(), segments_.size());
    if (const auto elastic = MakeElasticOptions(job_, batches_per_epoch_); elastic.has_value()) {
      workers_.back().replica.emplace(*elastic, plan_, schema);
    }
  }
  network_.emplace(options_.network, workers, plan_.shards());
  measures_.emplace(plan_, workers);
  GradientOptions gradient = MakeGradientOptions(job_);
  computer_ = std::make_unique<GradientComputer>(gradient, model_.get(), options_.train);
  evaluator_ = std::make_unique<Evaluator>(
      EvaluatorOptions{.seed = job_.seed(),
                       .batch_size = LargestBatch(job_),
                       .recalibration_batches = job_.evaluation().recalibration_batches()},
      model_.get(), options_.train, options_.test);
  result_.worker_batches.resize(workers);
  return Initialise();
}

absl::Status Simulation::Initialise() {
  std::vector<float> values(model_->schema().elements());
  if (absl::Status first = WriteFirstValues(job_, *model_, values.data()); !first.ok()) return first;
  for (uint32_t s = 0; s < segments_.size(); ++s) {
    const SegmentPlan& plan = plan_.segments()[s];
    Event event = {.kind = EventKind::kInitialise, .segment = s};
    const ByteSpan bytes(reinterpret_cast<const uint8_t*>(values.data() + plan.begin),
                         plan.elements * sizeof(float));
    event.payload = {.pieces = {&bytes, 1}, .bytes = bytes.size()};
    if (const absl::Status status = segments_[s]->CheckPayload(event); !status.ok()) return status;
    segments_[s]->Apply(event, nullptr);
  }
  return absl::OkStatus();
}

absl::Status Simulation::Run() {
  for (uint32_t worker = 0; worker < workers_.size(); ++worker) {
    dealer_->Apply({DealerEvent::Kind::kJoin, worker});
  }
  absl::Status status = DealToAll(0);
  while (status.ok() && !over_ && !due_.empty()) {
    const Due due = due_.top();
    due_.pop();
    now_ = due.time;
    switch (due.what) {
      case What::kComputed:
        if (options_.stop != nullptr && options_.stop->load()) {
          return absl::CancelledError("interrupted");
        }
        status = Compute(due.worker, due.time);
        break;
      case What::kArrived: {
        Message message = Take(due.message);
        const ByteSpan bytes(message.payload.data(), message.payload.size());
        if (!message.payload.empty()) {
          message.event.payload = {.pieces = {&bytes, 1}, .bytes = bytes.size()};
        }
        status = Arrive(message.event, due.time);
        break;
      }
      case What::kReplied: {
        const Message message = Take(due.message);
        status = TakeReply(due.worker, due.segment, message.outcome,
                           ByteSpan(message.payload.data(), message.payload.size()), message.codec,
                           message.parts);
        if (status.ok() && --workers_[due.worker].replies_left == 0) {
          status = Acknowledge(due.worker, due.time);
        }
        break;
      }
    }
  }
  if (!status.ok()) return status;
  if (!over_ && !dealer_->finished()) {
    return absl::InternalError(absl::StrCat("simulation: nobody has anything to do after ",
                                            dealer_->completed_tickets(), " of ",
                                            dealer_->total_tickets(), " batches"));
  }
  result_.virtual_seconds = now_;
  return over_ ? absl::OkStatus() : Evaluate(now_);
}

absl::Status Simulation::DealToAll(double now) {
  for (uint32_t k = 0; k < workers_.size() && !dealer_->finished(); ++k) {
    if (workers_[k].computing) continue;
    const Deal deal = dealer_->Apply({DealerEvent::Kind::kFetch, k, 1});
    if (deal.tickets.empty()) continue;
    if (const absl::Status status = Begin(k, deal.tickets[0], true, now); !status.ok()) {
      return status;
    }
  }
  return steps_.empty() ? absl::OkStatus() : RepairMomentum(now);
}

uint64_t Simulation::StepDealt() const {
  const uint64_t dealt = dealer_->next_ticket();
  return dealt == 0 ? 0 : NewestStep(steps_, dealt - 1);
}

absl::Status Simulation::RepairMomentum(double now) {
  const uint64_t step = StepDealt();
  for (uint32_t k = 0; k < workers_.size(); ++k) {
    VirtualWorker& worker = workers_[k];
    const bool at_rest = !worker.computing || worker.waits_for_repair;
    if (!worker.joined || worker.brought >= step || !at_rest) continue;
    if (const absl::Status status = RepairSegments(k, step, true); !status.ok()) return status;
    worker.brought = step;
  }
  for (const std::unique_ptr<Segment>& segment : segments_) {
    if (!segment->MissingShares(step).empty()) return absl::OkStatus();
  }
  for (uint32_t k = 0; k < workers_.size(); ++k) {
    VirtualWorker& worker = workers_[k];
    if (worker.brought < step || worker.repaired >= step) continue;
    if (const absl::Status status = RepairSegments(k, step, false); !status.ok()) return status;
    worker.repaired = step;
    if (std::exchange(worker.waits_for_repair, false)) {
      Schedule(now + options_.clock.BatchSeconds(k, worker.step++), k, What::kComputed);
    }
  }
  return absl::OkStatus();
}

// Brings the worker's share to all segments; without it, takes the repaired parameters.
absl::Status Simulation::RepairSegments(uint32_t k, uint64_t step, bool with_share) {
  VirtualWorker& worker = workers_[k];
  for (uint32_t s = 0; s < segments_.size(); ++s) {
    if (!IsTrainable(s)) continue;
    const SegmentPlan& plan = plan_.segments()[s];
    Event event = ReadEvent(k, s);
    event.kind = EventKind::kLearningRateRepair;
    event.ticket = step;
    event.argument = 0;
    const ByteSpan share(
        reinterpret_cast<const uint8_t*>(worker.encoder.momentum().data() + plan.begin),
        plan.elements * sizeof(float));
    if (with_share) event.payload = {.pieces = {&share, 1}, .bytes = share.size()};
    if (const absl::Status status = segments_[s]->Admit(&event); !status.ok()) return status;
    reply_.resize(share.size());
    Reply reply = {.data = reply_.data()};
    const Outcome outcome = segments_[s]->Apply(event, &reply);
    if (with_share) {
      worker.encoder.NoteRepaired(plan, step);
      continue;
    }
    const absl::Status taken =
        TakeReply(k, s, outcome, ByteSpan(reply.data, reply.bytes), reply.codec, reply.parts);
    if (!taken.ok()) return taken;
  }
  return absl::OkStatus();
}

// `fresh`: the worker has waited for its batch (or has none behind it), so that it
// reads the parameters anew.
absl::Status Simulation::Begin(uint32_t k, uint64_t ticket, bool fresh, double now) {
  VirtualWorker& worker = workers_[k];
  const bool first = !worker.joined;
  if (first || (fresh && !synchronous_ && !worker.replica.has_value())) {
    for (uint32_t s = 0; s < segments_.size(); ++s) {
      if (const absl::Status status = Read(k, s); !status.ok()) return status;
      if (worker.replica.has_value()) worker.replica->set_clock(s, worker.clock[s]);
    }
    if (worker.replica.has_value()) worker.replica->Restart(worker.parameters.data());
  }
  worker.computing = worker.joined = true;
  worker.ticket = ticket;
  worker.waits_for_repair = StepDealt() > worker.repaired;
  if (worker.waits_for_repair) return absl::OkStatus();
  Schedule(now + options_.clock.BatchSeconds(k, worker.step++), k, What::kComputed);
  return absl::OkStatus();
}

Event Simulation::ReadEvent(uint32_t k, uint32_t s) const {
  return {.kind = EventKind::kRead,
          .reply_codec =
              static_cast<uint8_t>(IsTrainable(s) ? reply_codec_->id() : CodecId::kNone),
          .segment = s,
          .worker = k,
          .incarnation = kIncarnation,
          .held_version = workers_[k].held_version[s],
          .argument = static_cast<uint64_t>(ReadMode::kSlot)};
}

absl::Status Simulation::Read(uint32_t k, uint32_t s) {
  Event event = ReadEvent(k, s);
  // Statistics segments have no member bound; rounds have slots of members only.
  if (const absl::Status status = segments_[s]->Admit(&event); !status.ok()) return status;
  reply_.resize(segments_[s]->max_reply_bytes());
  Reply reply = {.data = reply_.data()};
  const Outcome outcome = segments_[s]->Apply(event, &reply);
  return TakeReply(k, s, outcome, ByteSpan(reply.data, reply.bytes), reply.codec, reply.parts);
}

absl::Status Simulation::Compute(uint32_t k, double now) {
  VirtualWorker& worker = workers_[k];
  const absl::Time start = absl::Now();
  const float* at = worker.replica.has_value() ? worker.replica->GradientPoint(worker.ticket)
                                               : worker.parameters.data();
  const auto step = computer_->Compute(worker.ticket, at, gate_);
  result_.gradient_seconds += absl::ToDoubleSeconds(absl::Now() - start);
  if (!step.ok()) return step.status();
  loss_sum_ += step->loss;
  ++loss_batches_;
  skips_in_sequence_ = step->finite ? 0 : skips_in_sequence_ + 1;
  if (!step->finite) {
    ++result_.skipped;
    if (!kernels::AllFinite(at, worker.parameters.size()) ||
        skips_in_sequence_ >= std::max<uint64_t>(kHopelessSkips, 2 * workers_.size())) {
      return Diverged(now);
    }
  }
  if (step->finite) worker.statistics.Add(computer_->statistics());
  const uint64_t round = Round(worker.ticket);
  if (worker.replica.has_value()) {
    if (step->finite) {
      worker.replica->Step(worker.ticket, round, computer_->gradient());
      ++result_.updates;
    } else {
      worker.replica->Skip(worker.ticket, round);
    }
    return GoOn(k, now);
  }
  worker.pushed = {worker.ticket};
  return Push(k, worker.ticket, round, step->finite, computer_->gradient(), now);
}

uint64_t Simulation::Round(uint64_t ticket) const {
  return synchronous_ ? RoundOfTicket(ticket, batches_per_epoch_, job_.training().workers()) : 0;
}

absl::Status Simulation::Push(uint32_t k, uint64_t ticket, uint64_t round, bool finite,
                              float* pushed, double now) {
  VirtualWorker& worker = workers_[k];
  const bool with_statistics = finite && worker.statistics.Take();
  measures_->Begin(k);
  worker.replies_left = 0;
  for (const SegmentPlan& plan : plan_.segments()) {
    worker.replies_left += plan.kind == TensorKind::kTrainable || with_statistics;
  }
  for (uint32_t s = 0; s < segments_.size(); ++s) {
    const SegmentPlan& plan = plan_.segments()[s];
    if (!IsTrainable(s) && !with_statistics) continue;
    Event event = {.kind = finite ? EventKind::kPush : EventKind::kSkip,
                   .codec = static_cast<uint8_t>(CodecId::kNone),
                   .reply_codec = static_cast<uint8_t>(
                       IsTrainable(s) ? reply_codec_->id() : CodecId::kNone),
                   .segment = s,
                   .worker = k,
                   .incarnation = kIncarnation,
                   .sequence = ++worker.sequence[s],
                   .ticket = ticket,
                   .held_version = worker.held_version[s],
                   .argument = IsTrainable(s) ? round : 0};
    ByteSpan payload;
    if (!finite) {
      payload = {};
    } else if (!IsTrainable(s)) {
      const float* values =
          worker.statistics.values() + plan.begin - model_->schema().trainable_elements();
      payload = {reinterpret_cast<const uint8_t*>(values), plan.elements * sizeof(float)};
    } else {
      float* gradient = pushed + plan.begin;
      worker.encoder.Transform(plan, ticket, worker.clock[s],
                               worker.parameters.data() + plan.begin, gradient);
      event.codec = static_cast<uint8_t>(worker.encoder.codec(plan).id());
      if (worker.encoder.plain(plan)) {
        payload = {reinterpret_cast<const uint8_t*>(gradient), plan.elements * sizeof(float)};
      } else {
        payload_.resize(worker.encoder.EncodedBytes(plan));
        PushPlace place = {.worker = k, .sequence = event.sequence};
        if (synchronous_) place.round = round;
        worker.encoder.Encode(plan, place, gradient, payload_.data());
        payload = {payload_.data(), payload_.size()};
      }
      result_.push_bytes += payload.size();
    }
    if (const absl::Status status = Send(k, event, payload, now); !status.ok() || over_) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status Simulation::GoOn(uint32_t k, double now) {
  VirtualWorker& worker = workers_[k];
  worker.computing = false;
  if (worker.replica->due()) return Exchange(k, now);
  const Deal deal = dealer_->Apply({DealerEvent::Kind::kFetch, k, 1});
  if (!deal.tickets.empty()) return Begin(k, deal.tickets[0], false, now);
  // The dealer may be waiting for what is held back.
  if (!synchronous_ && !worker.replica->tickets().empty()) return Exchange(k, now);
  return absl::OkStatus();
}

absl::Status Simulation::Exchange(uint32_t k, double now) {
  VirtualWorker& worker = workers_[k];
  worker.computing = true;
  worker.exchange_waits = worker.replies_left > 0;
  if (worker.exchange_waits) return absl::OkStatus();
  // The last round's reply is the center still.
  if (synchronous_) return PushDifference(k, now);
  worker.pulling = true;
  worker.replies_left = segments_.size();
  for (uint32_t s = 0; s < segments_.size(); ++s) {
    if (const absl::Status status = Send(k, ReadEvent(k, s), {}, now); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Simulation::PushDifference(uint32_t k, double now) {
  VirtualWorker& worker = workers_[k];
  ElasticReplica& replica = *worker.replica;
  for (uint32_t s = 0; s < segments_.size(); ++s) replica.set_clock(s, worker.clock[s]);
  worker.pushed = replica.tickets();
  const uint64_t ticket = *std::max_element(worker.pushed.begin(), worker.pushed.end());
  if (!replica.Exchange(worker.parameters.data())) return Diverged(now);
  replica.Exchanged();
  const absl::Status sent = Push(k, ticket, replica.round(), true, replica.difference(), now);
  return !sent.ok() || over_ ? sent : GoOn(k, now);
}

absl::Status Simulation::Send(uint32_t k, Event event, ByteSpan payload, double now) {
  if (!network_->costs()) {
    if (!payload.empty()) event.payload = {.pieces = {&payload, 1}, .bytes = payload.size()};
    return Arrive(event, now);
  }
  const uint32_t shard = plan_.segments()[event.segment].shard;
  const double arrived = network_->ToServer(k, shard, payload.size(), now);
  Schedule(arrived, k, What::kArrived, event.segment, Keep({.event = event}, payload));
  return absl::OkStatus();
}

size_t Simulation::Keep(Message message, ByteSpan payload) {
  message.payload.assign(payload.begin(), payload.end());
  if (free_messages_.empty()) {
    messages_.push_back(std::move(message));
    return messages_.size() - 1;
  }
  const size_t place = free_messages_.back();
  free_messages_.pop_back();
  messages_[place] = std::move(message);
  return place;
}

Simulation::Message Simulation::Take(size_t place) {
  free_messages_.push_back(place);
  return std::move(messages_[place]);
}

absl::Status Simulation::Arrive(Event event, double now) {
  Segment& segment = *segments_[event.segment];
  if (const absl::Status status = segment.CheckPayload(event); !status.ok()) {
    // Finite gradients can make a push that is not: where momentum overflows.
    return absl::IsInvalidArgument(status) && event.kind == EventKind::kPush ? Diverged(now) : status;
  }
  if (const absl::Status status = segment.Admit(&event); !status.ok()) return status;
  const SegmentPlan& plan = plan_.segments()[event.segment];
  const bool rounds = synchronous_ && IsTrainable(event.segment);
  if (rounds) {
    const Outcome noted = segment.Apply(event, nullptr);
    measures_->Note(event.worker, event.segment, noted);
    return segment.RoundComplete() ? CloseRound(event.segment, now) : absl::OkStatus();
  }
  // Without a network the reply is written where the worker holds it.
  Reply reply;
  if (network_->costs() || reply_codec_->id() != CodecId::kNone) {
    reply_.resize(plan.elements * sizeof(float));
    reply.data = reply_.data();
  } else {
    reply.data =
        reinterpret_cast<uint8_t*>(workers_[event.worker].parameters.data() + plan.begin);
  }
  const Outcome outcome = segment.Apply(event, &reply);
  measures_->Note(event.worker, event.segment, outcome);
  return Answer(event.worker, event.segment, outcome, reply, now);
}

absl::Status Simulation::CloseRound(uint32_t s, double now) {
  Segment& segment = *segments_[s];
  const Event closed = {
      .kind = EventKind::kRoundClosed, .segment = s, .argument = segment.open_round()};
  Outcome outcome = segment.Apply(closed, nullptr);
  if (outcome.measure.has_value()) {
    if (const absl::Status status = NoteMeasure(*outcome.measure); !status.ok()) return status;
  }
  reply_.resize(segment.max_reply_bytes());
  for (uint32_t k = 0; k < workers_.size(); ++k) {
    Event read = ReadEvent(k, s);
    read.argument = static_cast<uint64_t>(ReadMode::kRound);
    if (const absl::Status status = segment.Admit(&read); !status.ok()) return status;
    Reply reply = {.data = reply_.data()};
    outcome = segment.Apply(read, &reply);
    if (const absl::Status status = Answer(k, s, outcome, reply, now); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Simulation::NoteMeasure(const RoundMeasure& measure) {
  measured_.Add(measure.variance_sum, measure.error_squares, measure.momentum_squares);
  if (measured_.segments < trainable_segments_) return absl::OkStatus();
  const RoundTotals totals = std::exchange(measured_, {});
  RoundSums sums = totals.Sums(measure.round);
  if (totals.compressed()) {
    for (const VirtualWorker& worker : workers_) {
      const double ratio = worker.encoder.ErrorRatio(plan_.segments(), worker.encoder.momentum().data());
      sums.error_ratio = std::max(sums.error_ratio, ratio);
    }
  }
  const RoundBook& rounds = *dealer_->rounds();
  const std::optional<Phase> phase =
      phases_->Decide(sums, dealer_->completed_tickets(), rounds, [&](Phase decided) {
        dealer_->Apply({DealerEvent::Kind::kAnnounce, 0, static_cast<uint64_t>(decided)});
      });
  if (!phase.has_value()) return absl::OkStatus();
  result_.phase_changes.push_back({rounds.announced_round(), *phase == Phase::kFrozen});
  // Everybody hears of it at once.
  for (uint32_t s = 0; s < segments_.size(); ++s) {
    if (!IsTrainable(s)) continue;
    Event change = {.kind = EventKind::kPhaseChange,
                    .segment = s,
                    .ticket = rounds.announced_round(),
                    .argument = static_cast<uint64_t>(*phase)};
    if (const absl::Status status = segments_[s]->Admit(&change); !status.ok()) return status;
    segments_[s]->Apply(change, nullptr);
  }
  dealer_->Apply({DealerEvent::Kind::kViewKnown, 0, rounds.view()});
  return absl::OkStatus();
}

absl::Status Simulation::Answer(uint32_t k, uint32_t s, const Outcome& outcome, const Reply& reply,
                                double now) {
  VirtualWorker& worker = workers_[k];
  if (IsTrainable(s)) result_.pull_bytes += reply.bytes;
  const ByteSpan payload(reply.data, reply.bytes);
  if (!network_->costs()) {
    const absl::Status taken = TakeReply(k, s, outcome, payload, reply.codec, reply.parts);
    return taken.ok() && --worker.replies_left == 0 ? Acknowledge(k, now) : taken;
  }
  const double arrived = network_->ToWorker(k, plan_.segments()[s].shard, reply.bytes, now);
  Schedule(arrived, k, What::kReplied, s,
           Keep({.outcome = outcome, .codec = reply.codec, .parts = reply.parts}, payload));
  return absl::OkStatus();
}

absl::Status Simulation::TakeReply(uint32_t k, uint32_t s, const Outcome& outcome, ByteSpan payload,
                                   CodecId codec, uint32_t parts) {
  VirtualWorker& worker = workers_[k];
  worker.held_version[s] = outcome.version;
  worker.clock[s] = outcome.clock;
  const SegmentPlan& plan = plan_.segments()[s];
  float* values = worker.parameters.data() + plan.begin;
  if (payload.data() == reinterpret_cast<const uint8_t*>(values)) return absl::OkStatus();
  const Payload whole = {.pieces = {&payload, 1}, .bytes = payload.size()};
  if (worker.encoder.squeezes() && IsTrainable(s)) {
    return worker.encoder.TakeReply(plan, ToRoundReply(outcome, parts), whole, {}, {}, values);
  }
  return reader_.Read(plan, *codecs_.Find(codec), ReplyKey(job_.seed(), s, k, outcome.version), whole,
                      values);
}

// Every segment has answered: the batch is done.
absl::Status Simulation::Acknowledge(uint32_t k, double now) {
  VirtualWorker& worker = workers_[k];
  if (worker.pulling) {
    worker.pulling = false;
    return PushDifference(k, now);
  }
  // A local step of elastic averaging is an update by itself.
  if (measures_->End(k) && !worker.replica.has_value()) ++result_.updates;
  result_.worker_batches[k] += worker.pushed.size();
  const uint64_t before = dealer_->completed_tickets();
  for (const uint64_t ticket : worker.pushed) {
    dealer_->Apply({DealerEvent::Kind::kComplete, k, ticket});
  }
  worker.pushed.clear();
  const uint64_t completed = dealer_->completed_tickets();
  if (options_.progress && completed / kProgressEvery > before / kProgressEvery) {
    SimulationProgress progress = {completed, dealer_->total_tickets(), now};
    if (!result_.curve.empty()) progress.accuracy = result_.curve.back().accuracy;
    options_.progress(progress);
  }
  if (dealer_->completed_epochs() > epochs_seen_ && !dealer_->finished()) {
    epochs_seen_ = dealer_->completed_epochs();
    const uint32_t interval = options_.evaluation_interval_epochs;
    if (interval > 0 && epochs_seen_ % interval == 0) {
      if (const absl::Status status = Evaluate(now); !status.ok()) return status;
    }
  }
  // Whoever waited for this one's progress comes after it.
  if (worker.replica.has_value()) {
    if (worker.exchange_waits) {
      if (const absl::Status status = Exchange(k, now); !status.ok()) return status;
    }
    return DealToAll(now);
  }
  worker.computing = false;
  const Deal deal = dealer_->Apply({DealerEvent::Kind::kFetch, k, 1});
  if (!deal.tickets.empty()) {
    if (const absl::Status status = Begin(k, deal.tickets[0], false, now); !status.ok()) {
      return status;
    }
  }
  return DealToAll(now);
}

std::vector<float> Simulation::Master() const {
  std::vector<float> values(model_->schema().elements());
  for (uint32_t s = 0; s < segments_.size(); ++s) {
    const absl::Span<const float> theta = segments_[s]->theta();
    std::copy(theta.begin(), theta.end(), values.begin() + plan_.segments()[s].begin);
  }
  return values;
}

absl::Status Simulation::Evaluate(double now) {
  const absl::Time start = absl::Now();
  std::vector<float> values = Master();
  const auto evaluation = evaluator_->Evaluate(values.data(), 0);
  if (!evaluation.ok()) return evaluation.status();
  result_.evaluation_seconds += absl::ToDoubleSeconds(absl::Now() - start);
  CurvePoint point = {.epoch = static_cast<double>(dealer_->completed_tickets()) /
                               static_cast<double>(dealer_->total_tickets()) *
                               job_.training().epochs(),
                      .virtual_seconds = now,
                      .training_loss = loss_batches_ > 0 ? loss_sum_ / loss_batches_ : 0,
                      .loss = evaluation->loss(),
                      .accuracy = evaluation->accuracy()};
  loss_sum_ = 0;
  loss_batches_ = 0;
  if (!std::isfinite(point.loss)) return Diverged(now);
  result_.curve.push_back(point);
  result_.final_loss = point.loss;
  result_.final_accuracy = point.accuracy;
  result_.best_accuracy = std::max(result_.best_accuracy, point.accuracy);
  return absl::OkStatus();
}

absl::Status Simulation::Diverged(double now) {
  over_ = true;
  result_.diverged = true;
  result_.diverged_epoch = static_cast<double>(dealer_->completed_tickets()) /
                           static_cast<double>(batches_per_epoch_);
  result_.final_accuracy = 1.0 / std::max(options_.train->classes(), 1u);
  result_.final_loss = std::log(std::max(options_.train->classes(), 1u));
  now_ = now;
  return absl::OkStatus();
}

SimulationResult Simulation::TakeResult() {
  result_.batches = dealer_->completed_tickets();
  measures_->Fill(&result_);
  const uint64_t workers = workers_.size();
  const uint64_t batches = std::max<uint64_t>(result_.batches, 1);
  result_.synchronous_seconds =
      SynchronousSeconds(options_.clock, (batches + workers - 1) / workers);
  result_.ideal_seconds = AsynchronousSeconds(options_.clock, batches);
  const std::vector<float> master = Master();
  result_.parameters_checksum =
      Checksum(ByteSpan(reinterpret_cast<const uint8_t*>(master.data()), master.size() * sizeof(float)));
  result_.total_seconds = absl::ToDoubleSeconds(absl::Now() - started_);
  return std::move(result_);
}

}  // namespace

absl::StatusOr<SimulationResult> Simulate(const SimulationOptions& options) {
  Simulation simulation(options);
  if (const absl::Status status = simulation.Prepare(); !status.ok()) return status;
  if (const absl::Status status = simulation.Run(); !status.ok()) return status;
  return simulation.TakeResult();
}

}  // namespace foreshard
