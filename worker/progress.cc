#include "worker/progress.h"

namespace foreshard {
namespace {

constexpr double kWeight = 0.05;

// The first value stands for itself.
double Average(double average, double value, uint64_t values_before) {
  return values_before == 0 ? value : average + kWeight * (value - average);
}

}  // namespace

void Progress::Step(const StepNotes& notes, SteadyTime now) {
  absl::MutexLock lock(&mutex_);
  const uint64_t before = figures_.steps();
  const uint64_t finite_before = before - figures_.skipped_steps();
  figures_.set_steps(before + 1);
  figures_.set_examples(figures_.examples() + notes.examples);
  figures_.set_compute_seconds(
      static_cast<float>(Average(figures_.compute_seconds(), notes.compute_seconds, before)));
  figures_.set_wait_seconds(
      static_cast<float>(Average(figures_.wait_seconds(), notes.wait_seconds, before)));
  if (notes.finite) {
    figures_.set_loss(static_cast<float>(Average(figures_.loss(), notes.loss, finite_before)));
    figures_.set_gradient_norm(
        static_cast<float>(Average(figures_.gradient_norm(), notes.gradient_norm, finite_before)));
  } else {
    figures_.set_skipped_steps(figures_.skipped_steps() + 1);
  }
  if (last_step_ != SteadyTime::InfinitePast() && notes.examples > 0) {
    const double seconds =
        absl::ToDoubleSeconds(now - last_step_) / static_cast<double>(notes.examples);
    seconds_per_example_ = Average(seconds_per_example_, seconds, before - 1);
    if (seconds_per_example_ > 0) {
      figures_.set_examples_per_second(static_cast<float>(1 / seconds_per_example_));
    }
  }
  last_step_ = now;
  if (metrics_ == nullptr) return;
  metrics_->steps->Increment();
  metrics_->examples->Increment(static_cast<double>(notes.examples));
  metrics_->compute_seconds->Observe(notes.compute_seconds);
  metrics_->wait_seconds->Observe(notes.wait_seconds);
  if (notes.finite) {
    metrics_->loss->Set(figures_.loss());
    metrics_->gradient_norm->Set(notes.gradient_norm);
  } else {
    metrics_->skipped_steps->Increment();
  }
}

void Progress::Acknowledged(const PushFigures& push) {
  absl::MutexLock lock(&mutex_);
  figures_.set_encode_seconds(
      static_cast<float>(Average(figures_.encode_seconds(), push.encode_seconds, pushes_)));
  figures_.set_pull_seconds(
      static_cast<float>(Average(figures_.pull_seconds(), push.pull_seconds, pushes_)));
  figures_.set_push_seconds(
      static_cast<float>(Average(figures_.push_seconds(), push.push_seconds, pushes_)));
  ++pushes_;
  if (push.applied) {
    figures_.set_push_staleness(
        static_cast<float>(Average(figures_.push_staleness(), push.lag_updates, applied_)));
    ++applied_;
  }
  if (push.measured) {
    figures_.set_push_gap(static_cast<float>(Average(figures_.push_gap(), push.gap, measured_)));
    figures_.set_push_surprise(
        static_cast<float>(Average(figures_.push_surprise(), push.surprise, measured_)));
    ++measured_;
  }
  if (metrics_ == nullptr) return;
  metrics_->encode_seconds->Observe(push.encode_seconds);
  metrics_->pull_seconds->Observe(push.pull_seconds);
  metrics_->push_seconds->Observe(push.push_seconds);
  if (push.applied) metrics_->whole_push_staleness_updates->Observe(push.lag_updates);
  if (!push.measured) return;
  metrics_->whole_push_gap->Observe(push.gap);
  metrics_->whole_push_surprise->Observe(push.surprise);
}

void Progress::ErrorFeedback(double ratio) {
  absl::MutexLock lock(&mutex_);
  figures_.set_error_feedback_ratio(static_cast<float>(ratio));
  if (metrics_ != nullptr) metrics_->error_feedback_ratio->Set(ratio);
}

v1::WorkerFigures Progress::Figures(const Traffic& traffic) {
  absl::MutexLock lock(&mutex_);
  figures_.set_push_bytes(traffic.push_bytes);
  figures_.set_push_uncompressed_bytes(traffic.push_uncompressed_bytes);
  figures_.set_pull_bytes(traffic.pull_bytes);
  figures_.set_pull_uncompressed_bytes(traffic.pull_uncompressed_bytes);
  figures_.set_statistics_push_bytes(traffic.statistics_push_bytes);
  figures_.set_metrics_address(metrics_address_);
  if (metrics_ != nullptr) {
    const auto add = [](prometheus::Counter* counter, uint64_t now, uint64_t before) {
      counter->Increment(static_cast<double>(now - before));
    };
    add(metrics_->push_bytes, traffic.push_bytes, counted_.push_bytes);
    add(metrics_->push_uncompressed_bytes, traffic.push_uncompressed_bytes,
        counted_.push_uncompressed_bytes);
    add(metrics_->pull_bytes, traffic.pull_bytes, counted_.pull_bytes);
    add(metrics_->pull_uncompressed_bytes, traffic.pull_uncompressed_bytes,
        counted_.pull_uncompressed_bytes);
  }
  counted_ = traffic;
  return figures_;
}

}  // namespace foreshard
