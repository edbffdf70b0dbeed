// Rounds whose members come and go, with real daemons: workers are killed, stopped, slow, and
// others join, while a synchronous job goes on to its end.
#include <signal.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/core/exit_code.h"
#include "gmock/gmock.h"
#include "tests/end_to_end/in_process_job.h"
#include "tests/end_to_end/job_folder.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ViewsTest : public EndToEndTest, public ::testing::WithParamInterface<const char*> {
 protected:
  static constexpr uint64_t kExamples = 3000;

  std::string Job(std::vector<std::string> overrides = {}) {
    std::vector<std::string> all = {absl::StrCat("update.rule=", GetParam()), "update.momentum=",
                                    "compression.push=", "training.workers=3", "timeouts.lease_seconds=2",
                                    "schedule.learning_rate=0.001"};
    if (std::string(GetParam()) == "adam") all.push_back("update.synchronous=true");
    if (std::string(GetParam()) == "apmsqueeze") all.push_back("apmsqueeze.warmup_rounds=20");
    all.insert(all.end(), overrides.begin(), overrides.end());
    return WriteSyntheticJob(8192, kExamples, all);
  }
  static uint64_t Examples(const std::vector<v1::StatusReply>& statuses, const std::string& name) {
    uint64_t examples = 0;
    for (const v1::StatusReply& status : statuses) {
      for (const v1::WorkerStatus& worker : status.workers()) {
        if (status.lead() && worker.name() == name) examples += worker.examples();
      }
    }
    return examples;
  }
  // The job has come to its end; what the lead says then. `ended`: workers that were killed or told to end.
  v1::StatusReply ExpectFinished(Fleet& fleet, uint64_t examples = kExamples,
                                 const std::set<std::string>& ended = {}) {
    EXPECT_TRUE(fleet.WaitForExits(Role::kWorker, kPatience)) << LogOf(fleet, "server-0");
    for (const ChildExit& exit : fleet.TakeExits()) {
      EXPECT_TRUE(exit.exit.ok() || ended.contains(exit.name)) << exit.Describe() << LogOf(fleet, exit.name);
    }
    std::vector<v1::StatusReply> statuses;
    EXPECT_TRUE(WaitUntil([&] { return (statuses = Statuses(fleet)).size() == 2; }));
    if (statuses.size() != 2) return {};
    EXPECT_EQ(statuses[0].finish_reason(), "all 1 epochs are complete");
    EXPECT_GE(statuses[0].completed_tickets(), examples - 8);
    // Every segment has gone through the same rounds.
    uint64_t version = 0;
    for (const v1::StatusReply& status : statuses) {
      for (const auto& segment : status.segments()) {
        if (version == 0) version = segment.version();
        EXPECT_EQ(segment.version(), version);
      }
    }
    return statuses[0];
  }
};

TEST_P(ViewsTest, AKilledMemberIsLeftOutAndItsBatchesAreDealtAgain) {
  std::unique_ptr<Fleet> fleet = Servers(Job());
  for (int w = 0; w < 3; ++w) ASSERT_TRUE(fleet->StartWorker(w, {"--slowdown=20"}).ok());
  ASSERT_TRUE(WaitUntil([&] { return Completed(*fleet) > 150; })) << LogOf(*fleet, "worker-0");
  fleet->Find("worker-1")->process->Signal(SIGKILL);
  EXPECT_GT(ExpectFinished(*fleet, kExamples, {"worker-1"}).redealt_tickets(), 0u);
}

// The job is stopped while a round waits for a dead member: nobody waits for long.
TEST_P(ViewsTest, AStopWithADeadMemberEndsTheOthers) {
  std::unique_ptr<Fleet> fleet = Servers(Job({"timeouts.lease_seconds=1"}));
  for (int w = 0; w < 3; ++w) ASSERT_TRUE(fleet->StartWorker(w, {"--slowdown=20"}).ok());
  ASSERT_TRUE(WaitUntil([&] { return Completed(*fleet) > 60; })) << LogOf(*fleet, "worker-0");
  fleet->Find("worker-1")->process->Signal(SIGKILL);
  const Ended stopped = RunForeshard({"stop", "--servers", absl::StrJoin(fleet->addresses(), ",")});
  EXPECT_EQ(stopped.status, 0) << stopped.output;
  EXPECT_TRUE(fleet->WaitForExits(Role::kWorker, kPatience));
  for (const ChildExit& exit : fleet->TakeExits()) {
    EXPECT_TRUE(exit.exit.ok() || exit.name == "worker-1") << exit.Describe() << LogOf(*fleet, exit.name);
  }
}

