#include "common/net/metrics.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/net/version.h"
#include "prometheus/text_serializer.h"

namespace foreshard {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using Labels = std::map<std::string, std::string>;

const std::vector<double> kStalenessBounds = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256};
// RMS parameter distances: two bounds a decade.
const std::vector<double> kDistanceBounds = {1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4,
                                             1e-3, 3e-3, 1e-2, 3e-2, 0.1,  0.3};
const std::vector<double> kSecondsBounds = {5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01,
                                            0.025, 0.05, 0.1,   0.25, 0.5,  1,      2.5,  5, 20};

// Makes the series of one registry, all with the same labels.
class SeriesMaker {
 public:
  SeriesMaker(prometheus::Registry& registry, Labels labels)
      : registry_(registry), labels_(std::move(labels)) {}

  Counter* MakeCounter(const std::string& name, const std::string& help, const Labels& extra = {}) {
    return &prometheus::BuildCounter()
                .Name("foreshard_" + name)
                .Help(help)
                .Labels(labels_)
                .Register(registry_)
                .Add(extra);
  }
  Gauge* MakeGauge(const std::string& name, const std::string& help, const Labels& extra = {}) {
    return &prometheus::BuildGauge()
                .Name("foreshard_" + name)
                .Help(help)
                .Labels(labels_)
                .Register(registry_)
                .Add(extra);
  }
  Histogram* MakeHistogram(const std::string& name, const std::string& help,
                           const std::vector<double>& bounds, const Labels& extra = {}) {
    return &prometheus::BuildHistogram()
                .Name("foreshard_" + name)
                .Help(help)
                .Labels(labels_)
                .Register(registry_)
                .Add(extra, bounds);
  }
  void MakeBuildInfo() {
    MakeGauge("build_info", "Always 1; the version is in the label.", {{"version", kVersion}})
        ->Set(1);
  }

 private:
  prometheus::Registry& registry_;
  Labels labels_;
};

constexpr char kShards[] = "Servers that the job has, whether they are there or not.";
constexpr char kPushBytes[] = "Bytes of pushes of trainable segments, headers and scales included.";
constexpr char kPushPlain[] = "What the pushes of trainable segments would take as plain fp32.";
constexpr char kPullBytes[] = "Bytes of replies with parameters of trainable segments.";
constexpr char kPullPlain[] = "What the replies of trainable segments would take as plain fp32.";

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const std::string& address, std::shared_ptr<prometheus::Registry> registry, HttpPages beside) {
  beside["/metrics"] = {"text/plain; version=0.0.4; charset=utf-8",
                        [registry] { return prometheus::TextSerializer().Serialize(registry->Collect()); }};
  auto http = HttpEndpoint::Start(address, std::move(beside));
  if (!http.ok()) {
    return absl::Status(http.status().code(), absl::StrCat("metrics: ", http.status().message()));
  }
  auto endpoint = std::unique_ptr<MetricsEndpoint>(new MetricsEndpoint);
  endpoint->http_ = *std::move(http);
  return endpoint;
}

ServerMetrics::ServerMetrics(const std::string& job, const std::string& rule, uint32_t shard)
    : registry(std::make_shared<prometheus::Registry>()) {
  SeriesMaker make(*registry,
                   {{"job_name", job}, {"rule", rule}, {"shard", absl::StrCat(shard)}});
  make.MakeBuildInfo();
  push_staleness_updates = make.MakeHistogram(
      "push_staleness_updates",
      "Updates applied to the segment between sending parameters and applying the push computed "
      "at them.",
      kStalenessBounds);
  push_gap = make.MakeHistogram(
      "push_gap", "RMS distance of the segment's parameters from those the push was computed at.",
      kDistanceBounds);
  push_surprise = make.MakeHistogram(
      "push_surprise",
      "RMS distance of the reply the rule would have given just before the push from the "
      "parameters it was computed at.",
      kDistanceBounds);

  const char* pushes = "Pushes of trainable segments, by what became of them.";
  pushes_applied = make.MakeCounter("pushes_total", pushes, {{"result", "applied"}});
  pushes_duplicate = make.MakeCounter("pushes_total", pushes, {{"result", "duplicate"}});
  pushes_stale = make.MakeCounter("pushes_total", pushes, {{"result", "stale"}});
  pushes_rejected = make.MakeCounter("pushes_total", pushes, {{"result", "rejected"}});
  pushes_skipped = make.MakeCounter("pushes_total", pushes, {{"result", "skipped"}});
  push_bytes = make.MakeCounter("push_bytes_total", kPushBytes);
  push_uncompressed_bytes = make.MakeCounter("push_uncompressed_bytes_total", kPushPlain);
  pull_bytes = make.MakeCounter("pull_bytes_total", kPullBytes);
  pull_uncompressed_bytes = make.MakeCounter("pull_uncompressed_bytes_total", kPullPlain);

  apply_duration_seconds = make.MakeHistogram(
      "apply_duration_seconds", "Time under a segment's lock to apply a push and write its reply.",
      kSecondsBounds);
  const char* requests = "Time from a request's arrival to its reply, by method.";
  exchange_duration_seconds = make.MakeHistogram("request_duration_seconds", requests,
                                                 kSecondsBounds, {{"method", "Exchange"}});
  fetch_duration_seconds = make.MakeHistogram("request_duration_seconds", requests, kSecondsBounds,
                                              {{"method", "Fetch"}});
  parameter_version = make.MakeGauge(
      "parameter_version", "Updates applied to the shard's first trainable segment.");
  learning_rate = make.MakeGauge("learning_rate", "Learning rate of the last update.");
  epoch = make.MakeGauge("epoch", "Epochs by the schedule's clock (highest ticket seen).");

  shards = make.MakeGauge("shards", kShards);
  const char* workers = "Workers this server knows, by state.";
  workers_training = make.MakeGauge("workers", workers, {{"state", "training"}});
  workers_left = make.MakeGauge("workers", workers, {{"state", "left"}});
  workers_expired = make.MakeGauge("workers", workers, {{"state", "expired"}});
  job_finished = make.MakeGauge("job_finished", "Shard 0: 1 once the job is complete or was stopped; others do not know.");
  round_duration_seconds = make.MakeHistogram(
      "round_duration_seconds", "Synchronous rules: time from one closed round to the next.",
      kSecondsBounds);
  round_absences = make.MakeCounter(
      "round_absences_total", "Synchronous rules: members that a segment's round was closed without, "
                              "after training.straggler_seconds.");
  round = make.MakeGauge("round", "Synchronous rules: the open round of the shard's first segment.");
  compressed_phase = make.MakeGauge(
      "compressed_phase", "apmsqueeze: 1 once the variance is frozen and rounds are compressed.");
  server_error_ratio = make.MakeGauge(
      "server_error_ratio",
      "apmsqueeze: norm of what compression has kept back on this server over the momentum's.");
  inflight_bytes =
      make.MakeGauge("inflight_bytes", "Bytes of requests held in memory at this moment.");
  refusals = make.MakeCounter(
      "refusals_total", "Exchanges and fetches refused for want of room (servers.inflight_bytes); they come again.");
  journal_events = make.MakeCounter("journal_events_total", "Events written to the journal.");
  journal_bytes = make.MakeCounter("journal_bytes_total", "Bytes of the journal's records.");
  journal_syncs = make.MakeCounter("journal_syncs_total", "Times the journal waited for the disk.");
  journal_failed = make.MakeGauge("journal_failed", "1 once the journal could not be written any more.");
  checkpoints = make.MakeCounter("checkpoints_total", "Checkpoints written.");
  checkpoint_failures = make.MakeCounter("checkpoint_failures_total", "Checkpoints that could not be written.");
  checkpoint_age_seconds = make.MakeGauge(
      "checkpoint_age_seconds",
      "With a state directory: since the newest checkpoint, or the start where there is none yet.");
  checkpoint_duration_seconds = make.MakeGauge("checkpoint_duration_seconds", "What the newest checkpoint took.");
  inflight_limit_bytes = make.MakeGauge(
      "inflight_limit_bytes", "Above so many the server refuses requests (servers.inflight_bytes).");
}

