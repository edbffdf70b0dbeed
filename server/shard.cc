#include "server/shard.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/core/bytes.h"
#include "common/core/catalogue.h"
#include "common/core/round_sums.h"
#include "common/net/job_parts.h"
#include "common/net/job_spec.h"
#include "glog/logging.h"
#include "server/available_memory.h"
#include "server/job_machines.h"
#include "server/monotonic_time.h"

namespace foreshard {
namespace {

// A block list takes this much for each block, on every server.
constexpr uint64_t kPlanBytesPerBlock = sizeof(Block) + 16;

// Calls that wait for a segment's round at a time.
constexpr int kWaitsOfAWorker = 4;

// An event closes its round, and opens one beyond in which somebody takes part, if there is any.
constexpr int kMostClosings = 2;

double Mebibytes(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

bool MayCompleteRound(EventKind kind) {
  return kind == EventKind::kPush || kind == EventKind::kSkip || kind == EventKind::kAbsent ||
         kind == EventKind::kViewChange;
}

}  // namespace

Shard::Shard(const v1::JobSpec& job, uint32_t shard, EventSink* sink, const ProtocolRange& speaks)
    : job_(job),
      shard_(shard),
      sink_(sink),
      speaks_(speaks),
      synchronous_(IsSynchronous(job)),
      job_fingerprint_(JobFingerprint(job)) {}

absl::Status Shard::Agree(const v1::Contract& contract, const std::string& job_name,
                          const v1::ModelSchema& model, uint64_t train_examples,
                          const std::string& job_text, uint64_t data_identity) {
  absl::MutexLock lock(&agree_mutex_);
  // Protocol and job first: a schema is looked at only where those are the same.
  v1::Contract expected = owned_ != nullptr ? owned_->contract : contract;
  expected.set_protocol(speaks_.newest);
  expected.set_oldest_protocol(speaks_.oldest);
  expected.set_job(job_fingerprint_);
  v1::Contract first = expected;
  first.set_schema(contract.schema());
  first.set_plan(contract.plan());
  if (absl::Status status = CheckContract(first, contract); !status.ok()) {
    const std::string difference =
        contract.job() != job_fingerprint_ ? JobDifference(job_, job_text) : "";
    if (!difference.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("another job: ", difference,
                       "; start every program with the same job file and the same --set overrides"));
    }
    if (job_name == job_.name()) return status;
    return absl::FailedPreconditionError(absl::StrCat(
        status.message(), " (job '", job_.name(), "' here, '", job_name, "' there)"));
  }
  if (train_examples == 0) {
    return absl::FailedPreconditionError(
        "train_examples: 0: there is no training data at the caller");
  }
  if (owned_ == nullptr) {
    absl::StatusOr<std::unique_ptr<Agreement>> made =
        MakeAgreement(contract, model, train_examples);
    if (!made.ok()) return made.status();
    if (agreed_ != nullptr) {
      if (absl::Status status = agreed_(**made); !status.ok()) return status;
    }
    owned_ = std::move(*made);
    data_identity_ = data_identity;
    agreement_.store(owned_.get(), std::memory_order_release);
    LOG(INFO) << absl::StrFormat(
        "job '%s': %d of %d segments, %d of %d elements, %.1f MiB, rule %s", job_.name(),
        owned_->cells.size(), owned_->plan.segments().size(),
        owned_->cells.empty() ? 0
                              : owned_->cells.back()->plan->begin +
                                    owned_->cells.back()->plan->elements -
                                    owned_->cells.front()->plan->begin,
        owned_->schema.elements(), Mebibytes(owned_->memory_bytes), job_.update().rule());
    return absl::OkStatus();
  }
  if (contract.schema() != owned_->contract.schema() && model.tensors_size() > 0) {
    const absl::StatusOr<Schema> theirs = FromProto(model);
    if (theirs.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("another model schema: ", owned_->schema.Difference(*theirs),
                       "; use the same model and data everywhere"));
    }
  }
  if (absl::Status status = CheckContract(owned_->contract, contract); !status.ok()) return status;
  if (train_examples != owned_->train_examples) {
    return absl::FailedPreconditionError(
        absl::StrCat("train_examples: ", train_examples, ": the job began with ",
                     owned_->train_examples, "; give every worker the same training data"));
  }
  if (data_identity == 0) return absl::OkStatus();
  if (data_identity_ == 0) data_identity_ = data_identity;
  if (data_identity != data_identity_) {
    return absl::FailedPreconditionError(
        "other training data: the text here was packed with another vocabulary, another --sequence or other "
        "--pairs than that of the workers that came before; give every worker the same packed text");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Shard::Agreement>> Shard::MakeAgreement(
    const v1::Contract& contract, const v1::ModelSchema& model, uint64_t train_examples) const {
  const auto refused = [](const absl::Status& status) {
    return absl::FailedPreconditionError(status.message());
  };
  auto made = std::make_unique<Agreement>();
  absl::StatusOr<Schema> schema = FromProto(model);
  if (!schema.ok()) return refused(schema.status());
  made->schema = *std::move(schema);
  if (absl::Status status = CheckMemory(made->schema); !status.ok()) return status;
  absl::StatusOr<ShardPlan> plan = ShardPlan::Create(made->schema, MakePlanOptions(job_));
  if (!plan.ok()) return refused(plan.status());
  made->plan = *std::move(plan);
  made->contract = MakeContract(job_, made->schema, made->plan, speaks_);
  if (absl::Status status = CheckContract(made->contract, contract); !status.ok()) return status;
  made->train_examples = train_examples;
  made->batches_per_epoch = BatchesPerEpoch(job_, train_examples);
  made->tickets = made->batches_per_epoch * job_.training().epochs();
  if (synchronous_ && made->batches_per_epoch < job_.training().workers()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "training.workers: ", job_.training().workers(), ": an epoch of ", train_examples,
        " examples has only ", made->batches_per_epoch,
        " batches, fewer than one round takes; use fewer workers or smaller batches"));
  }
  if (absl::Status status = CheckFreeze(job_, made->batches_per_epoch); !status.ok()) {
    return refused(status);
  }