TEST_P(ViewsTest, AMemberJoinsAndOneTakesLeave) {
  std::unique_ptr<Fleet> fleet = Servers(Job());
  for (int w = 0; w < 3; ++w) ASSERT_TRUE(fleet->StartWorker(w, {"--slowdown=20"}).ok());
  ASSERT_TRUE(WaitUntil([&] { return Completed(*fleet) > 150; })) << LogOf(*fleet, "worker-0");
  ASSERT_TRUE(fleet->StartWorker(3, {"--slowdown=20"}).ok());
  ASSERT_TRUE(WaitUntil([&] {
    const std::vector<v1::StatusReply> statuses = Statuses(*fleet);
    if (statuses.empty()) return false;
    for (const v1::WorkerStatus& worker : statuses[0].workers()) {
      if (worker.worker() == 3 && worker.examples() > 5) return true;
    }
    return false;
  })) << LogOf(*fleet, "worker-3");
  fleet->Find("worker-0")->process->Signal(SIGTERM);
  const std::optional<ProcessExit> exit = fleet->Find("worker-0")->process->Wait(kPatience);
  ASSERT_TRUE(exit.has_value()) << LogOf(*fleet, "worker-0");
  EXPECT_EQ(exit->status, kExitTerminated) << exit->Describe() << LogOf(*fleet, "worker-0");
  ExpectFinished(*fleet, kExamples, {"worker-0"});
}

// Paused beyond its lease, it is given up; let go, it takes part again.
TEST_P(ViewsTest, APausedMemberComesBack) {
  std::unique_ptr<Fleet> fleet = Servers(Job({"timeouts.lease_seconds=1"}));
  for (int w = 0; w < 3; ++w) ASSERT_TRUE(fleet->StartWorker(w, {"--slowdown=20"}).ok());
  ASSERT_TRUE(WaitUntil([&] { return Completed(*fleet) > 150; })) << LogOf(*fleet, "worker-0");
  fleet->Find("worker-2")->process->Signal(SIGSTOP);
  const uint64_t before = Completed(*fleet);
  EXPECT_TRUE(WaitUntil([&] { return Completed(*fleet) > before + 60; })) << LogOf(*fleet, "worker-0");
  const uint64_t worked = Examples(Statuses(*fleet), "worker-2");
  fleet->Find("worker-2")->process->Signal(SIGCONT);
  EXPECT_GT(Examples({ExpectFinished(*fleet)}, "worker-2"), worked);
}

INSTANTIATE_TEST_SUITE_P(Rules, ViewsTest, ::testing::Values("ssgd", "adam", "apmsqueeze"),
                         [](const auto& info) { return std::string(info.param); });

// A member that is much slower than the bound is gone on without, and catches up.
class StragglerTest : public ViewsTest {};

TEST_P(StragglerTest, IsNotWaitedFor) {
  std::unique_ptr<Fleet> fleet = Servers(Job({"training.straggler_seconds=0.02", "data.examples=600"}));
  for (int w = 0; w < 2; ++w) ASSERT_TRUE(fleet->StartWorker(w, {"--slowdown=20"}).ok());
  ASSERT_TRUE(fleet->StartWorker(2, {"--slowdown=2000"}).ok());
  EXPECT_GT(ExpectFinished(*fleet, 600).pushes_stale(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Rules, StragglerTest, ::testing::Values("adam", "apmsqueeze"),
                         [](const auto& info) { return std::string(info.param); });

// Phases that the lead decides on as the job goes, and everybody follows at the same round.
class PhasesTest : public ViewsTest {
 protected:
  // The variance forgets in 20 rounds.
  std::string PhasesJob(std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), {"update.beta2=0.95", "schedule.learning_rate=0.01"});
    return Job(overrides);
  }
};

TEST_P(PhasesTest, TheVarianceIsFrozenWhereItIsStable) {
  std::unique_ptr<Fleet> fleet =
      Servers(PhasesJob({"apmsqueeze.warmup_rounds=", "apmsqueeze.automatic_freeze=true"}));
  for (int w = 0; w < 3; ++w) ASSERT_TRUE(fleet->StartWorker(w, {"--slowdown=5"}).ok());
  const v1::StatusReply lead = ExpectFinished(*fleet);
  EXPECT_TRUE(lead.compressed_phase());
  EXPECT_GT(lead.server_error_ratio(), 0);
  EXPECT_THAT(LogOf(*fleet, "server-0"), HasSubstr("on, rounds are compressed, the variance frozen: the variance is stable"));
  // The first rounds moved 32 times as much.
  EXPECT_LT(lead.push_bytes(), lead.push_uncompressed_bytes() / 2);
}

