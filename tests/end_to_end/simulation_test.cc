// That replay and simulator tell the truth: what real daemons made of a job, against what
// the same segments make of it without them.
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/core/batch_trace.h"
#include "common/net/job_spec.h"
#include "gmock/gmock.h"
#include "server/arrivals.h"
#include "tests/end_to_end/job_folder.h"
#include "tools/files.h"
#include "tools/simulate/replay_arrivals.h"
#include "worker/job_setup.h"
#include "worker/parameter_client.h"

namespace foreshard {
namespace {

constexpr uint32_t kShards = 2;

class SimulationTest : public EndToEndTest {
 protected:
  // Loads job and data, and starts servers that record.
  void Begin(const std::vector<std::string>& overrides) {
    job_path_ = WriteJob(overrides);
    job_ = LoadJobSpec(job_path_, {}).value();
    train_ = LoadTrainingData(job_).value();
    test_ = LoadTestData(job_).value();
    device_ = kernels::MakeDevice("cpu").value();
    model_ = MakeJobModel(job_, *train_, *device_).value();
    fleet_ = MakeFleet(job_path_);
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      ASSERT_TRUE(
          fleet_->StartServer(shard, {absl::StrCat("--record-arrivals=", ArrivalsPath(shard))}).ok());
    }
    const absl::Status up = fleet_->WaitForServers(kPatience);
    ASSERT_TRUE(up.ok()) << up;
  }

  void StartWorkers(const std::vector<std::string>& arguments = {}) {
    for (uint32_t k = 0; k < job_.training().workers(); ++k) {
      ASSERT_TRUE(fleet_->StartWorker(k, arguments).ok());
    }
  }

  // Each worker's batches take these seconds, again and again.
  std::string WriteTrace(const BatchTrace& trace) {
    EXPECT_TRUE(WriteFileAtomically(Path("pace.csv"), PrintTrace(trace)).ok());
    return Path("pace.csv");
  }
  std::string WritePace(const BatchTrace& trace) {
    return absl::StrCat("--pace=", WriteTrace(trace));
  }

  // Waits for the workers to be done, and returns the servers' parameters.
  std::vector<float> AwaitMaster() {
    EXPECT_TRUE(fleet_->WaitForExits(Role::kWorker, kPatience));
    for (const Child& child : fleet_->children()) {
      if (child.role != Role::kWorker) continue;
      EXPECT_TRUE(child.exit.has_value() && (child.exit->ok() || child.exit->signal == SIGKILL))
          << LogOf(*fleet_, child.name);
    }
    ParameterClientOptions options =
        MakeClientOptions(job_, model_->schema(), train_->examples(), fleet_->addresses()).value();
    options.hello.set_reader(true);
    options.hello.set_worker_name("reader");
    auto client = ParameterClient::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    if (!client.ok()) return {};
    const absl::Status pulled = (*client)->Pull(Parameters::kMaster);
    EXPECT_TRUE(pulled.ok()) << pulled;
    const float* parameters = (*client)->parameters();
    return {parameters, parameters + model_->schema().elements()};
  }

  // Ends the servers, so that their records are whole.
  std::vector<std::vector<Event>> EndAndLoadArrivals() {
    fleet_->Terminate(Role::kServer, kPatience);
    std::vector<std::vector<Event>> arrivals;
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      auto loaded = LoadArrivals(ArrivalsPath(shard));
      EXPECT_TRUE(loaded.ok()) << loaded.status();
      arrivals.push_back(loaded.ok() ? *std::move(loaded) : std::vector<Event>());
    }
    return arrivals;
  }

