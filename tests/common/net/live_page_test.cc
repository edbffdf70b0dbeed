#include "common/net/live_page.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace foreshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using nlohmann::json;

v1::StatusReply Lead() {
  v1::StatusReply reply;
  reply.set_job_name("tiny");
  reply.set_rule("dana_slim");
  reply.set_lead(true);
  reply.set_shards(2);
  reply.set_state("training");
  reply.set_server_incarnation(0xfedcba9876543210);
  reply.set_epochs(2);
  reply.set_total_tickets(100);
  reply.set_completed_tickets(50);
  reply.set_batch_size(64);
  reply.set_pushes_applied(40);
  reply.set_staleness_sum(60);
  reply.set_staleness_max(3);
  for (const uint64_t pushes : {10, 10, 10, 10}) reply.add_staleness_counts(pushes);
  reply.set_push_bytes(1000);
  reply.set_push_uncompressed_bytes(31000);
  reply.set_state_directory("/secret/place");
  reply.set_journal("buffered");
  reply.set_checkpoint_age_seconds(12);
  reply.add_segments()->set_elements(5);
  v1::WorkerStatus& worker = *reply.add_workers();
  worker.set_name("worker-7");
  worker.set_worker(7);
  worker.set_state("training");
  worker.set_device("cpu");
  worker.set_pushes(40);
  worker.set_pushes_per_second(4);
  worker.set_staleness_mean(1.5);
  worker.set_examples(3200);
  worker.mutable_figures()->set_steps(50);
  worker.mutable_figures()->set_loss(0.5);
  worker.mutable_figures()->set_examples_per_second(256);
  worker.mutable_figures()->set_push_bytes(2000);
  worker.mutable_figures()->set_push_uncompressed_bytes(62000);
  worker.mutable_figures()->set_push_staleness(2);
  v1::Evaluation& evaluation = *reply.add_evaluations();
  evaluation.set_parameters("master");
  evaluation.set_epoch(1);
  evaluation.set_accuracy(0.875);
  return reply;
}

json Parsed(const LiveDaemon& daemon, const std::vector<std::string>& addresses,
            const std::vector<absl::StatusOr<v1::StatusReply>>& replies) {
  return json::parse(LiveJson(daemon, addresses, replies));
}

TEST(LiveJson, HasTheFleetAtAGlance) {
  const json page = Parsed({.role = "server"}, {"a:1"}, {Lead()});
  EXPECT_EQ(page["daemon"]["role"], "server");
  EXPECT_EQ(page["job"]["name"], "tiny");
  EXPECT_EQ(page["job"]["epoch"], 1.0);
  EXPECT_EQ(page["totals"]["training"], 1);
  EXPECT_EQ(page["totals"]["batches"], 50);
  EXPECT_EQ(page["totals"]["loss"], 0.5);
  EXPECT_EQ(page["totals"]["examples_per_second"], 256);
  EXPECT_EQ(page["totals"]["updates_per_second"], 4);
  EXPECT_EQ(page["traffic"]["push_compression"], 31);
  EXPECT_TRUE(page["traffic"]["pull_compression"].is_null());
  EXPECT_EQ(page["staleness"]["mean"], 1.5);
  EXPECT_EQ(page["servers"][0]["incarnation"], "18364758544493064720");
  EXPECT_EQ(page["servers"][0]["checkpoint_age_seconds"], 12);
  EXPECT_EQ(page["workers"][0]["name"], "worker-7");
  EXPECT_EQ(page["workers"][0]["lag"], 2);
  EXPECT_EQ(page["workers"][0]["push_compression"], 31);
  EXPECT_EQ(page["evaluations"][0]["accuracy"], 0.875);
}

TEST(LiveJson, SaysNothingOfPathsOnTheMachine) {
  EXPECT_THAT(LiveJson({.role = "server"}, {"a:1"}, {Lead()}), Not(HasSubstr("secret")));
}

TEST(LiveJson, PutsStalenessIntoBucketsThatDouble) {
  v1::StatusReply reply = Lead();
  const auto buckets = [](const v1::StatusReply& of) {
    const json page = Parsed({.role = "server"}, {"a:1"}, {of});
    std::vector<std::vector<int64_t>> found;
    for (const json& bucket : page["staleness"]["buckets"]) {
      found.push_back({bucket["from"], bucket["to"].is_null() ? -1 : bucket["to"].get<int64_t>(), bucket["pushes"]});
    }
    return found;
  };
  using Row = std::vector<int64_t>;
  EXPECT_THAT(buckets(reply), ElementsAre(Row{0, 0, 10}, Row{1, 1, 10}, Row{2, 2, 10}, Row{3, 4, 10}));
  reply.clear_staleness_counts();
  EXPECT_THAT(buckets(reply), ElementsAre());
  // As many as there can be, the last of them for all beyond.
  for (int lag = 0; lag < 1026; ++lag) reply.add_staleness_counts(1);
  const auto all = buckets(reply);
  ASSERT_EQ(all.size(), 13u);
  EXPECT_EQ(all[11], (Row{513, 1024, 512}));
  EXPECT_EQ(all[12], (Row{1025, -1, 1}));
}

