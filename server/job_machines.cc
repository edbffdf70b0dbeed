#include "server/job_machines.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/core/catalogue.h"
#include "common/net/job_parts.h"

namespace foreshard {
namespace {

constexpr uint32_t kMaxOutstanding = 8;

// With the workers that the job is planned for.
uint64_t Rounds(const v1::JobSpec& job, uint64_t batches_per_epoch) {
  return batches_per_epoch / job.training().workers() * job.training().epochs();
}

// The first compressed round, or kAutomatic.
uint64_t FreezeRound(const v1::JobSpec& job, uint64_t batches_per_epoch) {
  const v1::ApmSqueezeSpec& squeeze = job.apmsqueeze();
  if (squeeze.automatic_freeze()) return SqueezeOptions::kAutomatic;
  if (squeeze.warmup_rounds() > 0) return squeeze.warmup_rounds();
  const auto warmup = std::llround(double{squeeze.warmup_fraction()} *
                                   static_cast<double>(Rounds(job, batches_per_epoch)));
  return std::max<uint64_t>(1, static_cast<uint64_t>(warmup));
}

// Of the learning rate.
double WarmupTickets(const v1::JobSpec& job, uint64_t batches_per_epoch) {
  return double{job.schedule().warmup_epochs()} * static_cast<double>(batches_per_epoch);
}

// The rounds in which the variance forgets, and between two measures: a few of those in a span.
constexpr uint64_t kMeasuresInSpan = 8;
constexpr uint64_t kLongestMeasureRounds = 16;

uint64_t SpanRounds(const v1::JobSpec& job) {
  return static_cast<uint64_t>(std::llround(1 / (1 - double{job.update().beta2()})));
}

uint64_t MeasureRounds(const v1::JobSpec& job) {
  return std::clamp<uint64_t>(SpanRounds(job) / kMeasuresInSpan, 1, kLongestMeasureRounds);
}

}  // namespace

SegmentOptions MakeSegmentOptions(const v1::JobSpec& job, const SegmentPlan& plan,
                                  uint64_t batches_per_epoch) {
  const v1::UpdateSpec& update = job.update();
  const RuleTraits& traits = *FindRule(update.rule());
  SegmentOptions options;
  options.plan = plan;
  options.rule.rule = update.rule();
  options.rule.momentum = update.momentum();
  options.rule.weight_decay = traits.worker_half || traits.elastic ? 0 : update.weight_decay();
  if (traits.delay_compensation != Setting::kUnused) {
    options.rule.dc_adaptive = update.dc_adaptive();
    options.rule.dc_lambda = update.dc_lambda();
    if (update.dc_adaptive()) options.rule.dc_decay = update.dc_decay();
  }
  if (traits.moments != Setting::kUnused) {
    options.rule.beta1 = update.beta1();
    options.rule.beta2 = update.beta2();
    options.rule.epsilon = update.epsilon();
    options.rule.bias_correction = update.bias_correction();
  }
  options.rule.measured_lag = update.lag() == "measured";
  options.rule.statistics_weight = job.training().statistics_weight();
  options.rule.max_workers = job.training().max_workers();
  options.schedule = MakeSchedule(job, batches_per_epoch);
  options.synchronous = IsSynchronous(job) && plan.kind == TensorKind::kTrainable;
  options.members = options.synchronous ? job.training().workers() : 0;
  // Differences to what a worker holds need all of it.
  options.keep_all_held =
      traits.needs_held || !FindCodecTraits(job.compression().reply())->replies_carry_values;
  options.codec = MakeCodecSettings(job);
  options.seed = job.seed();
  if (traits.squeezes) {
    const v1::ApmSqueezeSpec& squeeze = job.apmsqueeze();
    options.rule.variance_floor = squeeze.variance_floor();
    options.rule.compress_gradients = squeeze.form() == "gradient";
    options.squeeze = {.freeze_round = FreezeRound(job, batches_per_epoch),
                       .fold_rounds = squeeze.fold_rounds(),
                       .measure_rounds = MeasureRounds(job),
                       .codec = CodecSet().Find(job.compression().push())->id()};
  }
  if (update.has_delay_threshold() && plan.kind == TensorKind::kTrainable) {
    options.delay_threshold = update.delay_threshold();
  }
  return options;
}

absl::Status CheckFreeze(const v1::JobSpec& job, uint64_t batches_per_epoch) {
  if (!FindRule(job.update().rule())->squeezes) return absl::OkStatus();
  const double warmup_rounds = WarmupTickets(job, batches_per_epoch) / job.training().workers();
  const v1::ApmSqueezeSpec& squeeze = job.apmsqueeze();
  if (squeeze.automatic_freeze()) {
    const uint64_t rounds = Rounds(job, batches_per_epoch);
    if (rounds > SpanRounds(job)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "apmsqueeze.automatic_freeze: compares the variance with what it was 1 / (1 - beta2), ",
        SpanRounds(job), " rounds before, and the job has ", rounds,
        " rounds: it would never be frozen; lower update.beta2, train longer, or set "
        "apmsqueeze.warmup_fraction instead"));
  }
  // A fraction is checked with the job: it needs no data.
  if (squeeze.warmup_rounds() == 0 || squeeze.warmup_rounds() >= warmup_rounds) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "apmsqueeze.warmup_rounds: ", squeeze.warmup_rounds(),
      ": would freeze the variance while the learning rate still rises, up to round ",
      std::ceil(warmup_rounds), " (schedule.warmup_epochs is ", job.schedule().warmup_epochs(),
      "); raise it, or shorten that"));
}