  std::vector<SegmentOptions> options;
  for (const uint32_t id : made->plan.SegmentsOfShard(shard_)) {
    options.push_back(MakeSegmentOptions(job_, made->plan.segments()[id], made->batches_per_epoch));
    made->memory_bytes += Segment::MemoryBytes(options.back());
  }
  const uint64_t available = AvailableMemoryBytes();
  if (made->memory_bytes > available) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "shard %d needs %.0f MiB (rule %s, %d worker slots, %d segments) and %.0f MiB are "
        "available; use more servers.shards, fewer training.max_workers, a rule that keeps less%s",
        shard_, Mebibytes(made->memory_bytes), job_.update().rule(),
        job_.training().max_workers(), options.size(), Mebibytes(available),
        FindCodecTraits(job_.compression().reply())->replies_carry_values
            ? ""
            : ", or compression.reply none, fp16 or bf16, which need no copy of what workers hold"));
  }
  const CodecId reply_codec = CodecSet().Find(job_.compression().reply())->id();
  made->first_segment = options.empty() ? 0 : options.front().plan.id;
  for (const SegmentOptions& segment_options : options) {
    absl::StatusOr<std::unique_ptr<Segment>> segment = Segment::Create(segment_options);
    if (!segment.ok()) return refused(segment.status());
    auto cell = std::make_unique<Cell>();
    cell->plan = &made->plan.segments()[segment_options.plan.id];
    cell->checks = segment->get();
    cell->trainable = cell->plan->kind == TensorKind::kTrainable;
    cell->synchronous = segment_options.synchronous;
    cell->reply_codec = static_cast<uint8_t>(reply_codec);
    cell->reply_bytes = (*segment)->max_reply_bytes();
    absl::MutexLock lock(&cell->mutex);
    cell->segment = *std::move(segment);
    cell->round_opened = MonotonicNanoseconds();
    made->cells.push_back(nullptr);
    std::swap(made->cells.back(), cell);
  }
  return made;
}

// Before anything is made of a schema: a bound from below on what it takes.
absl::Status Shard::CheckMemory(const Schema& schema) const {
  const uint64_t blocks = schema.elements() / job_.compression().block_elements() +
                          schema.tensors().size();
  const uint64_t least = schema.trainable_elements() / job_.servers().shards() * sizeof(float) +
                         blocks * kPlanBytesPerBlock;
  const uint64_t available = AvailableMemoryBytes();
  if (least <= available) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "a model of %d elements takes at least %.0f MiB on shard %d, and %.0f MiB are available; use "
      "more servers.shards",
      schema.elements(), Mebibytes(least), shard_, Mebibytes(available)));
}

