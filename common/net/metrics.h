// Prometheus metrics of both daemons: every series made at start, none ever removed.
// References are cached here; hot paths only add.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/net/http_endpoint.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace foreshard {

// Serves /metrics of a registry over HTTP until destroyed, and other pages beside it.
class MetricsEndpoint {
 public:
  // "127.0.0.1:0" picks a free port. UNAVAILABLE when the port is taken.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(
      const std::string& address, std::shared_ptr<prometheus::Registry> registry, HttpPages beside = {});
  // "host:port" as bound.
  const std::string& address() const { return http_->address(); }

 private:
  std::unique_ptr<HttpEndpoint> http_;
};

// All members are thread-safe prometheus-cpp objects owned by `registry`.
struct ServerMetrics {
  explicit ServerMetrics(const std::string& job, const std::string& rule, uint32_t shard);
  std::shared_ptr<prometheus::Registry> registry;
  prometheus::Histogram* push_staleness_updates;
  prometheus::Histogram* push_gap;
  prometheus::Histogram* push_surprise;
  prometheus::Counter *pushes_applied, *pushes_duplicate, *pushes_stale, *pushes_rejected,
      *pushes_skipped;
  prometheus::Counter *push_bytes, *push_uncompressed_bytes, *pull_bytes, *pull_uncompressed_bytes;
  prometheus::Histogram* apply_duration_seconds;
  prometheus::Histogram *exchange_duration_seconds, *fetch_duration_seconds;  // request_duration_seconds{method}
  prometheus::Gauge *parameter_version, *learning_rate, *epoch, *shards;
  prometheus::Gauge *workers_training, *workers_left, *workers_expired, *job_finished;
  prometheus::Histogram* round_duration_seconds;
  prometheus::Counter* round_absences;
  prometheus::Gauge *round, *compressed_phase, *server_error_ratio;
  prometheus::Gauge *inflight_bytes, *inflight_limit_bytes;
  prometheus::Counter* refusals;
  // With a state directory.
  prometheus::Counter *journal_events, *journal_bytes, *journal_syncs, *checkpoints, *checkpoint_failures;
  prometheus::Gauge *journal_failed, *checkpoint_age_seconds, *checkpoint_duration_seconds;
};

struct WorkerMetrics {
  explicit WorkerMetrics(const std::string& job, const std::string& rule,
                         const std::string& device);
  std::shared_ptr<prometheus::Registry> registry;
  prometheus::Histogram *pull_seconds, *compute_seconds, *encode_seconds, *push_seconds,
      *wait_seconds;  // step_duration_seconds{phase}
  prometheus::Counter *examples, *steps, *skipped_steps;
  prometheus::Gauge *loss, *gradient_norm, *error_feedback_ratio, *shards;
  // Over whole pushes.
  prometheus::Histogram *whole_push_staleness_updates, *whole_push_gap, *whole_push_surprise;
  prometheus::Counter *push_bytes, *push_uncompressed_bytes, *pull_bytes, *pull_uncompressed_bytes;
  // Evaluator only.
  prometheus::Gauge *eval_accuracy_master, *eval_accuracy_lookahead, *eval_loss_master,
      *eval_loss_lookahead;
};

}  // namespace foreshard
