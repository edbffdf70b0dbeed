// Staleness bound, worker ramp and delay threshold with the whole of servers and workers.
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "tests/end_to_end/in_process_job.h"
#include "tests/end_to_end/job_folder.h"
#include "tools/files.h"

namespace foreshard {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// What happened to each segment: kind and worker, in the order of their numbers.
class EventLog final : public EventSink {
 public:
  void Record(const Event& event) override {
    absl::MutexLock lock(&mutex_);
    // Numbers are each server's own.
    if (event.segment == kDealerSegment) return;
    segments_[event.segment][event.number] = {event.kind, event.worker};
  }
  std::map<uint32_t, std::map<uint64_t, std::pair<EventKind, uint32_t>>> segments() const {
    absl::MutexLock lock(&mutex_);
    return segments_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::map<uint32_t, std::map<uint64_t, std::pair<EventKind, uint32_t>>> segments_;
};

// All workers of the job, registered before the first one begins.
std::vector<std::unique_ptr<InProcessWorker>> RunTogether(const v1::JobSpec& job,
                                                          InProcessServers& servers,
                                                          const std::vector<double>& slowdowns) {
  std::vector<std::unique_ptr<InProcessWorker>> workers;
  for (size_t w = 0; w < slowdowns.size(); ++w) {
    workers.push_back(std::make_unique<InProcessWorker>(job, servers.addresses()));
    const absl::Status connected = workers.back()->Connect();
    EXPECT_TRUE(connected.ok()) << connected;
    EXPECT_EQ(workers.back()->lead().worker(), w);
  }
  std::vector<std::thread> threads;
  for (size_t w = 0; w < slowdowns.size(); ++w) {
    threads.emplace_back([&, w] {
      const absl::Status trained = workers[w]->Train(slowdowns[w]);
      EXPECT_TRUE(trained.ok()) << trained;
      workers[w]->Leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return workers;
}

std::vector<uint64_t> Steps(std::vector<std::unique_ptr<InProcessWorker>>& workers) {
  std::vector<uint64_t> steps;
  for (auto& worker : workers) {
    steps.push_back(worker->progress().Figures(worker->client().traffic()).steps());
  }
  return steps;
}

TEST(Bounds, WithoutSlackASlowWorkerSetsThePaceOfAll) {
  const v1::JobSpec job = SyntheticJob({"training.staleness_bound=0", "schedule.learning_rate=0.01"});
  InProcessServers servers(job);
  auto workers = RunTogether(job, servers, {1, 1, 5});
  EXPECT_THAT(Steps(workers), Each(40u));  // 120 batches
  for (size_t shard = 0; shard < servers.size(); ++shard) {
    const v1::StatusReply status = servers[shard]->status();
    for (const auto& segment : status.segments()) EXPECT_EQ(segment.version(), 120u);
    // Of the two others each comes in between once at most.
    EXPECT_LE(status.staleness_max(), 2u);
  }
}

TEST(Bounds, NobodyIsFurtherAheadThanTheBound) {
  const v1::JobSpec job = SyntheticJob({"training.staleness_bound=3", "schedule.learning_rate=0.01"});
  InProcessServers servers(job);
  auto workers = RunTogether(job, servers, {1, 1, 30});
  const std::vector<uint64_t> steps = Steps(workers);
  EXPECT_EQ(steps[0] + steps[1] + steps[2], 120u);
  EXPECT_LE(*std::max_element(steps.begin(), steps.end()),
            *std::min_element(steps.begin(), steps.end()) + 3 + 1);
  for (size_t shard = 0; shard < servers.size(); ++shard) {
    EXPECT_EQ(servers[shard]->status().pushes_duplicate(), 0u);
  }
}

TEST(Bounds, ARampAdmitsWorkersOneByOneAndTheOthersTouchNothing) {
  const v1::JobSpec job =
      SyntheticJob({"update.rule=dana_zero", "update.momentum=0.5", "schedule.learning_rate=0.01",
                    "schedule.ramp_epochs=2"});
  EventLog events;
  InProcessServers servers(job, &events);
  auto workers = RunTogether(job, servers, {1, 1, 1});
  const std::vector<uint64_t> steps = Steps(workers);
  // 1 + floor(2 dealt / 120): the second from half of the run on, the third never.
  EXPECT_EQ(steps[0] + steps[1], 120u);
  EXPECT_GE(steps[0], 60u);
  EXPECT_EQ(steps[2], 0u);
  ASSERT_EQ(events.segments().size(), servers[0]->status().segments_size() +
                                          servers[1]->status().segments_size());
  for (const auto& [segment, log] : events.segments()) {
    uint64_t pushes = 0;
    std::set<uint32_t> seen;
    for (const auto& [number, event] : log) {
      const auto [kind, worker] = event;
      if (kind == EventKind::kInitialise || kind == EventKind::kLeave) continue;
      EXPECT_NE(worker, 2u) << segment;
      // A worker's first event fetches parameters, when its time has come.
      if (seen.insert(worker).second) {
        EXPECT_EQ(kind, EventKind::kRead);
        // Dealt ahead, so not all of the 60 have been pushed.
        if (worker == 1) {
          EXPECT_GE(pushes, 60u - 8);
        }
      }
      pushes += kind == EventKind::kPush;
    }
    EXPECT_EQ(pushes, 120u);
  }
}

class BoundsTest : public EndToEndTest {
 protected:
  std::vector<std::string> RunArguments(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"run",       "--job",         Path("job.textproto"),
                                          "--results", Path("results"), "--device",
                                          "cpu"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
};

TEST_F(BoundsTest, ARunInLockStepWithASlowWorker) {
  WriteJob({"training.staleness_bound=0"});
  const Ended ended = RunForeshard(RunArguments({"--workers", "3", "--slowdown", "2=4"}));
  ASSERT_EQ(ended.status, 0) << ended.output;
  const nlohmann::json results = Results("results");
  EXPECT_EQ(results["completed"], true);
  EXPECT_EQ(results["updates"], 3 * 512 / 16);
  EXPECT_EQ(results["discarded_batches"], 0);
  EXPECT_LE(results["staleness"]["max"], 2);
}

TEST_F(BoundsTest, ARunWithARampAndABoundOverAllOfIt) {
  WriteJob({"training.staleness_bound=2", "schedule.ramp_epochs=3", "training.workers=3"});
  const Ended ended = RunForeshard(RunArguments({"--workers", "3"}));
  ASSERT_EQ(ended.status, 0) << ended.output;
  const nlohmann::json results = Results("results");
  EXPECT_EQ(results["completed"], true);
  EXPECT_EQ(results["updates"], 3 * 512 / 16);
  for (const nlohmann::json& worker : results["workers"]) {
    if (worker["id"] == 1) {
      EXPECT_LE(worker["examples"], 3 * 512 / 2);
    }
    if (worker["id"] == 2) {
      EXPECT_EQ(worker["examples"], 0);
    }
  }
}

TEST_F(BoundsTest, ASlowWorkersGradientsComeTooLateAndAreDiscarded) {
  constexpr uint64_t kExamples = 600;
  const std::string job = WriteSyntheticJob(
      8192, kExamples, {"update.rule=dana_zero", "update.delay_threshold=3", "training.workers=3"});
  std::unique_ptr<Fleet> fleet = MakeFleet(job);
  for (uint32_t shard = 0; shard < 2; ++shard) ASSERT_TRUE(fleet->StartServer(shard).ok());
  ASSERT_TRUE(fleet->WaitForServers(kPatience).ok());
  ASSERT_TRUE(fleet->StartWorker(0, {"--slowdown=3000"}).ok());
  ASSERT_TRUE(WaitUntil([&] {
    const std::vector<v1::StatusReply> statuses = Statuses(*fleet);
    return !statuses.empty() && statuses[0].workers_size() == 1 && statuses[0].workers(0).pushes() > 0;
  })) << LogOf(*fleet, "worker-0");
  // What it computes now is at parameters that the others leave far behind.
  ASSERT_TRUE(fleet->StartWorker(1).ok());
  ASSERT_TRUE(fleet->StartWorker(2).ok());
  ASSERT_TRUE(fleet->WaitForExits(Role::kWorker, kPatience))
      << LogOf(*fleet, "worker-0") << LogOf(*fleet, "server-0");
  for (const ChildExit& exit : fleet->TakeExits()) EXPECT_TRUE(exit.exit.ok()) << exit.Describe();
  const std::vector<v1::StatusReply> statuses = Statuses(*fleet);
  ASSERT_THAT(statuses, SizeIs(2));
  EXPECT_EQ(statuses[0].completed_tickets(), kExamples);
  EXPECT_EQ(statuses[0].redealt_tickets(), 0u);
  for (const v1::StatusReply& status : statuses) {
    uint64_t segments = 0, versions = 0;
    for (const auto& segment : status.segments()) {
      segments += !segment.statistic();
      if (!segment.statistic()) versions += segment.version();
    }
    EXPECT_GT(status.pushes_stale(), 0u);
    EXPECT_EQ(status.pushes_applied() + status.pushes_stale(), kExamples * segments);
    EXPECT_EQ(versions, status.pushes_applied());
    EXPECT_LE(status.staleness_max(), 3u);
    const std::string metrics = HttpGet(status.metrics_address(), "/metrics");
    EXPECT_THAT(metrics, HasSubstr(absl::StrCat("result=\"stale\"} ", status.pushes_stale())));
  }
  const Ended status = RunForeshard({"status", "--servers", fleet->address_list()});
  EXPECT_EQ(status.status, 0);
  EXPECT_THAT(status.output, HasSubstr("of 600 gradients came later than update.delay_threshold"));
}

}  // namespace
}  // namespace foreshard