TEST_P(PhasesTest, TooLargeAnErrorLeadsBackToFullPrecision) {
  std::unique_ptr<Fleet> fleet = Servers(PhasesJob({"apmsqueeze.error_limit=0.001"}));
  for (int w = 0; w < 3; ++w) ASSERT_TRUE(fleet->StartWorker(w, {"--slowdown=5"}).ok());
  EXPECT_FALSE(ExpectFinished(*fleet).compressed_phase());
  EXPECT_THAT(LogOf(*fleet, "server-0"),
              AllOf(HasSubstr("on, rounds are in full precision again"), HasSubstr("apmsqueeze.error_limit is 0.001")));
}

// To and fro, for ever, while members die and join.
TEST_P(PhasesTest, ChangeWhileMembersComeAndGo) {
  std::unique_ptr<Fleet> fleet = Servers(PhasesJob({"apmsqueeze.warmup_rounds=", "apmsqueeze.automatic_freeze=true",
                                                    "apmsqueeze.error_limit=0.001", "timeouts.lease_seconds=1",
                                                    "apmsqueeze.fold_rounds=7"}));
  for (int w = 0; w < 3; ++w) ASSERT_TRUE(fleet->StartWorker(w, {"--slowdown=20"}).ok());
  ASSERT_TRUE(WaitUntil([&] { return Completed(*fleet) > 300; })) << LogOf(*fleet, "worker-0");
  fleet->Find("worker-1")->process->Signal(SIGKILL);
  ASSERT_TRUE(fleet->StartWorker(3, {"--slowdown=20"}).ok());
  ASSERT_TRUE(WaitUntil([&] { return Completed(*fleet) > 600; })) << LogOf(*fleet, "worker-0");
  fleet->Find("worker-0")->process->Signal(SIGTERM);
  ASSERT_TRUE(fleet->StartWorker(4, {"--slowdown=20"}).ok());
  ExpectFinished(*fleet, kExamples, {"worker-0", "worker-1"});
  const std::string log = LogOf(*fleet, "server-0");
  EXPECT_THAT(log, AllOf(HasSubstr("on, rounds are compressed"), HasSubstr("on, rounds are in full precision again")));
}

INSTANTIATE_TEST_SUITE_P(Rules, PhasesTest, ::testing::Values("apmsqueeze"),
                         [](const auto& info) { return std::string(info.param); });

// Workers and servers agree to the bit at the end of a run, although they apply results each
// for themselves.
TEST(Views, EveryWorkerHoldsTheServersParameters) {
  const v1::JobSpec job = SyntheticJob({"update.rule=apmsqueeze", "apmsqueeze.warmup_rounds=5",
                                        "apmsqueeze.fold_rounds=13", "schedule.learning_rate=0.01",
                                        "update.weight_decay=0.01"});
  InProcessServers servers(job);
  auto workers = RunJob(job, servers, 3);
  ASSERT_TRUE(servers[0]->status().finished());
  InProcessWorker reader(job, servers.addresses());
  ASSERT_TRUE(reader.Connect().ok());
  ASSERT_TRUE(reader.client().Pull(Parameters::kMaster).ok());
  const size_t elements = reader.model().schema().elements();
  for (const auto& worker : workers) {
    EXPECT_EQ(std::memcmp(worker->client().parameters(), reader.client().parameters(),
                          elements * sizeof(float)), 0);
  }
}

// Every worker sees of a measured round what all servers together came to.
TEST(Views, WorkersSeeWhatRoundsCameTo) {
  const v1::JobSpec job = SyntheticJob({"update.rule=apmsqueeze", "apmsqueeze.warmup_rounds=20",
                                        "update.beta2=0.95", "schedule.learning_rate=0.1"});
  InProcessServers servers(job);
  std::vector<std::unique_ptr<InProcessWorker>> workers;
  std::vector<std::map<uint64_t, RoundSums>> seen(3);
  for (size_t w = 0; w < 3; ++w) {
    workers.push_back(std::make_unique<InProcessWorker>(job, servers.addresses()));
    workers[w]->after_push = [&sums = seen[w]](const PushFigures& push) {
      if (push.round.has_value()) sums[push.round->round] = *push.round;
    };
  }
  TrainAll(workers);
  std::map<uint64_t, RoundSums> all;
  for (const auto& sums : seen) all.insert(sums.begin(), sums.end());
  // A span of 20 rounds has ten measures.
  EXPECT_EQ(all.size(), 20u);
  for (const auto& [round, sums] : all) {
    EXPECT_EQ(round % 2, 1u);
    EXPECT_EQ(sums.variance_sum > 0, round < 20) << round;
    EXPECT_EQ(sums.server_error_ratio > 0, round >= 20) << round;
    EXPECT_EQ(sums.error_ratio > 0, round >= 20) << round;
    // It began at nothing.
    if (round == 3) {
      EXPECT_GT(sums.variance_sum, all[1].variance_sum);
    }
  }
  for (const auto& sums : seen) {
    for (const auto& [round, mine] : sums) {
      // Added up as the replies came.
      EXPECT_NEAR(mine.variance_sum, all[round].variance_sum, 1e-12 * mine.variance_sum);
      EXPECT_NEAR(mine.server_error_ratio, all[round].server_error_ratio, 1e-12 * mine.server_error_ratio);
    }
  }
}

