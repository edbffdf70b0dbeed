// What messages between virtual workers and servers cost: latency, and the time on the
// links, each direction of which passes one message after another.
//
//   VirtualNetwork network(model, workers, shards);
//   double arrived = network.ToServer(worker, shard, bytes, now);
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tools/simulate/simulation.h"

namespace foreshard {

// Thread-compatible. Times are virtual seconds; calls come in the order of `now`.
class VirtualNetwork {
 public:
  VirtualNetwork(const NetworkModel& model, uint32_t workers, uint32_t shards) : model_(model) {
    worker_up_.assign(workers, {model.worker_bytes_per_second});
    worker_down_ = worker_up_;
    server_in_.assign(shards, {model.server_bytes_per_second});
    server_out_ = server_in_;
  }

  // Whether messages take any time.
  bool costs() const {
    return model_.latency_seconds > 0 || model_.worker_bytes_per_second > 0 ||
           model_.server_bytes_per_second > 0;
  }

  // When a message of `payload_bytes` that is sent now has arrived.
  double ToServer(uint32_t worker, uint32_t shard, uint64_t payload_bytes, double now) {
    const uint64_t bytes = payload_bytes + kMessageBytes;
    return server_in_[shard].Pass(worker_up_[worker].Pass(now, bytes) + model_.latency_seconds,
                                  bytes);
  }
  double ToWorker(uint32_t worker, uint32_t shard, uint64_t payload_bytes, double now) {
    const uint64_t bytes = payload_bytes + kMessageBytes;
    return worker_down_[worker].Pass(server_out_[shard].Pass(now, bytes) + model_.latency_seconds,
                                     bytes);
  }

 private:
  // About what a message is beyond its payload.
  static constexpr uint64_t kMessageBytes = 200;

  struct Link {
    double bytes_per_second = 0;  // 0: no limit
    double free_at = 0;

    double Pass(double now, uint64_t bytes) {
      if (bytes_per_second <= 0) return now;
      free_at = std::max(now, free_at) + static_cast<double>(bytes) / bytes_per_second;
      return free_at;
    }
  };

  const NetworkModel model_;
  std::vector<Link> worker_up_, worker_down_, server_in_, server_out_;
};

}  // namespace foreshard