TEST(LiveJson, JoinsAllServersAndNamesThoseThatAreAway) {
  v1::StatusReply other = Lead();
  other.set_lead(false);
  other.set_shard(1);
  const json page = Parsed({.role = "worker", .name = "worker-7"}, {"a:1", "b:2", "c:3"},
                           {Lead(), other, absl::UnavailableError("server c:3: refused")});
  EXPECT_EQ(page["staleness"]["pushes"], 80);
  EXPECT_EQ(page["workers"].size(), 1u);
  EXPECT_EQ(page["workers"][0]["pushes"], 80);
  EXPECT_FALSE(page["servers"][2]["answers"]);
  EXPECT_EQ(page["servers"][2]["error"], "server c:3: refused");
}

TEST(LiveJson, WithoutTheLeadHasWhatTheOthersKnowAndNullForTheRest) {
  v1::StatusReply other = Lead();
  other.set_lead(false);
  other.mutable_workers(0)->clear_figures();
  const json page = Parsed({.role = "server"}, {"b:2"}, {other});
  EXPECT_EQ(page["job"]["name"], "tiny");
  EXPECT_FALSE(page["job"]["has_lead"]);
  EXPECT_TRUE(page["totals"]["loss"].is_null());
  EXPECT_TRUE(page["totals"]["examples_per_second"].is_null());
  EXPECT_EQ(page["workers"][0]["state"], "training");
  EXPECT_TRUE(page["workers"][0]["loss"].is_null());
  EXPECT_TRUE(page["workers"][0]["examples"].is_null());
}

TEST(LiveJson, HoldsWhenNobodyAnswers) {
  const json page = Parsed({.role = "worker"}, {"a:1"}, {absl::UnavailableError("away")});
  EXPECT_EQ(page["job"]["state"], "no server answers");
  EXPECT_TRUE(page["workers"].empty());
}

TEST(LiveJson, TakesAnyBytesAndNumbers) {
  v1::StatusReply reply = Lead();
  reply.mutable_workers(0)->set_name(std::string("</script>\"\xff\n\0", 13));
  reply.mutable_workers(0)->mutable_figures()->set_loss(std::numeric_limits<float>::quiet_NaN());
  reply.set_learning_rate(std::numeric_limits<double>::infinity());
  const json page = Parsed({.role = "server"}, {"a:1"}, {reply});
  EXPECT_TRUE(page["workers"][0]["loss"].is_null());
  EXPECT_TRUE(page["job"]["learning_rate"].is_null());
}

TEST(LiveJson, ListsSoManyWorkersAndNoMore) {
  v1::StatusReply reply = Lead();
  for (uint32_t i = 0; i < kLiveWorkers + 10; ++i) {
    v1::WorkerStatus& worker = *reply.add_workers();
    worker.set_worker(100 + i);
    worker.set_incarnation(i);
    worker.set_state(i < 5 ? "expired" : "training");
  }
  const json page = Parsed({.role = "server"}, {"a:1"}, {reply});
  EXPECT_EQ(page["workers"].size(), kLiveWorkers);
  EXPECT_EQ(page["workers_omitted"], 11);
  EXPECT_EQ(page["totals"]["workers"], kLiveWorkers + 11);
  EXPECT_EQ(page["workers"][1]["state"], "training");
}

TEST(LivePages, HaveNothingFromElsewhere) {
  const HttpPages pages = LivePages([] { return std::string("{}"); });
  ASSERT_EQ(pages.size(), 4u);
  for (const auto& [path, page] : pages) {
    std::string text = page.body();
    EXPECT_FALSE(text.empty()) << path;
    // The name of SVG's elements is no address that is fetched.
    if (const size_t at = text.find("http://www.w3.org/2000/svg"); at != std::string::npos) text.erase(at, 8);
    EXPECT_THAT(text, Not(HasSubstr("//www."))) << path;
    EXPECT_THAT(text, Not(HasSubstr("http://"))) << path;
    EXPECT_THAT(text, Not(HasSubstr("https://"))) << path;
  }
  EXPECT_THAT(pages.at("/").body(), HasSubstr("</html>"));
  EXPECT_THAT(pages.at("/live.js").body(), Not(HasSubstr("innerHTML")));
}

TEST(LivePages, AskOnceAtATimeHoweverManyLook) {
  std::atomic<int> asked{0}, at_once{0};
  const HttpPages pages = LivePages([&] {
    EXPECT_EQ(++at_once, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    --at_once;
    return std::to_string(++asked);
  });
  std::vector<std::thread> viewers;
  for (int i = 0; i < 8; ++i) {
    viewers.emplace_back([&] { EXPECT_NE(pages.at("/status.json").body(), ""); });
  }
  for (std::thread& viewer : viewers) viewer.join();
  EXPECT_GE(asked, 1);
  // What is fresh is not asked for again: of two calls in a row the second may be late, but not always.
  int same = 0;
  for (int i = 0; i < 10; ++i) same += pages.at("/status.json").body() == pages.at("/status.json").body();
  EXPECT_GT(same, 0);
}

}  // namespace
}  // namespace foreshard