void Shard::Measures::Note(const Outcome& outcome) {
  stale += outcome.result == Result::kDiscarded;
  if (outcome.result != Result::kApplied) return;
  ++pushes;
  lag_sum += outcome.lag;
  lag_max = std::max(lag_max, outcome.lag);
  if (outcome.sampled_elements == 0) return;
  ++gap_count;
  gap_sum += outcome.gap();
  surprise_sum += outcome.surprise();
}

absl::StatusOr<Shard::Cell*> Shard::FindCell(uint32_t segment) const {
  const Agreement* agreed = agreement();
  if (agreed == nullptr) {
    return absl::FailedPreconditionError("this server knows no model yet: say Hello first");
  }
  const uint64_t index = uint64_t{segment} - agreed->first_segment;
  if (segment < agreed->first_segment || index >= agreed->cells.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment ", segment, " is not of shard ", shard_, ", which has ",
                     agreed->cells.size(), " from ", agreed->first_segment, " on"));
  }
  return agreed->cells[index].get();
}

absl::StatusOr<Shard::Performed> Shard::Perform(Cell& cell, Event event, Reply* reply) {
  Performed performed;
  std::vector<Event> closed;
  {
    absl::MutexLock lock(&cell.mutex);
    Segment& segment = *cell.segment;
    if (absl::Status status = segment.Admit(&event); !status.ok()) return status;
    if (ChangesState(event)) event.number = NextNumber();
    const int64_t start = MonotonicNanoseconds();
    performed.outcome = segment.Apply(event, reply);
    performed.kind = event.kind;
    if (event.kind == EventKind::kLearningRateRepair && performed.outcome.result == Result::kPending) {
      performed.missing_workers = segment.MissingShares(event.ticket);
    }
    cell.measures.Note(performed.outcome);
    // The members gather for the first round: it is open since somebody has contributed.
    if (cell.synchronous && performed.outcome.result == Result::kPending && segment.open_round() == 0 &&
        segment.MissingMembers().size() + 1 == segment.round_members()) {
      cell.round_opened = start;
    }
    if (cell.synchronous && MayCompleteRound(event.kind)) {
      // The next one may have only absent members, and then is over too; behind it is one that somebody is awaited
      // in, so that this ends by itself.
      for (int k = 0; k < kMostClosings && segment.RoundComplete(); ++k) {
        closed.push_back({.kind = EventKind::kRoundClosed,
                          .segment = event.segment,
                          .argument = segment.open_round(),
                          .number = NextNumber()});
        const Result result = performed.outcome.result;
        performed.outcome = segment.Apply(closed.back(), nullptr);
        performed.outcome.result = result;
        performed.round_closed = true;
      }
      // Those that wait for a round that is closed now, or that a view has given up.
      const auto done = std::partition(
          cell.waiters.begin(), cell.waiters.end(),
          [&](const RoundWaiter* waiter) { return waiter->round >= segment.open_round(); });
      performed.released.assign(done, cell.waiters.end());
      cell.waiters.erase(done, cell.waiters.end());
    }
    const int64_t end = MonotonicNanoseconds();
    performed.apply_seconds = SecondsBetween(start, end);
    if (performed.round_closed) {
      performed.round_seconds = SecondsBetween(std::exchange(cell.round_opened, end), end);
    }
  }
  if (sink_ != nullptr) {
    if (ChangesState(event)) sink_->Record(event);
    for (const Event& each : closed) sink_->Record(each);
  }
  return performed;
}

bool Shard::PerformOwn(Cell& cell, const Event& event, std::vector<RoundWaiter*>* released) {
  const absl::StatusOr<Performed> performed = Perform(cell, event, nullptr);
  if (!performed.ok()) {
    VLOG(1) << performed.status();
    return false;
  }
  released->insert(released->end(), performed->released.begin(), performed->released.end());
  return true;
}

