// The live page of a daemon: what its fleet does, at a glance, beside /metrics and under the same rules.
//
//   HttpPages pages = LivePages([server] {
//     return LiveJson({.role = "server"}, {address}, {server->status()});
//   });
//   MetricsEndpoint::Start("127.0.0.1:9090", registry, pages);
//
// "/" is the page, with "/live.css" and "/live.js"; "/status.json" is what it shows. Nothing comes from
// elsewhere. The JSON has names, states and figures: no paths, no tokens, no parameters.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/net/http_endpoint.h"
#include "foreshard/v1/admin.pb.h"

namespace foreshard {

// Whose page it is.
struct LiveDaemon {
  std::string role;  // "server", "worker", "evaluator"
  std::string name;  // of a worker or evaluator, as the fleet knows it
};

// Workers that the JSON lists; those that train come first. All count in its sums.
inline constexpr size_t kLiveWorkers = 256;

// `replies[i]` is what `addresses[i]` answered; a server's own page has one of each. One line of JSON:
//
//   daemon       {role, name, version}
//   job          {name, rule, state, waiting_for, finished, finish_reason, epoch, epochs, progress,
//                learning_rate, round, round_members, compressed, has_lead}
//   totals       counters since the servers' start {batches, updates, examples, skipped, discarded, redealt, loss,
//                workers, training, examples_per_second, updates_per_second, shards, gap_mean, surprise_mean}
//   traffic      {push_bytes, push_uncompressed_bytes, push_compression, the same of pull}
//   staleness    {pushes, mean, p50, p99, max, buckets [{from, to, pushes}]}; `to` null: and beyond
//   evaluations  [{parameters, epoch, accuracy, loss}], the newest of each kind
//   servers      [{address, answers, error, shard, state, waiting_for, incarnation, uptime_seconds, pushes and what
//                became of them, staleness_mean, bytes, checkpoint_age_seconds, journal}]
//   workers      [{worker, name, device, state, waiting_for, seconds_since_seen, steps, examples,
//                examples_per_second, pushes, pushes_per_second, staleness_mean, staleness_max, lag, loss,
//                push_compression, error_feedback_ratio}], workers_omitted
//
// Rates are as the daemons report them. What is not known is null.
std::string LiveJson(const LiveDaemon& daemon, const std::vector<std::string>& addresses,
                     const std::vector<absl::StatusOr<v1::StatusReply>>& replies);

// `status` gives the JSON; it is asked at most twice a second, by one thread at a time, however many look.
HttpPages LivePages(std::function<std::string()> status);

}  // namespace foreshard