  // The replay of a finished run gives what the servers had, to the bit.
  void ExpectReplayAgrees() {
    const std::vector<float> master = AwaitMaster();
    const std::vector<std::vector<Event>> arrivals = EndAndLoadArrivals();
    const auto replayed = ReplayArrivals(job_, *train_, arrivals);
    ASSERT_TRUE(replayed.ok()) << replayed.status();
    ASSERT_EQ(replayed->parameters.size(), master.size());
    const uint64_t trainable = model_->schema().trainable_elements();
    uint64_t different = 0;
    for (size_t k = 0; k < master.size(); ++k) {
      if (memcmp(&replayed->parameters[k], &master[k], sizeof(float)) == 0) continue;
      if (different++ == 0) {
        ADD_FAILURE() << "element " << k << " of " << trainable << " trainable ones: "
                      << replayed->parameters[k] << " replayed, " << master[k] << " in the run";
      }
    }
    EXPECT_EQ(different, 0u);
    // Not the values that the run began with.
    std::vector<float> initial(master.size());
    model_->InitialValues(job_.seed(), initial.data());
    const ParameterClientOptions options =
        MakeClientOptions(job_, model_->schema(), train_->examples(), {}).value();
    for (const SegmentPlan& segment : options.plan.segments()) {
      EXPECT_NE(memcmp(&initial[segment.begin], &master[segment.begin],
                       segment.elements * sizeof(float)),
                0)
          << "segment " << segment.id;
    }
    replayed_ = *replayed;
  }

  std::string ArrivalsPath(uint32_t shard) const {
    return Path(absl::StrCat("arrivals-", shard, ".csv"));
  }

  std::string job_path_;
  v1::JobSpec job_;
  std::unique_ptr<Dataset> train_, test_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Fleet> fleet_;
  ReplayResult replayed_;
};

struct RecordedRule {
  std::string name;
  std::vector<std::string> overrides;
};

class ReplayTest : public SimulationTest, public ::testing::WithParamInterface<RecordedRule> {};

TEST_P(ReplayTest, GivesTheRunsParametersBitForBit) {
  std::vector<std::string> overrides = {"training.workers=4"};
  overrides.insert(overrides.end(), GetParam().overrides.begin(), GetParam().overrides.end());
  ASSERT_NO_FATAL_FAILURE(Begin(overrides));
  // Slow enough that nobody is through before all have begun.
  ASSERT_NO_FATAL_FAILURE(StartWorkers({WritePace({{0.01}, {0.01}, {0.012}, {0.015}})}));
  ASSERT_NO_FATAL_FAILURE(ExpectReplayAgrees());
  EXPECT_EQ(replayed_.steps, 96u);
  EXPECT_EQ(replayed_.updates + replayed_.discarded, 96u);
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
        RecordedRule{"gap_aware",
                     {"update.rule=gap_aware", "compression.push=none", "compression.reply=fp16",
                      "training.statistics_interval_steps=1"}},
        RecordedRule{"ssgd", {"update.rule=ssgd", "compression.push=one_bit"}}),
    [](const auto& info) { return info.param.name; });

// Whoever is killed leaves a push that not every segment has seen, momentum that is
// given up, and a slot for the next start.
TEST_F(SimulationTest, AReplayFollowsWorkersThatDieAndComeBack) {
  ASSERT_NO_FATAL_FAILURE(Begin({"training.workers=3", "training.epochs=6", "update.rule=dana_zero",
                                 "compression.push=one_bit", "timeouts.lease_seconds=1",
                                 "training.max_workers=4"}));
  const std::string pace = WritePace({{0.01}, {0.01}, {0.01}, {0.01}});
  ASSERT_NO_FATAL_FAILURE(StartWorkers({pace}));
  ASSERT_TRUE(WaitUntil([&] { return Completed(*fleet_) >= 40; }));
  fleet_->Find("worker-1")->process->Signal(SIGKILL);
  ASSERT_TRUE(WaitUntil([&] { return fleet_->Running(Role::kWorker) < 3; }));
  // In the dead one's slot, whichever that is, or in a fourth one.
  ASSERT_TRUE(fleet_->StartWorker(1, {pace}).ok());
  ASSERT_NO_FATAL_FAILURE(ExpectReplayAgrees());
  EXPECT_GE(replayed_.steps, 192u);
}

// The whole way of a user: a run that leaves its records, one that follows them.
TEST_F(SimulationTest, ARecordedRunCanBeReplayedAndFollowed) {
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
  for (uint32_t shard = 0; shard < kShards; ++shard) {
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