std::vector<RoundWaiter*> Shard::Release(EventKind kind, uint32_t worker, uint64_t incarnation) {
  std::vector<RoundWaiter*> released;
  const Agreement* agreed = agreement();
  if (agreed == nullptr) return released;
  for (const auto& cell : agreed->cells) {
    Event event = {
        .kind = kind, .segment = cell->plan->id, .worker = worker, .incarnation = incarnation};
    if (cell->synchronous) {
      // Who takes leave is not waited for any more; a silent one is the lead's business.
      if (kind != EventKind::kLeave || !HasViews(job_)) continue;
      event.kind = EventKind::kAbsent;
      event.argument = ~uint64_t{0};
    }
    // Fails where a newer incarnation has the slot: then there is nothing to release.
    PerformOwn(*cell, event, &released);
  }
  return released;
}

absl::Status Shard::ChangeView(Cell& cell, const View& view, std::vector<RoundWaiter*>* released) {
  const ByteSpan piece = AsBytes(view.members);
  const Event members = {.kind = EventKind::kViewChange,
                         .segment = cell.plan->id,
                         .argument = view.number,
                         .payload = {absl::MakeConstSpan(&piece, 1), piece.size()}};
  if (absl::Status status = cell.checks->CheckPayload(members); !status.ok()) return status;
  // Another worker may be first, with this view or a newer one.
  const auto knows_members = [&] {
    absl::MutexLock lock(&cell.mutex);
    return cell.segment->view() >= view.number;
  };
  const auto knows_phase = [&] {
    absl::MutexLock lock(&cell.mutex);
    return cell.segment->announced_round() >= view.phase_round;
  };
  // The phase first: the members may open rounds.
  if (!knows_phase()) {
    const Event phase = {.kind = EventKind::kPhaseChange,
                         .segment = cell.plan->id,
                         .ticket = view.phase_round,
                         .argument = static_cast<uint64_t>(view.phase)};
    const absl::StatusOr<Performed> performed = Perform(cell, phase, nullptr);
    if (!performed.ok() && !knows_phase()) return performed.status();
  }
  if (!knows_members()) PerformOwn(cell, members, released);
  return absl::OkStatus();
}

absl::Status Shard::ChangeView(const View& view, std::vector<RoundWaiter*>* released) {
  absl::Status status;
  for (const auto& cell : agreement()->cells) {
    if (cell->synchronous) status.Update(ChangeView(*cell, view, released));
  }
  return status;
}

double Shard::ErrorRatio() const {
  RoundTotals totals;
  const Agreement* agreed = agreement();
  // Others measure nothing.
  if (agreed == nullptr || !FindRule(job_.update().rule())->squeezes) return 0;
  for (const auto& cell : agreed->cells) {
    absl::MutexLock lock(&cell->mutex);
    const RoundMeasure& measure = cell->segment->measure();
    totals.Add(measure.variance_sum, measure.error_squares, measure.momentum_squares);
  }
  return totals.ErrorRatio();
}

std::vector<RoundWaiter*> Shard::CloseWithoutStragglers(int64_t now, double seconds, uint64_t* absences) {
  std::vector<RoundWaiter*> released;
  const Agreement* agreed = agreement();
  if (agreed == nullptr) return released;
  for (const auto& cell : agreed->cells) {
    if (!cell->synchronous) continue;
    std::vector<Event> absent;
    {
      absl::MutexLock lock(&cell->mutex);
      const Segment& segment = *cell->segment;
      const std::vector<uint32_t> missing = segment.MissingMembers();
      // Where nobody has contributed there is nothing to go on with.
      if (missing.size() == segment.round_members() || SecondsBetween(cell->round_opened, now) < seconds) {
        continue;
      }
      for (const uint32_t worker : missing) {
        absent.push_back({.kind = EventKind::kAbsent,
                          .segment = cell->plan->id,
                          .worker = worker,
                          .incarnation = segment.incarnation(worker),
                          .argument = segment.open_round() + 1});
      }
    }
    for (const Event& event : absent) {
      if (PerformOwn(*cell, event, &released)) ++*absences;
    }
  }
  return released;
}

absl::Status Shard::CheckRound(Cell& cell, uint64_t round, bool after_loss) const {
  uint64_t open = 0;
  {
    absl::MutexLock lock(&cell.mutex);
    open = cell.segment->open_round();
  }
  const uint64_t most = after_loss ? kMostAheadRoundsAfterLoss : kMostAheadRounds;
  if (round <= open || round - open <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("segment ", cell.plan->id, ": round ", round,
                                                 " cannot be spoken of while round ", open, " is open, only those up to ",
                                                 open + most));
}

