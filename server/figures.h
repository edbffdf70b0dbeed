// What a server counts about its trainable segments: for the admin RPC exactly,
// for Prometheus in its histograms. Statistics segments count bytes only.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/net/metrics.h"
#include "foreshard/v1/admin.pb.h"
#include "server/segment.h"

namespace foreshard {

// Lags are counted one by one up to this; the last count is of all beyond.
inline constexpr uint64_t kCountedLags = 1024;

// Thread-safe; the hot path adds to atomics.
class Figures {
 public:
  Figures(const std::string& job, const std::string& rule, uint32_t shard, uint32_t workers);

  // A push or skip that came through, with the message's size. `trainable` false:
  // a statistics segment.
  void NotePush(uint32_t worker, const Outcome& outcome, bool trainable, uint64_t message_bytes,
                uint64_t elements);
  void NoteRejected();
  // Parameters that went out for a trainable segment.
  void NotePull(uint64_t message_bytes, uint64_t elements);
  // A newer incarnation took the slot.
  void ResetWorker(uint32_t worker);
  // Called at intervals by one thread: renews the rates of push.
  void UpdateRates(double seconds);

  void FillStatus(v1::StatusReply* reply) const;
  void FillWorker(uint32_t worker, v1::WorkerStatus* status) const;

  ServerMetrics& metrics() { return metrics_; }

 private:
  struct Worker {
    std::atomic<uint64_t> pushes{0}, lag_sum{0}, lag_max{0};
    std::atomic<double> rate{0};   // pushes a second, an exponential average
    uint64_t pushes_at_rate = 0;   // of UpdateRates' thread
    bool rated = false;            // of UpdateRates' thread
  };

  ServerMetrics metrics_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::atomic<uint64_t>> lags_;
  std::atomic<uint64_t> applied_{0}, duplicate_{0}, stale_{0}, rejected_{0}, skipped_{0};
  std::atomic<uint64_t> lag_sum_{0}, lag_max_{0}, gap_count_{0};
  std::atomic<double> gap_sum_{0}, surprise_sum_{0}, learning_rate_{0};
  std::atomic<uint64_t> push_bytes_{0}, push_plain_bytes_{0}, pull_bytes_{0}, pull_plain_bytes_{0},
      statistics_bytes_{0};
};

}  // namespace foreshard
