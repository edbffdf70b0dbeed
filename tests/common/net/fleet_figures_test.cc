#include "common/net/fleet_figures.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;

// Two servers of one job, as they would answer in the middle of it.
std::vector<v1::StatusReply> TwoServers() {
  std::vector<v1::StatusReply> servers(2);
  v1::StatusReply& lead = servers[0];
  lead.set_lead(true);
  lead.set_job_name("j");
  lead.set_rule("dana_slim");
  lead.set_epochs(3);
  lead.set_completed_epochs(1);
  lead.set_total_tickets(3 * 8);
  lead.set_completed_tickets(8 + 4);
  lead.set_redealt_tickets(2);
  lead.set_batch_size(16);
  lead.set_train_examples(120);  // 7 batches of 16 and one of 8
  for (v1::StatusReply& server : servers) {
    server.set_pushes_applied(10);
    server.set_staleness_sum(15);
    server.set_staleness_max(4);
    for (uint64_t count : {2, 3, 3, 1, 1}) server.add_staleness_counts(count);
    server.set_gap_sum(2);
    server.set_gap_count(10);
    server.set_push_bytes(100);
    server.set_push_uncompressed_bytes(3200);
    server.set_pull_bytes(1000);
    server.set_pull_uncompressed_bytes(1000);
    for (bool statistic : {false, false, true}) server.add_segments()->set_statistic(statistic);
    server.mutable_segments(1)->set_segment(7);
    server.mutable_segments(1)->set_staleness_mean(1.5);
    server.mutable_segments(1)->set_surprise_mean(0.25);
    v1::WorkerStatus* worker = server.add_workers();
    worker->set_worker(1);
    worker->set_incarnation(77);
    worker->set_pushes(5);
    worker->set_staleness_mean(1);
  }
  servers[1].mutable_workers(0)->set_pushes(15);
  servers[1].mutable_workers(0)->set_staleness_mean(3);
  servers[1].set_staleness_max(9);
  v1::WorkerStatus* worker = lead.mutable_workers(0);
  worker->set_name("worker-1");
  worker->set_state("training");
  worker->mutable_figures()->set_steps(12);
  worker->mutable_figures()->set_loss(0.5);
  worker->set_examples(184);
  // What it reported itself is of another moment, and is not taken.
  worker->mutable_figures()->set_examples(190);
  return servers;
}

TEST(Combine, SumsOverServersAndTakesProgressFromTheLead) {
  const RunFigures figures = Combine(TwoServers());
  EXPECT_EQ(figures.job_name, "j");
  EXPECT_EQ(figures.batches, 12u);
  EXPECT_EQ(figures.updates, 12u);
  EXPECT_EQ(figures.skipped_batches, 0u);
  EXPECT_EQ(figures.redealt, 2u);
  EXPECT_DOUBLE_EQ(figures.progress(), 0.5);
  EXPECT_DOUBLE_EQ(figures.epoch_position(), 1.5);
  // One whole epoch, with its short batch, and four batches.
  EXPECT_EQ(figures.examples, 120u + 4 * 16);
  EXPECT_EQ(figures.pushes_applied, 20u);
  EXPECT_DOUBLE_EQ(figures.staleness_mean(), 1.5);
  EXPECT_EQ(figures.staleness_max, 9u);
  EXPECT_THAT(figures.staleness_counts, ElementsAre(4, 6, 6, 2, 2));
  EXPECT_DOUBLE_EQ(figures.gap_mean(), 0.2);
  ASSERT_EQ(figures.segments.size(), 6u);
  EXPECT_EQ(figures.segments[4].id, 7u);
  EXPECT_EQ(figures.segments[4].staleness_mean, 1.5);
  EXPECT_EQ(figures.segments[4].surprise_mean, 0.25);
  EXPECT_TRUE(figures.segments[5].statistic);
  EXPECT_EQ(figures.push_bytes, 200u);
  EXPECT_DOUBLE_EQ(CompressionRatio(figures.push_uncompressed_bytes, figures.push_bytes), 32);
}

TEST(Combine, JoinsAWorkerOverServers) {
  const RunFigures figures = Combine(TwoServers());
  ASSERT_EQ(figures.workers.size(), 1u);
  const WorkerFigure& worker = figures.workers[0];
  EXPECT_EQ(worker.id, 1u);
  EXPECT_EQ(worker.name, "worker-1");
  EXPECT_EQ(worker.pushes, 20u);
  EXPECT_DOUBLE_EQ(worker.staleness_mean, (5 * 1 + 15 * 3) / 20.0);
  EXPECT_EQ(worker.examples, 184u);
  EXPECT_DOUBLE_EQ(figures.training_loss().value(), 0.5);
  EXPECT_EQ(figures.training_workers(), 1u);
}