absl::Status Shard::CheckRound(uint64_t round, bool after_loss) const {
  for (const auto& cell : agreement()->cells) {
    if (!cell->synchronous) continue;
    if (absl::Status status = CheckRound(*cell, round, after_loss); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Shard::Park(Cell& cell, RoundWaiter* waiter) {
  absl::MutexLock lock(&cell.mutex);
  const uint64_t open = cell.segment->open_round();
  if (waiter->round < open) return false;
  if (waiter->round > open && !waiter->absent) {
    return absl::FailedPreconditionError(
        absl::StrCat("segment ", cell.plan->id, ": round ", waiter->round,
                     " cannot be fetched; round ", open, " is still open"));
  }
  // A worker waits once a segment; a reply that was lost leaves another behind. Those that are about to join may
  // be many more than the members, and each may wait.
  if (cell.waiters.size() >= kWaitsOfAWorker * (size_t{cell.segment->round_members()} + 1)) {
    const auto own = std::count_if(cell.waiters.begin(), cell.waiters.end(),
                                   [&](const RoundWaiter* other) { return other->worker == waiter->worker; });
    if (own >= kWaitsOfAWorker) {
      return absl::ResourceExhaustedError(
          absl::StrCat("segment ", cell.plan->id, ": ", cell.waiters.size(), " calls wait for its round already, ",
                       own, " of them of worker ", waiter->worker));
    }
  }
  cell.waiters.push_back(waiter);
  return true;
}

bool Shard::Unpark(Cell& cell, RoundWaiter* waiter) {
  absl::MutexLock lock(&cell.mutex);
  const auto place = std::find(cell.waiters.begin(), cell.waiters.end(), waiter);
  if (place == cell.waiters.end()) return false;
  cell.waiters.erase(place);
  return true;
}

std::vector<RoundWaiter*> Shard::TakeWaiters(Cell& cell, int64_t now, bool all) {
  absl::MutexLock lock(&cell.mutex);
  const auto done = std::partition(
      cell.waiters.begin(), cell.waiters.end(),
      [&](const RoundWaiter* waiter) { return !all && waiter->deadline > now; });
  std::vector<RoundWaiter*> taken(done, cell.waiters.end());
  cell.waiters.erase(done, cell.waiters.end());
  return taken;
}

void Shard::Record(const Event& event) {
  if (sink_ != nullptr) sink_->Record(event);
}

uint64_t Shard::CloseCompleteRounds() {
  uint64_t count = 0;
  const Agreement* agreed = agreement();
  if (agreed == nullptr) return count;
  for (const auto& cell : agreed->cells) {
    for (;;) {
      Event closed = {.kind = EventKind::kRoundClosed, .segment = cell->plan->id};
      {
        absl::MutexLock lock(&cell->mutex);
        if (!cell->synchronous || !cell->segment->RoundComplete()) break;
        closed.argument = cell->segment->open_round();
        closed.number = NextNumber();
        cell->segment->Apply(closed, nullptr);
      }
      Record(closed);
      ++count;
    }
  }
  return count;
}

void Shard::TakeSnapshot(Cell& cell, Snapshot* snapshot) const {
  ByteWriter writer(std::move(snapshot->state));
  {
    absl::MutexLock lock(&cell.mutex);
    const int64_t begin = MonotonicNanoseconds();
    const Segment& segment = *cell.segment;
    snapshot->number = last_number();
    snapshot->theta.assign(segment.theta().begin(), segment.theta().end());
    segment.Save(&writer);
    snapshot->held_seconds = SecondsBetween(begin, MonotonicNanoseconds());
  }
  snapshot->state = writer.TakeSealed();
}

std::vector<uint32_t> Shard::MissingSegments() const {
  std::vector<uint32_t> missing;
  const Agreement* agreed = agreement();
  if (agreed == nullptr) return missing;
  for (const auto& cell : agreed->cells) {
    absl::MutexLock lock(&cell->mutex);
    if (!cell->segment->initialised()) missing.push_back(cell->plan->id);
  }
  return missing;
}

}  // namespace foreshard
