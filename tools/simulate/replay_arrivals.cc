#include "tools/simulate/replay_arrivals.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/core/catalogue.h"
#include "common/core/shard_plan.h"
#include "common/net/job_parts.h"
#include "kernels/codecs/codec.h"
#include "kernels/device.h"
#include "server/arrivals.h"
#include "server/job_machines.h"
#include "server/segment.h"
#include "tools/simulate/replay_worker.h"
#include "worker/gradient.h"
#include "worker/job_setup.h"
#include "worker/reply_reader.h"

namespace foreshard {
namespace {

class Replay {
 public:
  Replay(const v1::JobSpec& job, const Dataset& train, const ReplayOptions& replay_options)
      : job_(job), train_(train), replay_options_(replay_options) {}

  absl::Status Prepare(absl::Span<const std::vector<Event>> arrivals);
  absl::Status Run();
  ReplayResult TakeResult();

 private:
  struct Queue {
    std::vector<const Event*> events;
    size_t next = 0;
  };

  bool IsTrainable(uint32_t segment) const {
    return plan().segments()[segment].kind == TensorKind::kTrainable;
  }
  const ShardPlan& plan() const { return options_.plan; }
  absl::Status Bad(const Event& event, const std::string& what) const;

  absl::Status Index(const std::vector<Event>& arrivals, uint32_t shard);
  ReplayWorker& StartOf(const Event& event);
  // Computes the step that `event` is a part of, where everything is there for it.
  // False, with the reason in `*missing`, where it is not yet.
  absl::StatusOr<bool> Compute(const Event& event, std::string* missing);
  absl::Status ComputeStep(ReplayWorker& start, const Event& event);
  absl::StatusOr<bool> Ready(const Event& event, std::string* missing);
  absl::Status Apply(const Event& event);
  // Keeps the segment where its version is a cut; statistics with the last one.
  void NoteCut(uint32_t segment);