// A dead tensor, several segments of which hold nothing else: their contributions and results
// are no bytes, and all the same servers and workers go through every round with them.
TEST(Views, DeadTensorsTakePartInRoundsWithoutBytes) {
  const auto run = [](const std::vector<std::string>& more) {
    std::vector<std::string> overrides = {
        "model.name=mlp", "model.elements=0", "model.widths=16,64,64", "data.classes=100",
        "servers.segment_elements=1024", "compression.block_elements=256", "update.rule=apmsqueeze",
        "apmsqueeze.warmup_rounds=5", "apmsqueeze.fold_rounds=13", "schedule.learning_rate=0.001",
        "update.weight_decay=0.01"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    const v1::JobSpec job = SyntheticJob(overrides);
    InProcessServers servers(job);
    auto workers = RunJob(job, servers, 3);
    EXPECT_TRUE(servers[0]->status().finished());
    InProcessWorker reader(job, servers.addresses());
    EXPECT_TRUE(reader.Connect().ok());
    EXPECT_TRUE(reader.client().Pull(Parameters::kMaster).ok());
    const Schema& schema = reader.model().schema();
    double error = 0;
    for (const auto& worker : workers) {
      EXPECT_EQ(std::memcmp(worker->client().parameters(), reader.client().parameters(),
                            schema.trainable_elements() * sizeof(float)), 0);
      for (size_t t = 0; t < schema.tensors().size(); ++t) {
        if (schema.tensors()[t].name.rfind("output.", 0) != 0) continue;
        for (uint64_t k = 0; k < schema.tensors()[t].elements(); ++k) {
          error += std::fabs(worker->client().error()[schema.offset(t) + k]);
        }
      }
    }
    return std::make_pair(error, workers[0]->client().traffic().push_bytes);
  };
  const auto [kept, bytes] = run({});
  const auto [kept_of_dead, bytes_without_dead] = run({"apmsqueeze.dead=output.*"});
  EXPECT_GT(kept, 0);
  EXPECT_EQ(kept_of_dead, 0);
  EXPECT_LT(bytes_without_dead, bytes);
}

// Asked to stop in the compressed phase, a worker leaves with nothing kept back; the others
// go on without it.
TEST(Views, AStoppedWorkerHandsInWhatItHasKeptBack) {
  const v1::JobSpec job = SyntheticJob({"update.rule=apmsqueeze", "apmsqueeze.warmup_rounds=5",
                                        "schedule.learning_rate=0.01"});
  InProcessServers servers(job);
  std::vector<std::unique_ptr<InProcessWorker>> workers;
  for (int w = 0; w < 3; ++w) {
    workers.push_back(std::make_unique<InProcessWorker>(job, servers.addresses()));
  }
  std::atomic<int> pushes{0};
  workers[0]->after_push = [&](const PushFigures&) {
    if (++pushes == 20) workers[0]->Stop();
  };
  std::vector<std::thread> threads;
  for (auto& worker : workers) {
    threads.emplace_back([&worker, first = worker == workers[0]] {
      absl::Status status = worker->Connect();
      ASSERT_TRUE(status.ok()) << status;
      status = worker->Train();
      EXPECT_EQ(status.code(), first ? absl::StatusCode::kCancelled : absl::StatusCode::kOk) << status;
      worker->Leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(servers[0]->status().finished());
  const auto kept = [](InProcessWorker& worker) {
    double sum = 0;
    for (const float e : worker.client().error()) sum += std::fabs(e);
    return sum;
  };
  EXPECT_EQ(kept(*workers[0]), 0);
  EXPECT_GT(kept(*workers[1]), 0);
}

}  // namespace
}  // namespace foreshard
