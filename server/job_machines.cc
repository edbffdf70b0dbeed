#include "server/job_machines.h"

#include <algorithm>
#include <cmath>

#include "common/core/catalogue.h"
#include "common/net/job_parts.h"

namespace foreshard {
namespace {

constexpr uint32_t kMaxOutstanding = 8;

// Elastic rules complete batches by the exchange: a worker may hold those of the one
// under way and of the next beside what it fetched ahead.
uint32_t MaxOutstanding(const v1::JobSpec& job) {
  return kMaxOutstanding + 2 * job.update().local_steps();
}

// The first compressed round.
uint64_t FreezeRound(const v1::JobSpec& job, uint64_t batches_per_epoch) {
  const v1::ApmSqueezeSpec& squeeze = job.apmsqueeze();
  if (squeeze.warmup_rounds() > 0) return squeeze.warmup_rounds();
  const uint64_t rounds = batches_per_epoch / job.training().workers() * job.training().epochs();
  const auto warmup = std::llround(double{squeeze.warmup_fraction()} * static_cast<double>(rounds));
  return std::max<uint64_t>(1, static_cast<uint64_t>(warmup));
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
                       .codec = CodecSet().Find(job.compression().push())->id()};
  }
  if (update.has_delay_threshold() && plan.kind == TensorKind::kTrainable) {
    options.delay_threshold = update.delay_threshold();
  }
  return options;
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
