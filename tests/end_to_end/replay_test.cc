// That a replay is the run: from the record of real daemons to the parameters they had.
#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/end_to_end/recorded_run.h"

namespace foreshard {
namespace {

struct RecordedRule {
  std::string name;
  std::vector<std::string> overrides;
  EventKind shows = EventKind::kPush;  // what the record must have
};

class ReplayTest : public RecordedRunTest, public ::testing::WithParamInterface<RecordedRule> {};

TEST_P(ReplayTest, GivesTheRunsParametersBitForBit) {
  std::vector<std::string> overrides = {"training.workers=4"};
  overrides.insert(overrides.end(), GetParam().overrides.begin(), GetParam().overrides.end());
  ASSERT_NO_FATAL_FAILURE(Begin(overrides));
  // Slow enough that nobody is through before all have begun.
  ASSERT_NO_FATAL_FAILURE(StartWorkers({WritePace({{0.01}, {0.01}, {0.012}, {0.015}})}));
  ASSERT_NO_FATAL_FAILURE(ExpectReplayAgrees());
  EXPECT_EQ(replayed_.steps, 96u);
  EXPECT_EQ(replayed_.updates + replayed_.discarded, 96u);
  EXPECT_TRUE(kinds_.contains(GetParam().shows)) << ToString(GetParam().shows);
  if (job_.update().rule() != "ssgd") {
    EXPECT_GT(replayed_.lag_mean, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rules, ReplayTest,
    ::testing::Values(
        RecordedRule{"dana_zero", {"update.rule=dana_zero", "compression.push=none"}},
        RecordedRule{"dana_slim_one_bit",
                     {"update.rule=dana_slim", "compression.push=one_bit",
                      "update.weight_decay=0.0001", "training.micro_batches=2",
                      "training.clip_norm=1", "schedule.warmup_epochs=2"}},
        RecordedRule{"steps_of_the_rate",
                     {"update.rule=dana_slim", "compression.push=one_bit", "schedule.decay=step",
                      "schedule.decay_epochs=1,2", "schedule.decay_factor=0.2"},
                     EventKind::kLearningRateRepair},
        RecordedRule{"gap_aware",
                     {"update.rule=gap_aware", "compression.push=none", "compression.reply=fp16",
                      "training.statistics_interval_steps=1"}},
        RecordedRule{"discards",
                     {"update.rule=nag_asgd", "compression.push=one_bit_mean",
                      "update.delay_threshold=2"},
                     EventKind::kDiscard},
        RecordedRule{"quantized",
                     {"update.rule=dana_zero", "compression.push=quantized", "compression.bits=3",
                      "compression.full_precision_below=100"}},
        RecordedRule{"random_k", {"update.rule=dana_slim", "compression.push=random_k"}},
        RecordedRule{"random_k_in_rounds",
                     {"update.rule=ssgd", "compression.push=random_k"},
                     EventKind::kRoundClosed},
        RecordedRule{"one_bit_both_ways",
                     {"update.rule=dana_zero", "compression.push=one_bit",
                      "compression.reply=one_bit"}},
        RecordedRule{"one_bit_both_ways_at_steps",
                     {"update.rule=dana_slim", "compression.push=one_bit",
                      "compression.reply=one_bit_mean", "schedule.decay=step",
                      "schedule.decay_epochs=1,2", "schedule.decay_factor=0.2"},
                     EventKind::kLearningRateRepair},
        RecordedRule{"random_k_replies",
                     {"update.rule=gap_aware", "compression.push=none",
                      "compression.reply=random_k", "compression.full_precision_below=100"}},
        RecordedRule{"discards_with_differences",
                     {"update.rule=dana_dc", "compression.push=one_bit",
                      "compression.reply=one_bit", "update.delay_threshold=2"},
                     EventKind::kDiscard},
        RecordedRule{"ssgd",
                     {"update.rule=ssgd", "compression.push=one_bit"},
                     EventKind::kRoundClosed}),
    [](const auto& info) { return info.param.name; });

// Whoever is killed leaves a push that not every segment has seen, momentum that is
// given up, and a slot for the next start.
TEST_F(RecordedRunTest, AReplayFollowsWorkersThatDieAndComeBack) {
  ASSERT_NO_FATAL_FAILURE(Begin({"training.workers=3", "training.epochs=6", "update.rule=dana_zero",
                                 "compression.push=one_bit", "compression.reply=one_bit",
                                 "timeouts.lease_seconds=1", "training.max_workers=4"}));
  const std::string pace = WritePace({{0.01}, {0.01}, {0.01}, {0.01}});
  ASSERT_NO_FATAL_FAILURE(StartWorkers({pace}));
  ASSERT_TRUE(WaitUntil([&] { return Completed(*fleet_) >= 40; }));
  fleet_->Find("worker-1")->process->Signal(SIGKILL);
  ASSERT_TRUE(WaitUntil([&] { return fleet_->Running(Role::kWorker) < 3; }));
  // In the dead one's slot, whichever that is, or in a fourth one.
  ASSERT_TRUE(fleet_->StartWorker(1, {pace}).ok());
  ASSERT_NO_FATAL_FAILURE(ExpectReplayAgrees());
  EXPECT_GE(replayed_.steps, 192u);
  EXPECT_TRUE(kinds_.contains(EventKind::kExpire));
}

// The whole way of a user: a run that leaves its records, one that follows them.
TEST_F(RecordedRunTest, ARecordedRunCanBeReplayedAndFollowed) {
  job_path_ = WriteJob({"training.workers=3"});
  const std::string first = Path("first");
  const Ended recorded =
      RunForeshard({"run", "--job", job_path_, "--results", first, "--device", "cpu", "--record",
                    "--pace", WriteTrace(BatchTrace(3, {0.01})), "--slowdown", "2=2.5"});
  ASSERT_EQ(recorded.status, 0) << recorded.output;
  // The header and a line a batch. (A worker may have come too late for a single one.)
  const std::string batches = ReadFile(first + "/batches.csv").value_or("");
  EXPECT_EQ(std::count(batches.begin(), batches.end(), '\n'), 97) << batches;
  job_ = LoadJobSpec(first + "/job.textproto", {}).value();
  train_ = LoadTrainingData(job_).value();
  std::vector<std::vector<Event>> arrivals;
  for (uint32_t shard = 0; shard < kRecordedShards; ++shard) {
    auto loaded = LoadArrivals(absl::StrCat(first, "/arrivals-", shard, ".csv"));
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    arrivals.push_back(*std::move(loaded));
  }
  const auto replayed = ReplayArrivals(job_, *train_, arrivals);
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_EQ(replayed->steps, 96u);

  const std::vector<std::string> again = {"run",    "--job",    job_path_, "--results", first,
                                          "--device", "cpu",    "--no-evaluator"};
  std::vector<std::string> paced = again;
  paced.insert(paced.end(), {"--pace", WriteTrace(BatchTrace(3, {0.01}))});
  const Ended followed = RunForeshard(paced);
  EXPECT_EQ(followed.status, 0) << followed.output;
  // Records are of the run that was asked for them.
  EXPECT_TRUE(absl::IsNotFound(LoadTrace(first + "/batches.csv").status()));
  EXPECT_TRUE(absl::IsNotFound(LoadArrivals(first + "/arrivals-0.csv").status()));

  paced.back() = WriteTrace({{0.1}});
  const Ended refused = RunForeshard(paced);
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.output, ::testing::HasSubstr("has times for 1 workers, and 3 are to run"));
  ASSERT_TRUE(WriteFileAtomically(Path("pace.csv"), "worker,step,seconds\n0,0,1\n0,2,1\n").ok());
  const Ended holed = RunForeshard(paced);
  EXPECT_EQ(holed.status, 2);
  EXPECT_THAT(holed.output, ::testing::HasSubstr("has a hole"));
}

}  // namespace
}  // namespace foreshard