  const v1::JobSpec& job_;
  const Dataset& train_;
  const ReplayOptions& replay_options_;
  ParameterClientOptions options_;  // as of a worker's client: plan, rule, codecs
  CodecSet codecs_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<GradientComputer> computer_;
  OpenGate gate_;
  std::vector<float> initial_;
  std::vector<std::unique_ptr<Segment>> segments_;
  std::vector<Queue> queues_;
  std::map<std::pair<uint32_t, uint64_t>, ReplayWorker> starts_;  // by slot and incarnation
  std::vector<uint8_t> reply_;
  ReplyReader reader_;
  ReplayResult result_;
  bool stuck_ = false;  // nothing was ready in the last turn
  std::vector<size_t> trainable_left_;  // by cut: segments that have not reached it
  double lag_sum_ = 0, lag_elements_ = 0;
};

absl::Status Replay::Bad(const Event& event, const std::string& what) const {
  return absl::InvalidArgumentError(absl::StrCat(
      "replay: shard ", plan().segments()[event.segment].shard, ", event ", event.number,
      ", segment ", event.segment, ", ", std::string(ToString(event.kind)), " of worker ",
      event.worker, ": ", what));
}

absl::Status Replay::Prepare(absl::Span<const std::vector<Event>> arrivals) {
  const RuleTraits* rule = FindRule(job_.update().rule());
  if (rule != nullptr && rule->elastic) {
    return absl::UnimplementedError(absl::StrCat(
        "replay: update.rule: ", job_.update().rule(),
        ": its workers take steps of their own between two pushes, and arrivals do not say on ",
        "which batches; a rule that pushes every gradient can be replayed"));
  }
  auto device = kernels::MakeDevice("cpu");
  if (!device.ok()) return device.status();
  device_ = *std::move(device);
  auto model = MakeJobModel(job_, train_, *device_);
  if (!model.ok()) return model.status();
  model_ = *std::move(model);
  const Schema& schema = model_->schema();
  auto options = MakeClientOptions(job_, schema, train_.examples(), {});
  if (!options.ok()) return options.status();
  options_ = *std::move(options);
  codecs_ = CodecSet(options_.codec_settings);
  computer_ =
      std::make_unique<GradientComputer>(MakeGradientOptions(job_), model_.get(), &train_);
  initial_.resize(schema.elements());
  if (absl::Status first = WriteFirstValues(job_, *model_, initial_.data()); !first.ok()) return first;
  for (const SegmentPlan& segment : plan().segments()) {
    auto made = Segment::Create(
        MakeSegmentOptions(job_, segment, BatchesPerEpoch(job_, train_.examples())));
    if (!made.ok()) return made.status();
    segments_.push_back(*std::move(made));
  }
  queues_.resize(segments_.size());
  size_t trainable = 0;
  for (uint32_t s = 0; s < segments_.size(); ++s) trainable += IsTrainable(s);
  trainable_left_.assign(replay_options_.cuts.size(), trainable);
  result_.cuts.assign(replay_options_.cuts.size(), std::vector<float>(schema.elements()));
  if (arrivals.size() != plan().shards()) {
    return absl::InvalidArgumentError(
        absl::StrCat("replay: arrivals of ", arrivals.size(), " servers for a job with ",
                     "servers.shards: ", plan().shards(), "; give one file a shard, in order"));
  }
  for (uint32_t shard = 0; shard < arrivals.size(); ++shard) {
    if (const absl::Status status = Index(arrivals[shard], shard); !status.ok()) return status;
  }
  for (auto& [key, start] : starts_) start.done.assign(segments_.size(), 0);
  return absl::OkStatus();
}

ReplayWorker& Replay::StartOf(const Event& event) {
  const auto key = std::pair(event.worker, event.incarnation);
  const auto found = starts_.find(key);
  if (found != starts_.end()) return found->second;
  return starts_
      .try_emplace(key, MakeEncoderOptions(options_), plan(), options_.schema.statistic_elements(),
                   options_.statistics_interval_steps)
      .first->second;
}

absl::Status Replay::Index(const std::vector<Event>& arrivals, uint32_t shard) {
  for (const Event& event : arrivals) {
    if (event.segment == kDealerSegment) continue;
    if (event.segment >= segments_.size() || plan().segments()[event.segment].shard != shard) {
      return absl::InvalidArgumentError(
          absl::StrCat("replay: shard ", shard, ", event ", event.number, ": segment ",
                       event.segment, " is not of this shard: arrivals of another job or shard?"));
    }
    queues_[event.segment].events.push_back(&event);
    if (event.kind == EventKind::kViewChange || event.kind == EventKind::kPhaseChange) {
      return absl::UnimplementedError(absl::StrCat(
          "replay: shard ", shard, ", event ", event.number, ": ",
          std::string(ToString(event.kind)), " carries what arrivals do not keep"));
    }
    if (!SendsToWorker(event.kind)) continue;
    ReplayWorker& start = StartOf(event);
    const uint64_t before = start.done[event.segment]++;
    if (!ConsumesTicket(event.kind)) continue;
    std::vector<const Event*>& events = start.events[event.segment];
    if (event.sequence != events.size() + 1) {
      return Bad(event, absl::StrCat("its push ", event.sequence, " follows its push ",
                                     events.size(), ": what is between them is missing"));
    }
    events.push_back(&event);
    start.before[event.segment].push_back(before);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Replay::Compute(const Event& event, std::string* missing) {
  ReplayWorker& start = StartOf(event);
  const uint64_t sequence = event.sequence;
  if (start.steps >= sequence) return true;
  if (start.steps + 1 < sequence) {
    *missing = absl::StrCat("its step ", start.steps + 1, " comes first");
    return false;
  }
  for (uint32_t s = 0; s < segments_.size(); ++s) {
    if (start.waits[s]) {
      *missing = absl::StrCat("segment ", s, " has not seen its push before");
      return false;
    }
    if (!IsTrainable(s)) continue;
    const std::vector<const Event*>& events = start.events[s];
    if (events.size() + 1 < sequence) {
      return Bad(event, absl::StrCat("segment ", s, " has only ", events.size(),
                                     " pushes of that worker, and this is push ", sequence));
    }
    // Of two replies of one version it is the later that counts. But a call that was
    // repeated may have come after the worker went on.
    if (start.HeldAt(s, sequence) == nullptr || (start.Behind(s, sequence) && !stuck_)) {
      *missing = absl::StrCat("segment ", s, " has not sent it ",
                              events.size() < sequence
                                  ? "a reply"
                                  : absl::StrCat("version ", events[sequence - 1]->held_version),
                              " after its push ", sequence - 1);
      return false;
    }
    if (events.size() < sequence) continue;
    const Event& other = *events[sequence - 1];
    if (other.ticket != event.ticket ||
        (other.kind == EventKind::kSkip) != (event.kind == EventKind::kSkip)) {
      return Bad(event, absl::StrCat("its push ", sequence, " is for ticket ", event.ticket,
                                     ", and in segment ", s, " a ",
                                     std::string(ToString(other.kind)), " for ", other.ticket));
    }
  }
  const absl::Status computed = ComputeStep(start, event);
  if (!computed.ok()) return computed;
  return true;
}

absl::Status Replay::ComputeStep(ReplayWorker& start, const Event& event) {
  const uint64_t sequence = event.sequence;
  start.Hold(sequence);
  const auto step = computer_->Compute(event.ticket, start.parameters.data(), gate_);
  if (!step.ok()) return step.status();
  if (step->finite == (event.kind == EventKind::kSkip)) {
    return Bad(event, absl::StrCat("the gradient of ticket ", event.ticket, " at what it held is ",
                                   step->finite ? "" : "not ", "finite"));
  }
  start.steps = sequence;
  ++result_.steps;
  result_.skipped += !step->finite;
  PushPlace place = {.worker = event.worker, .sequence = sequence};
  if (options_.synchronous) place.round = event.argument;
  start.MakePayloads(event.ticket, place, step->finite, *computer_);
  return absl::OkStatus();
}

absl::StatusOr<bool> Replay::Ready(const Event& event, std::string* missing) {
  if (!ConsumesTicket(event.kind)) return true;
  if (IsTrainable(event.segment)) return Compute(event, missing);
  const ReplayWorker& start = StartOf(event);
  if (start.statistics_pushes >= event.sequence) return true;
  *missing = absl::StrCat("its step of ticket ", event.ticket, " is not computed");
  return false;
}

absl::Status Replay::Apply(const Event& recorded) {
  const uint32_t s = recorded.segment;
  Segment& segment = *segments_[s];
  const SegmentPlan& segment_plan = plan().segments()[s];
  Event event = recorded;
  event.reply_codec =
      static_cast<uint8_t>(codecs_.Find(IsTrainable(s) ? options_.reply_codec : "none")->id());
  ByteSpan bytes;
  if (event.kind == EventKind::kInitialise) {
    bytes = {reinterpret_cast<const uint8_t*>(initial_.data() + segment_plan.begin),
             segment_plan.elements * sizeof(float)};
  } else if (event.kind == EventKind::kLearningRateRepair) {
    bytes = StartOf(event).MomentumToBring(event);
  } else if (ConsumesTicket(event.kind)) {
    ReplayWorker& start = StartOf(event);
    start.waits[s] = false;
    if (event.kind == EventKind::kPush) {
      bytes = start.payload[s];
      event.codec = static_cast<uint8_t>(codecs_.Find(IsTrainable(s) ? options_.push_codec : "none")->id());
    }
  }
  if (!bytes.empty()) event.payload = {.pieces = {&bytes, 1}, .bytes = bytes.size()};
  if (const absl::Status fits = segment.CheckPayload(event); !fits.ok()) {
    return Bad(recorded, std::string(fits.message()));
  }
  if (const absl::Status admitted = segment.Admit(&event); !admitted.ok()) {
    return Bad(recorded, std::string(admitted.message()));
  }
  if (event.kind != recorded.kind) {
    return Bad(recorded, absl::StrCat("the segment makes a ", std::string(ToString(event.kind)),
                                      " of it: was the job another one?"));
  }
  reply_.resize(segment_plan.elements * sizeof(float));
  Reply reply{.data = reply_.data()};
  const uint64_t version = segment.version();
  const Outcome outcome = segment.Apply(event, &reply);
  ++result_.events;
  if (SendsToWorker(event.kind)) {
    ++StartOf(event).done[s];
    StartOf(event).NoteShare(event, outcome.clock);
  }
  if (IsTrainable(s) && (outcome.result == Result::kApplied || outcome.result == Result::kPending) &&
      event.kind == EventKind::kPush) {
    const auto elements = static_cast<double>(segment_plan.elements);
    lag_elements_ += elements;
    lag_sum_ += elements * static_cast<double>(outcome.lag);
  }
  if (IsTrainable(s) && segment.version() > version) NoteCut(s);
  if (s == 0) {
    result_.discarded += event.kind == EventKind::kDiscard;
    result_.resent += event.kind == EventKind::kResend;
    if (event.kind == EventKind::kPush) {
      ++result_.updates;
      if (outcome.lag >= result_.lag_counts.size()) result_.lag_counts.resize(outcome.lag + 1);
      ++result_.lag_counts[outcome.lag];
    }
  }
  if (reply.bytes == 0 || !IsTrainable(s) || !SendsToWorker(event.kind)) return absl::OkStatus();
  const bool own = ConsumesTicket(event.kind) || event.kind == EventKind::kResend;
  ReplayWorker& start = StartOf(event);
  ReplayWorker::Sent sent = {.sequence = own ? event.sequence : segment.last_sequence(event.worker),
                             .version = outcome.version,
                             .clock = outcome.clock};
  // A difference is to what it held when it computed this push.
  const float* held = start.parameters.data() + segment_plan.begin;
  sent.values.assign(held, held + segment_plan.elements);
  const ByteSpan payload(reply.data, reply.bytes);
  const absl::Status read =
      reader_.Read(segment_plan, *codecs_.Find(reply.codec),
                   ReplyKey(options_.seed, s, event.worker, outcome.version),
                   {.pieces = {&payload, 1}, .bytes = payload.size()}, sent.values.data());
  if (!read.ok()) return Bad(recorded, std::string(read.message()));
  start.sent[s].push_back(std::move(sent));
  return absl::OkStatus();
}

void Replay::NoteCut(uint32_t s) {
  const std::vector<uint64_t>& cuts = replay_options_.cuts;
  const auto keep = [&](uint32_t segment, std::vector<float>& values) {
    const absl::Span<const float> theta = segments_[segment]->theta();
    std::copy(theta.begin(), theta.end(), values.begin() + plan().segments()[segment].begin);
  };
  for (size_t cut = 0; cut < cuts.size(); ++cut) {
    if (cuts[cut] != segments_[s]->version()) continue;
    keep(s, result_.cuts[cut]);
    if (--trainable_left_[cut] > 0) continue;
    for (uint32_t other = 0; other < segments_.size(); ++other) {
      if (!IsTrainable(other)) keep(other, result_.cuts[cut]);
    }
  }
}

absl::Status Replay::Run() {
  std::string missing;
  for (bool moved = true; moved || !stuck_;) {
    // Strictly as long as that goes on; once more without, where it does not.
    stuck_ = !moved;
    moved = false;
    for (Queue& queue : queues_) {
      while (queue.next < queue.events.size()) {
        const Event& event = *queue.events[queue.next];
        const absl::StatusOr<bool> ready = Ready(event, &missing);
        if (!ready.ok()) return ready.status();
        if (!*ready) break;
        if (const absl::Status status = Apply(event); !status.ok()) return status;
        ++queue.next;
        moved = true;
        if (stuck_) break;
      }
    }
  }
  for (const Queue& queue : queues_) {
    if (queue.next == queue.events.size()) continue;
    const Event& event = *queue.events[queue.next];
    const absl::StatusOr<bool> ready = Ready(event, &missing);
    if (!ready.ok()) return ready.status();
    return Bad(event, absl::StrCat("cannot be replayed, and nothing else can any more: ", missing));
  }
  return absl::OkStatus();
}

ReplayResult Replay::TakeResult() {
  size_t reached = 0;
  while (reached < trainable_left_.size() && trainable_left_[reached] == 0) ++reached;
  result_.cuts.resize(reached);
  result_.parameters.resize(options_.schema.elements());
  for (const SegmentPlan& segment : plan().segments()) {
    const absl::Span<const float> theta = segments_[segment.id]->theta();
    std::copy(theta.begin(), theta.end(), result_.parameters.begin() + segment.begin);
  }
  result_.lag_mean = lag_elements_ > 0 ? lag_sum_ / lag_elements_ : 0;
  return std::move(result_);
}

}  // namespace

absl::StatusOr<ReplayResult> ReplayArrivals(const v1::JobSpec& job, const Dataset& train,
                                            absl::Span<const std::vector<Event>> arrivals,
                                            const ReplayOptions& options) {
  Replay replay(job, train, options);
  if (const absl::Status status = replay.Prepare(arrivals); !status.ok()) return status;
  if (const absl::Status status = replay.Run(); !status.ok()) return status;
  return replay.TakeResult();
}

}  // namespace foreshard
