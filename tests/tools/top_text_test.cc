#include "tools/top_text.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::StatusReply Lead(uint64_t batches) {
  v1::StatusReply reply;
  reply.set_job_name("tiny");
  reply.set_rule("dana_slim");
  reply.set_lead(true);
  reply.set_shards(1);
  reply.set_state("training");
  reply.set_server_incarnation(1);
  reply.set_epochs(2);
  reply.set_total_tickets(100);
  reply.set_completed_tickets(batches);
  reply.set_batch_size(10);
  reply.set_pushes_applied(batches);
  reply.add_segments();
  reply.set_push_bytes(1024 * batches);
  reply.set_push_uncompressed_bytes(31 * 1024 * batches);
  return reply;
}

v1::WorkerStatus* AddWorker(v1::StatusReply* reply, uint32_t slot, uint64_t examples, float loss, double staleness) {
  v1::WorkerStatus* worker = reply->add_workers();
  worker->set_worker(slot);
  worker->set_name("name-" + std::to_string(slot));
  worker->set_state("training");
  worker->set_examples(examples);
  worker->set_pushes(10);
  worker->set_staleness_mean(staleness);
  worker->mutable_figures()->set_steps(10);
  worker->mutable_figures()->set_loss(loss);
  worker->mutable_figures()->set_examples_per_second(7);
  worker->mutable_figures()->set_push_staleness(static_cast<float>(10 - staleness));
  return worker;
}

// Where the name is in the text, which must have it.
size_t Place(const std::string& text, const std::string& name) {
  EXPECT_THAT(text, HasSubstr(name));
  return text.find(name);
}

TEST(TopView, RatesAreWhatWasGainedBetweenLooks) {
  TopView view({"a:1"});
  v1::StatusReply reply = Lead(20);
  AddWorker(&reply, 0, 200, 0.5, 1);
  view.Add(1, {reply});
  // Of one look: what the worker reports.
  EXPECT_THAT(view.Text(TopOrder::kRate, 0), HasSubstr("speed        7.0 examples/s"));
  reply = Lead(40);
  AddWorker(&reply, 0, 360, 0.5, 1);
  view.Add(5, {reply});
  const std::string text = view.Text(TopOrder::kRate, 0);
  EXPECT_THAT(text, HasSubstr("tiny, dana_slim: training   epoch 0.8 of 2 (40.0 %)"));
  EXPECT_THAT(text, HasSubstr("waiting for  nothing"));
  EXPECT_THAT(text, HasSubstr("speed        50.0 examples/s   5.0 updates/s   1 of 1 workers train"));
  EXPECT_THAT(text, HasSubstr("pushed 5.0 KiB/s (31.0 times smaller)"));
  EXPECT_THAT(text, HasSubstr("name-0  training  40.0  "));
}

TEST(TopView, ForgetsWhatIsOlderThanTheWindow) {
  TopView view({"a:1"});
  for (int second = 0; second <= 60; ++second) view.Add(second, {Lead(second < 40 ? 0 : second - 40)});
  EXPECT_THAT(view.Text(TopOrder::kRate, 0), HasSubstr("1.0 updates/s"));
}

TEST(TopView, AServerThatBeganAnewIsNoBackwardRate) {
  TopView view({"a:1"});
  view.Add(0, {Lead(50)});
  v1::StatusReply anew = Lead(60);
  anew.set_server_incarnation(2);
  anew.set_push_bytes(10);
  view.Add(2, {anew});
  EXPECT_THAT(view.Text(TopOrder::kRate, 0), HasSubstr("- updates/s"));
  anew.set_completed_tickets(70);
  view.Add(4, {anew});
  EXPECT_THAT(view.Text(TopOrder::kRate, 0), HasSubstr("5.0 updates/s"));
}

