#include "common/net/live_page.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/net/fleet_figures.h"
#include "common/net/live_assets.h"
#include "common/net/version.h"
#include "nlohmann/json.hpp"

namespace foreshard {
namespace {

using nlohmann::ordered_json;

// Lags that servers count one by one; what is beyond has one count more (StatusReply.staleness_counts).
constexpr size_t kExactLags = 1024;
constexpr absl::Duration kFreshFor = absl::Milliseconds(500);

ordered_json Ratio(uint64_t uncompressed_bytes, uint64_t bytes) {
  return bytes == 0 ? ordered_json(nullptr) : ordered_json(CompressionRatio(uncompressed_bytes, bytes));
}

// 0, 1, 2, 3-4, 5-8, ... as the histogram of the metrics has them.
ordered_json Buckets(const std::vector<uint64_t>& counts) {
  ordered_json buckets = ordered_json::array();
  uint64_t from = 0;
  for (uint64_t to = 0; from < counts.size(); to = to == 0 ? 1 : 2 * to) {
    // The last count is of all lags from there on.
    const bool last = to + 1 >= counts.size();
    const uint64_t end = last ? counts.size() : to + 1;
    uint64_t pushes = 0;
    for (uint64_t lag = from; lag < end; ++lag) pushes += counts[lag];
    const bool beyond = last && counts.size() > kExactLags + 1;
    buckets.push_back({{"from", from}, {"to", beyond ? ordered_json(nullptr) : ordered_json(to)}, {"pushes", pushes}});
    from = end;
  }
  return buckets;
}

ordered_json Server(const std::string& address, const absl::StatusOr<v1::StatusReply>& reply) {
  ordered_json server = {{"address", address}, {"answers", reply.ok()}};
  if (!reply.ok()) {
    server["error"] = std::string(reply.status().message());
    return server;
  }
  server["shard"] = reply->shard();
  server["lead"] = reply->lead();
  server["state"] = reply->state();
  server["waiting_for"] = reply->waiting_for();
  // In text: JavaScript's numbers do not hold 64 bits.
  server["incarnation"] = std::to_string(reply->server_incarnation());
  server["uptime_seconds"] = reply->uptime_seconds();
  server["applied"] = reply->pushes_applied();
  server["duplicate"] = reply->pushes_duplicate();
  server["stale"] = reply->pushes_stale();
  server["rejected"] = reply->pushes_rejected();
  server["skipped"] = reply->pushes_skipped();
  server["staleness_mean"] =
      reply->pushes_applied() == 0 ? 0 : reply->staleness_sum() / static_cast<double>(reply->pushes_applied());
  server["push_bytes"] = reply->push_bytes();
  server["push_compression"] = Ratio(reply->push_uncompressed_bytes(), reply->push_bytes());
  server["pull_bytes"] = reply->pull_bytes();
  server["pull_compression"] = Ratio(reply->pull_uncompressed_bytes(), reply->pull_bytes());
  const bool keeps = !reply->state_directory().empty();
  server["journal"] = keeps ? ordered_json(reply->journal()) : ordered_json(nullptr);
  server["checkpoint_age_seconds"] =
      keeps && reply->checkpoint_age_seconds() >= 0 ? ordered_json(reply->checkpoint_age_seconds()) : ordered_json(nullptr);
  return server;
}

ordered_json Worker(const WorkerFigure& figure, bool led) {
  const bool told = led && figure.steps > 0;
  const auto known = [](bool is, double value) { return is ? ordered_json(value) : ordered_json(nullptr); };
  return {{"worker", figure.id},
          {"name", figure.name},
          {"device", figure.device},
          {"state", figure.state},
          {"waiting_for", figure.waiting_for},
          {"seconds_since_seen", figure.seconds_since_seen},
          {"steps", told ? ordered_json(figure.steps) : ordered_json(nullptr)},
          {"examples", led ? ordered_json(figure.examples) : ordered_json(nullptr)},
          {"examples_per_second", known(told, figure.examples_per_second)},
          {"pushes", figure.pushes},
          {"pushes_per_second", figure.pushes_per_second},
          {"staleness_mean", figure.staleness_mean},
          {"staleness_max", figure.staleness_max},
          {"lag", known(told, figure.push_staleness)},
          {"loss", known(told, figure.loss)},
          {"push_compression", Ratio(figure.push_uncompressed_bytes, figure.push_bytes)},
          {"error_feedback_ratio", known(told, figure.error_feedback_ratio)}};
}

// The newest evaluation of each kind of parameters.
ordered_json Evaluations(const RunFigures& figures) {
  ordered_json list = ordered_json::array();
  for (const char* parameters : {"master", "lookahead"}) {
    const EvaluationFigure* newest = nullptr;
    for (const EvaluationFigure& evaluation : figures.evaluations) {
      if (evaluation.parameters != parameters) continue;
      if (newest == nullptr || std::pair(evaluation.final, evaluation.epoch) >= std::pair(newest->final, newest->epoch)) {
        newest = &evaluation;
      }
    }
    if (newest == nullptr) continue;
    list.push_back({{"parameters", parameters},
                    {"epoch", newest->epoch},
                    {"accuracy", newest->accuracy},
                    {"loss", newest->loss},
                    {"final", newest->final}});
  }
  return list;
}

// What is shown to all who look within kFreshFor, computed once.
class Shared {
 public:
  explicit Shared(std::function<std::string()> compute) : compute_(std::move(compute)) {}