std::optional<PhaseControlOptions> MakePhaseControlOptions(const v1::JobSpec& job,
                                                           uint64_t batches_per_epoch) {
  if (!FindRule(job.update().rule())->squeezes) return std::nullopt;
  const uint64_t measure = MeasureRounds(job);
  return PhaseControlOptions{.automatic = job.apmsqueeze().automatic_freeze(),
                             .freeze_round = FreezeRound(job, batches_per_epoch),
                             .span_rounds = std::max<uint64_t>((SpanRounds(job) + measure / 2) / measure, 1) * measure,
                             .warmup_tickets = static_cast<uint64_t>(std::ceil(WarmupTickets(job, batches_per_epoch))),
                             .error_limit = job.apmsqueeze().error_limit()};
}

// Elastic rules complete batches by the exchange: a worker may hold those of the one
// under way and of the next beside what it fetched ahead.
uint32_t MaxOutstanding(const v1::JobSpec& job) {
  return kMaxOutstanding + 2 * job.update().local_steps();
}

uint64_t MostRoundsApart(const v1::JobSpec& job) {
  constexpr uint64_t kDrawnUpBeyond = 3;  // for who joins, and for a phase
  return HasViews(job) ? MaxOutstanding(job) + kDrawnUpBeyond : 2;
}

DealerOptions MakeDealerOptions(const v1::JobSpec& job, uint64_t batches_per_epoch) {
  const v1::TrainingSpec& training = job.training();
  DealerOptions options = {.batches_per_epoch = batches_per_epoch,
                           .epochs = training.epochs(),
                           .synchronous_workers = IsSynchronous(job) ? training.workers() : 0,
                           .views = HasViews(job),
                           .max_outstanding = MaxOutstanding(job)};
  if (training.has_staleness_bound()) options.staleness_bound = training.staleness_bound();
  if (job.schedule().ramp_epochs() > 0) {
    const double tickets = double{job.schedule().ramp_epochs()} * static_cast<double>(batches_per_epoch);
    options.ramp_tickets = static_cast<uint64_t>(std::llround(tickets));
    options.ramp_workers = training.workers();
  }
  return options;
}

}  // namespace foreshard
