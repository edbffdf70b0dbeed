// What a worker tells about itself: its Prometheus series, and the figures that
// the lead shows. Fed by the training loop and by the parameter client.
//
//   Progress progress(metrics);
//   progress.Step(step);                       // the loop, after each push
//   progress.Acknowledged(push_figures);       // the client's thread
//   lead.Report(progress.Figures(client->traffic()));
#pragma once

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/core/steady_time.h"
#include "common/net/metrics.h"
#include "foreshard/v1/exchange.pb.h"
#include "worker/parameter_client.h"

namespace foreshard {

// One step as the loop saw it.
struct StepNotes {
  double loss = 0;
  double gradient_norm = 0;
  uint64_t examples = 0;
  bool finite = true;
  double compute_seconds = 0;
  double wait_seconds = 0;  // for parameters
};

// Thread-safe. Averages are exponential, over about twenty steps.
class Progress {
 public:
  // `metrics` may be null and outlives this object.
  Progress(WorkerMetrics* metrics, std::string metrics_address)
      : metrics_(metrics), metrics_address_(std::move(metrics_address)) {}

  void Step(const StepNotes& notes, SteadyTime now);
  void Acknowledged(const PushFigures& push);
  void ErrorFeedback(double ratio);

  // Also brings the byte counters of the metrics up to `traffic`.
  v1::WorkerFigures Figures(const Traffic& traffic);

 private:
  WorkerMetrics* const metrics_;
  const std::string metrics_address_;
  absl::Mutex mutex_;
  v1::WorkerFigures figures_ ABSL_GUARDED_BY(mutex_);
  double seconds_per_example_ ABSL_GUARDED_BY(mutex_) = 0;
  SteadyTime last_step_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
  uint64_t pushes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t applied_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t measured_ ABSL_GUARDED_BY(mutex_) = 0;
  Traffic counted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace foreshard