WorkerMetrics::WorkerMetrics(const std::string& job, const std::string& rule,
                             const std::string& device)
    : registry(std::make_shared<prometheus::Registry>()) {
  SeriesMaker make(*registry, {{"job_name", job}});
  make.MakeBuildInfo();
  make.MakeGauge("worker_info", "Always 1; device and update rule are in the labels.",
                 {{"device", device}, {"rule", rule}})
      ->Set(1);
  const auto phase = [&](const char* name) {
    return make.MakeHistogram("step_duration_seconds", "Time of each phase of a training step.",
                              kSecondsBounds, {{"phase", name}});
  };
  pull_seconds = phase("pull");
  compute_seconds = phase("compute");
  encode_seconds = phase("encode");
  push_seconds = phase("push");
  wait_seconds = phase("wait");
  examples = make.MakeCounter("examples_total", "Training examples consumed.");
  steps = make.MakeCounter("steps_total", "Training steps finished.");
  skipped_steps = make.MakeCounter("skipped_steps_total",
                                   "Steps whose gradient was not finite and was not pushed.");
  loss = make.MakeGauge("loss", "Exponential average of the batch loss.");
  gradient_norm = make.MakeGauge("gradient_norm", "Global norm of the last gradient, unclipped.");
  shards = make.MakeGauge("shards", kShards);
  error_feedback_ratio = make.MakeGauge(
      "error_feedback_ratio", "Norm of the error feedback over the norm of what is pushed.");
  whole_push_staleness_updates = make.MakeHistogram(
      "whole_push_staleness_updates",
      "Mean over a push's elements of the updates applied between its parameters and itself.",
      kStalenessBounds);
  whole_push_gap = make.MakeHistogram(
      "whole_push_gap",
      "RMS distance, over all segments, of the parameters from those the push was computed at.",
      kDistanceBounds);
  whole_push_surprise = make.MakeHistogram(
      "whole_push_surprise",
      "RMS distance, over all segments, of the replies the rule would have given just before the "
      "push from the parameters it was computed at.",
      kDistanceBounds);
  push_bytes = make.MakeCounter("push_bytes_total", kPushBytes);
  push_uncompressed_bytes = make.MakeCounter("push_uncompressed_bytes_total", kPushPlain);
  pull_bytes = make.MakeCounter("pull_bytes_total", kPullBytes);
  pull_uncompressed_bytes = make.MakeCounter("pull_uncompressed_bytes_total", kPullPlain);

  const auto evaluation = [&](const char* name, const char* help, const char* parameters) {
    return make.MakeGauge(name, help, {{"parameters", parameters}});
  };
  const char* accuracy = "Share of test examples classified rightly at the last evaluation.";
  const char* test_loss = "Mean loss over the test examples at the last evaluation.";
  eval_accuracy_master = evaluation("eval_accuracy", accuracy, "master");
  eval_accuracy_lookahead = evaluation("eval_accuracy", accuracy, "lookahead");
  eval_loss_master = evaluation("eval_loss", test_loss, "master");
  eval_loss_lookahead = evaluation("eval_loss", test_loss, "lookahead");
}

}  // namespace foreshard