TEST(Combine, BatchesWithoutAFiniteGradientAreNoUpdates) {
  std::vector<v1::StatusReply> servers = TwoServers();
  // Of 5 whole batches and of one that half of the 4 trainable segments know of.
  servers[0].set_pushes_skipped(2 * 6);
  servers[1].set_pushes_skipped(2 * 5);
  RunFigures figures = Combine(servers);
  EXPECT_EQ(figures.skipped_batches, 5u);
  EXPECT_EQ(figures.updates, 12u - 5);
  EXPECT_DOUBLE_EQ(figures.progress(), 0.5);
  EXPECT_FALSE(figures.diverged());
  servers[0].set_pushes_skipped(2 * 7);
  servers[1].set_pushes_skipped(2 * 7);
  figures = Combine(servers);
  EXPECT_EQ(figures.updates, 12u - 7);
  EXPECT_TRUE(figures.diverged());
  // More than the lead had completed when it was asked, a moment earlier.
  servers[1].set_pushes_skipped(2 * 30);
  EXPECT_EQ(Combine(servers).skipped_batches, 12u);
  EXPECT_EQ(Combine(servers).updates, 0u);
  // Nothing is taken off twice.
  servers[1].set_pushes_stale(2 * 30);
  EXPECT_EQ(Combine(servers).updates, 0u);
  EXPECT_EQ(Combine(servers).discarded_batches, 0u);
}

// Elastic rules: the servers hear nothing of a local step that is left out.
TEST(Combine, StepsThatWorkersLeftOutAreNoUpdates) {
  std::vector<v1::StatusReply> servers = TwoServers();
  servers[0].mutable_workers(0)->mutable_figures()->set_skipped_steps(3);
  servers[0].add_past_workers()->mutable_figures()->set_skipped_steps(2);
  EXPECT_EQ(Combine(servers).skipped_batches, 5u);
  EXPECT_EQ(Combine(servers).updates, 12u - 5);
  // Other rules say it to both.
  for (v1::StatusReply& server : servers) server.set_pushes_skipped(2 * 5);
  EXPECT_EQ(Combine(servers).skipped_batches, 5u);
  servers[0].mutable_workers(0)->mutable_figures()->set_skipped_steps(100);
  EXPECT_EQ(Combine(servers).skipped_batches, 12u);
}

// Segments decide one by one whether a gradient came too late.
TEST(Combine, DiscardedPushesAreCountedInWholeGradients) {
  std::vector<v1::StatusReply> servers = TwoServers();
  servers[0].set_pushes_stale(2 * 3);
  servers[1].set_pushes_stale(2 * 2 + 1);
  servers[0].set_pushes_skipped(2 * 4);
  servers[1].set_pushes_skipped(2 * 4);
  const RunFigures figures = Combine(servers);
  EXPECT_EQ(figures.skipped_batches, 4u);
  EXPECT_EQ(figures.discarded_batches, 2u);  // 11 pushes of 4 segments
  EXPECT_EQ(figures.updates, 12u - 4 - 2);
  EXPECT_EQ(figures.pushes_stale, 11u);
}

TEST(RunFigures, DivergedIsMoreThanHalfOfTheBatches) {
  RunFigures figures;
  EXPECT_FALSE(figures.diverged());
  figures.batches = 10;
  figures.skipped_batches = 5;
  EXPECT_FALSE(figures.diverged());
  figures.skipped_batches = 6;
  EXPECT_TRUE(figures.diverged());
  figures.batches = 11;
  EXPECT_TRUE(figures.diverged());
  figures.skipped_batches = 5;
  EXPECT_FALSE(figures.diverged());
}

TEST(Combine, KeepsEarlierStartsOfASlotApart) {
  std::vector<v1::StatusReply> servers = TwoServers();
  v1::WorkerStatus* past = servers[0].add_past_workers();
  past->set_worker(1);
  past->set_incarnation(99);  // incarnations do not rise
  past->set_name("worker-1, before");
  past->set_state("expired");
  past->set_examples(48);
  past->set_pushes(6);
  // The other server has not heard yet that it is gone.
  v1::WorkerStatus* elsewhere = servers[1].add_workers();
  elsewhere->set_worker(1);
  elsewhere->set_incarnation(99);
  elsewhere->set_pushes(5);
  // The lead comes last, and is still the one that says.
  std::swap(servers[0], servers[1]);
  const RunFigures figures = Combine(servers);
  ASSERT_EQ(figures.workers.size(), 1u);
  EXPECT_EQ(figures.workers[0].incarnation, 77u);
  ASSERT_EQ(figures.past_workers.size(), 1u);
  EXPECT_EQ(figures.past_workers[0].incarnation, 99u);
  EXPECT_EQ(figures.past_workers[0].examples, 48u);
  EXPECT_EQ(figures.past_workers[0].pushes, 11u);
  EXPECT_EQ(figures.past_workers[0].state, "expired");
  EXPECT_EQ(figures.training_workers(), 1u);
  // Whoever it was, there is something to call it by.
  servers[1].mutable_past_workers(0)->clear_name();
  servers[1].mutable_workers(0)->clear_name();
  const RunFigures nameless = Combine(servers);
  EXPECT_EQ(nameless.past_workers[0].name, "worker in slot 1");
  EXPECT_EQ(nameless.workers[0].name, "worker in slot 1");
}