TEST(TopView, SortsByWhatIsAskedFor) {
  TopView view({"a:1"});
  for (const uint64_t look : {0, 1}) {
    v1::StatusReply reply = Lead(10 * look);
    AddWorker(&reply, 0, 100 * look, 0.1f, 5);
    AddWorker(&reply, 1, 300 * look, 0.2f, 1);
    AddWorker(&reply, 2, 200 * look, std::numeric_limits<float>::quiet_NaN(), 3);
    view.Add(static_cast<double>(look), {reply});
  }
  const auto order = [&](TopOrder by) {
    const std::string text = view.Text(by, 0);
    std::vector<std::pair<size_t, int>> places;
    for (int worker = 0; worker < 3; ++worker) places.emplace_back(Place(text, "name-" + std::to_string(worker)), worker);
    std::sort(places.begin(), places.end());
    return std::vector<int>{places[0].second, places[1].second, places[2].second};
  };
  EXPECT_EQ(order(TopOrder::kRate), (std::vector<int>{1, 2, 0}));
  EXPECT_EQ(order(TopOrder::kStaleness), (std::vector<int>{0, 2, 1}));
  EXPECT_EQ(order(TopOrder::kLag), (std::vector<int>{1, 2, 0}));
  EXPECT_EQ(order(TopOrder::kLoss), (std::vector<int>{1, 0, 2}));
  EXPECT_EQ(order(TopOrder::kWorker), (std::vector<int>{0, 1, 2}));
}

TEST(TopView, SaysWhichServerIsAwayAndKeepsWhatItLastSaid) {
  TopView view({"a:1", "b:2"});
  const absl::Status away = absl::UnavailableError("server a:1: refused");
  view.Add(0, {away, away});
  EXPECT_THAT(view.Text(TopOrder::kRate, 0), HasSubstr("no server has answered yet"));
  EXPECT_THAT(view.Text(TopOrder::kRate, 0), HasSubstr("server b:2, which does not answer"));
  v1::StatusReply lead = Lead(20);
  lead.set_shards(2);
  AddWorker(&lead, 0, 200, 0.5, 1);
  v1::StatusReply other = Lead(20);
  other.set_lead(false);
  other.set_shard(1);
  view.Add(1, {lead, other});
  view.Add(71, {away, other});
  const std::string text = view.Text(TopOrder::kRate, 0);
  EXPECT_THAT(text, HasSubstr("waiting for  server a:1, away for 1:10"));
  EXPECT_THAT(text, HasSubstr("a:1     0       away for 1:10"));
  EXPECT_THAT(text, HasSubstr("name-0"));
  EXPECT_THAT(text, HasSubstr("epoch 0.4 of 2"));
  EXPECT_THAT(text, Not(HasSubstr("b:2, away")));
  lead.set_completed_tickets(30);
  view.Add(72, {lead, other});
  EXPECT_THAT(view.Text(TopOrder::kRate, 0), HasSubstr("waiting for  nothing"));
}

TEST(TopView, HasRoomForSoManyLinesAndSaysWhatIsLeftOut) {
  TopView view({"a:1"});
  v1::StatusReply reply = Lead(20);
  for (uint32_t worker = 0; worker < 30; ++worker) AddWorker(&reply, worker, worker, 0.5, 1);
  view.Add(0, {reply});
  for (const size_t rows : {14, 20, 40}) {
    const std::string text = view.Text(TopOrder::kWorker, rows);
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), static_cast<long>(rows));
    EXPECT_THAT(text, HasSubstr(" more workers"));
  }
  EXPECT_THAT(view.Text(TopOrder::kWorker, 0), Not(HasSubstr("more workers")));
  EXPECT_THAT(view.Text(TopOrder::kWorker, 20), HasSubstr("name-0"));
}

TEST(TopView, SendsNoCommandsToTheTerminal) {
  TopView view({"a:1"});
  v1::StatusReply reply = Lead(20);
  AddWorker(&reply, 0, 1, 0.5, 1)->set_name("\x1b[2J\xc2\x9b" "0m\r\b");
  view.Add(0, {reply});
  const std::string text = view.Text(TopOrder::kRate, 0);
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, Not(HasSubstr("\xc2\x9b")));
  EXPECT_THAT(text, HasSubstr("?[2J"));
}

}  // namespace
}  // namespace foreshard