  std::string Text() {
    {
      absl::MutexLock lock(&mutex_);
      const auto there_or_mine = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !computing_ || !text_.empty(); };
      mutex_.Await(absl::Condition(&there_or_mine));
      // Whoever comes while it is computed anew gets the last one.
      if (computing_ || (!text_.empty() && absl::Now() - computed_ < kFreshFor)) return text_;
      computing_ = true;
    }
    std::string text = compute_();
    absl::MutexLock lock(&mutex_);
    text_ = std::move(text);
    computed_ = absl::Now();
    computing_ = false;
    return text_;
  }

 private:
  const std::function<std::string()> compute_;
  absl::Mutex mutex_;
  std::string text_ ABSL_GUARDED_BY(mutex_);
  absl::Time computed_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool computing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::string LiveJson(const LiveDaemon& daemon, const std::vector<std::string>& addresses,
                     const std::vector<absl::StatusOr<v1::StatusReply>>& replies) {
  std::vector<v1::StatusReply> answered;
  const v1::StatusReply* lead = nullptr;
  ordered_json servers = ordered_json::array();
  for (size_t i = 0; i < replies.size(); ++i) {
    servers.push_back(Server(addresses[i], replies[i]));
    if (!replies[i].ok()) continue;
    answered.push_back(*replies[i]);
    if (replies[i]->lead()) lead = &*replies[i];
  }
  const RunFigures figures = Combine(answered);
  const v1::StatusReply* speaker = lead != nullptr ? lead : answered.empty() ? nullptr : &answered.front();

  ordered_json json;
  json["daemon"] = {{"role", daemon.role}, {"name", daemon.name}, {"version", kVersion}};
  json["job"] = {{"name", figures.job_name},
                 {"rule", figures.rule},
                 {"state", speaker == nullptr ? "no server answers" : speaker->state()},
                 {"waiting_for", speaker == nullptr ? "" : speaker->waiting_for()},
                 {"has_lead", lead != nullptr},
                 {"finished", figures.finished},
                 {"finish_reason", figures.finish_reason},
                 {"epoch", figures.epoch_position()},
                 {"epochs", figures.epochs},
                 {"progress", figures.progress()},
                 {"learning_rate", figures.learning_rate},
                 {"round", speaker == nullptr ? 0 : speaker->round()},
                 {"round_members", speaker == nullptr ? 0 : speaker->round_members()},
                 {"compressed", speaker != nullptr && speaker->compressed_phase()}};
  double pushes_per_second = 0, examples_per_second = 0;
  for (const WorkerFigure& worker : figures.workers) {
    if (worker.state != "training") continue;
    pushes_per_second += worker.pushes_per_second;
    examples_per_second += worker.examples_per_second;
  }
  const std::optional<double> loss = figures.training_loss();
  json["totals"] = {
      {"shards", speaker == nullptr ? 0 : speaker->shards()},
      {"workers", figures.workers.size()},
      {"training", figures.training_workers()},
      {"batches", figures.batches},
      {"updates", figures.updates},
      {"examples", figures.examples},
      {"skipped", figures.skipped_batches},
      {"discarded", figures.discarded_batches},
      {"redealt", figures.redealt},
      {"loss", lead != nullptr && loss.has_value() ? ordered_json(*loss) : ordered_json(nullptr)},
      {"examples_per_second", lead == nullptr ? ordered_json(nullptr) : ordered_json(examples_per_second)},
      {"updates_per_second", figures.trainable_segments == 0
                                 ? ordered_json(nullptr)
                                 : ordered_json(pushes_per_second / static_cast<double>(figures.trainable_segments))},
      {"gap_mean", figures.gap_mean()},
      {"surprise_mean", figures.surprise_mean()}};
  json["traffic"] = {{"push_bytes", figures.push_bytes},
                     {"push_uncompressed_bytes", figures.push_uncompressed_bytes},
                     {"push_compression", Ratio(figures.push_uncompressed_bytes, figures.push_bytes)},
                     {"pull_bytes", figures.pull_bytes},
                     {"pull_uncompressed_bytes", figures.pull_uncompressed_bytes},
                     {"pull_compression", Ratio(figures.pull_uncompressed_bytes, figures.pull_bytes)}};
  json["staleness"] = {{"pushes", figures.pushes_applied},
                       {"mean", figures.staleness_mean()},
                       {"p50", StalenessQuantile(figures.staleness_counts, 0.5, figures.staleness_max)},
                       {"p99", StalenessQuantile(figures.staleness_counts, 0.99, figures.staleness_max)},
                       {"max", figures.staleness_max},
                       {"buckets", Buckets(figures.staleness_counts)}};
  json["evaluations"] = Evaluations(figures);
  json["servers"] = std::move(servers);
  std::vector<WorkerFigure> workers = figures.workers;
  std::stable_partition(workers.begin(), workers.end(),
                        [](const WorkerFigure& worker) { return worker.state == "training"; });
  ordered_json listed = ordered_json::array();
  for (size_t i = 0; i < std::min(workers.size(), kLiveWorkers); ++i) listed.push_back(Worker(workers[i], lead != nullptr));
  json["workers"] = std::move(listed);
  json["workers_omitted"] = workers.size() - std::min(workers.size(), kLiveWorkers);
  // Bytes that are no UTF-8, as names may hold them, are replaced; no number is infinite or NaN but as null.
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

HttpPages LivePages(std::function<std::string()> status) {
  const auto text = [](const char* content) { return [content] { return std::string(content); }; };
  const auto shared = std::make_shared<Shared>(std::move(status));
  return {{"/", {"text/html; charset=utf-8", text(kLiveHtml)}},
          {"/live.css", {"text/css; charset=utf-8", text(kLiveCss)}},
          {"/live.js", {"text/javascript; charset=utf-8", text(kLiveJs)}},
          {"/status.json", {"application/json", [shared] { return shared->Text(); }}}};
}

}  // namespace foreshard