TEST(Combine, WhomTheLeadHasForgottenHoldsNoSlot) {
  std::vector<v1::StatusReply> servers = TwoServers();
  v1::WorkerStatus* older = servers[1].add_workers();
  older->set_worker(1);
  older->set_incarnation(99);
  // It came to nothing since the servers were started again.
  const RunFigures nothing = Combine(servers);
  ASSERT_EQ(nothing.workers.size(), 1u);
  EXPECT_EQ(nothing.workers[0].incarnation, 77u);
  EXPECT_EQ(nothing.past_workers.size(), 0u);
  older->set_pushes(5);
  const RunFigures figures = Combine(servers);
  ASSERT_EQ(figures.workers.size(), 1u);
  EXPECT_EQ(figures.workers[0].incarnation, 77u);
  ASSERT_EQ(figures.past_workers.size(), 1u);
  EXPECT_EQ(figures.past_workers[0].pushes, 5u);
  EXPECT_EQ(figures.past_workers[0].name, "worker in slot 1");
}

TEST(Combine, WithoutServersOrProgressEverythingIsZero) {
  const RunFigures figures = Combine({});
  EXPECT_EQ(figures.progress(), 0);
  EXPECT_EQ(figures.staleness_mean(), 0);
  EXPECT_EQ(figures.gap_mean(), 0);
  EXPECT_FALSE(figures.training_loss().has_value());
}

TEST(Combine, ExamplesOfACompleteJobAreEpochsTimesExamples) {
  std::vector<v1::StatusReply> servers = TwoServers();
  servers[0].set_completed_epochs(3);
  servers[0].set_completed_tickets(24);
  EXPECT_EQ(Combine(servers).examples, 360u);
  // Synchronous: the rest of an epoch that makes no whole round is not dealt.
  servers[0].set_total_tickets(3 * 6);
  servers[0].set_completed_tickets(18);
  EXPECT_EQ(Combine(servers).examples, 3u * 6 * 16);
}

TEST(StalenessQuantile, IsTheSmallestLagThatCoversTheFraction) {
  const std::vector<uint64_t> counts = {50, 40, 9, 1};
  EXPECT_EQ(StalenessQuantile(counts, 0.5, 3), 0u);
  EXPECT_EQ(StalenessQuantile(counts, 0.51, 3), 1u);
  EXPECT_EQ(StalenessQuantile(counts, 0.99, 3), 2u);
  EXPECT_EQ(StalenessQuantile(counts, 1.0, 3), 3u);
  // The last entry holds all beyond: the largest seen stands for them.
  EXPECT_EQ(StalenessQuantile(counts, 1.0, 17), 17u);
  EXPECT_EQ(StalenessQuantile({}, 0.5, 0), 0u);
  EXPECT_EQ(StalenessQuantile(std::vector<uint64_t>{0, 0}, 0.5, 0), 0u);
}

TEST(Combine, SumsRatesAndTakesWhatTheLeadWasTold) {
  std::vector<v1::StatusReply> servers = TwoServers();
  servers[0].mutable_workers(0)->set_pushes_per_second(3);
  servers[0].mutable_workers(0)->set_seconds_since_seen(0.5);
  servers[0].mutable_workers(0)->mutable_figures()->set_push_bytes(100);
  servers[0].mutable_workers(0)->mutable_figures()->set_push_uncompressed_bytes(3100);
  servers[1].mutable_workers(0)->set_pushes_per_second(4);
  servers[1].mutable_workers(0)->set_seconds_since_seen(9);
  const RunFigures figures = Combine(servers);
  ASSERT_EQ(figures.workers.size(), 1u);
  EXPECT_EQ(figures.workers[0].pushes_per_second, 7);
  EXPECT_EQ(figures.workers[0].seconds_since_seen, 0.5);
  EXPECT_EQ(figures.workers[0].push_bytes, 100u);
  EXPECT_EQ(figures.workers[0].push_uncompressed_bytes, 3100u);
  EXPECT_EQ(figures.trainable_segments, 4u);
}

TEST(Combine, WithoutTheLeadTakesTheWordOfTheOthers) {
  std::vector<v1::StatusReply> servers = TwoServers();
  servers.erase(servers.begin());
  servers[0].set_job_name("j");
  servers[0].set_rule("asgd");
  servers[0].mutable_workers(0)->set_state("expired");
  servers[0].mutable_workers(0)->set_name("worker-1");
  const RunFigures figures = Combine(servers);
  EXPECT_EQ(figures.job_name, "j");
  EXPECT_EQ(figures.rule, "asgd");
  EXPECT_EQ(figures.total_tickets, 0u);
  ASSERT_EQ(figures.workers.size(), 1u);
  EXPECT_EQ(figures.workers[0].state, "expired");
  EXPECT_EQ(figures.workers[0].name, "worker-1");
}

}  // namespace
}  // namespace foreshard
