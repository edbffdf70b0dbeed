#include "server/figures.h"

#include <algorithm>

namespace foreshard {
namespace {

// Weight of the newest interval in a worker's rate.
constexpr double kRateWeight = 0.3;

void RaiseTo(std::atomic<uint64_t>& maximum, uint64_t value) {
  uint64_t seen = maximum.load(std::memory_order_relaxed);
  while (seen < value && !maximum.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

void Add(std::atomic<uint64_t>& sum, uint64_t value) {
  sum.fetch_add(value, std::memory_order_relaxed);
}

}  // namespace

Figures::Figures(const std::string& job, const std::string& rule, uint32_t shard,
                 uint32_t workers)
    : metrics_(job, rule, shard), lags_(kCountedLags + 2) {
  for (uint32_t i = 0; i < workers; ++i) workers_.push_back(std::make_unique<Worker>());
}

void Figures::NotePush(uint32_t worker, const Outcome& outcome, bool trainable,
                       uint64_t message_bytes, uint64_t elements) {
  if (!trainable) {
    Add(statistics_bytes_, message_bytes);
    return;
  }
  Add(push_bytes_, message_bytes);
  metrics_.push_bytes->Increment(static_cast<double>(message_bytes));
  if (outcome.result != Result::kSkipped) {
    Add(push_plain_bytes_, elements * sizeof(float));
    metrics_.push_uncompressed_bytes->Increment(static_cast<double>(elements * sizeof(float)));
  }
  switch (outcome.result) {
    case Result::kDuplicate:
      Add(duplicate_, 1);
      metrics_.pushes_duplicate->Increment();
      return;
    case Result::kDiscarded:
    case Result::kLate:
      Add(stale_, 1);
      metrics_.pushes_stale->Increment();
      return;
    case Result::kSkipped:
      Add(skipped_, 1);
      metrics_.pushes_skipped->Increment();
      return;
    default:
      break;
  }
  Add(applied_, 1);
  metrics_.pushes_applied->Increment();
  Add(lags_[std::min(outcome.lag, kCountedLags + 1)], 1);
  Add(lag_sum_, outcome.lag);
  RaiseTo(lag_max_, outcome.lag);
  metrics_.push_staleness_updates->Observe(static_cast<double>(outcome.lag));
  Worker& figures = *workers_[worker];
  Add(figures.pushes, 1);
  Add(figures.lag_sum, outcome.lag);
  RaiseTo(figures.lag_max, outcome.lag);
  learning_rate_.store(outcome.eta, std::memory_order_relaxed);
  metrics_.learning_rate->Set(outcome.eta);
  if (outcome.sampled_elements > 0) {
    const double gap = outcome.gap();
    const double surprise = outcome.surprise();
    gap_sum_.fetch_add(gap, std::memory_order_relaxed);
    surprise_sum_.fetch_add(surprise, std::memory_order_relaxed);
    Add(gap_count_, 1);
    metrics_.push_gap->Observe(gap);
    metrics_.push_surprise->Observe(surprise);
  }
}

void Figures::NoteRejected() {
  Add(rejected_, 1);
  metrics_.pushes_rejected->Increment();
}

void Figures::NotePull(uint64_t message_bytes, uint64_t elements) {
  Add(pull_bytes_, message_bytes);
  Add(pull_plain_bytes_, elements * sizeof(float));
  metrics_.pull_bytes->Increment(static_cast<double>(message_bytes));
  metrics_.pull_uncompressed_bytes->Increment(static_cast<double>(elements * sizeof(float)));
}

void Figures::ResetWorker(uint32_t worker) {
  Worker& figures = *workers_[worker];
  figures.pushes = 0;
  figures.lag_sum = 0;
  figures.lag_max = 0;
  figures.rate = 0;
}

void Figures::UpdateRates(double seconds) {
  for (const auto& worker : workers_) {
    const uint64_t pushes = worker->pushes.load(std::memory_order_relaxed);
    // Fewer than before: a newer incarnation began at zero.
    const uint64_t before = pushes < worker->pushes_at_rate ? 0 : worker->pushes_at_rate;
    const double rate = static_cast<double>(pushes - before) / seconds;
    const double last = worker->rate.load(std::memory_order_relaxed);
    worker->rate.store(worker->rated ? last + kRateWeight * (rate - last) : rate,
                       std::memory_order_relaxed);
    worker->rated = pushes > 0;
    worker->pushes_at_rate = pushes;
  }
}

void Figures::FillStatus(v1::StatusReply* reply) const {
  reply->set_pushes_applied(applied_);
  reply->set_pushes_duplicate(duplicate_);
  reply->set_pushes_stale(stale_);
  reply->set_pushes_rejected(rejected_);
  reply->set_pushes_skipped(skipped_);
  // Trailing zeros are left out, but for the last count where there are any.
  size_t counts = lags_.size();
  while (counts > 0 && lags_[counts - 1] == 0) --counts;
  for (size_t i = 0; i < counts; ++i) reply->add_staleness_counts(lags_[i]);
  reply->set_staleness_sum(static_cast<double>(lag_sum_));
  reply->set_staleness_max(lag_max_);
  reply->set_gap_sum(gap_sum_);
  reply->set_surprise_sum(surprise_sum_);
  reply->set_gap_count(gap_count_);
  reply->set_push_bytes(push_bytes_);
  reply->set_push_uncompressed_bytes(push_plain_bytes_);
  reply->set_pull_bytes(pull_bytes_);
  reply->set_pull_uncompressed_bytes(pull_plain_bytes_);
  reply->set_statistics_push_bytes(statistics_bytes_);
  reply->set_learning_rate(learning_rate_);
}

void Figures::FillWorker(uint32_t worker, v1::WorkerStatus* status) const {
  const Worker& figures = *workers_[worker];
  const uint64_t pushes = figures.pushes;
  status->set_pushes(pushes);
  if (pushes > 0) {
    status->set_staleness_mean(static_cast<double>(figures.lag_sum) /
                               static_cast<double>(pushes));
  }
  status->set_staleness_max(figures.lag_max);
  status->set_pushes_per_second(figures.rate);
}

}  // namespace foreshard
