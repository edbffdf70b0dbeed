// Elastic averaging with real servers and workers: in one process against the paper's
// equations, and as daemons that are killed.
#include <signal.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/end_to_end/in_process_job.h"
#include "tests/end_to_end/job_folder.h"
#include "tools/simulate/simulation.h"

namespace foreshard {
namespace {

using ::testing::SizeIs;

constexpr uint64_t kTickets = 120;  // of SyntheticJob, 60 an epoch

v1::JobSpec ElasticJob(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), {"update.rule=eamsgd", "update.momentum=0.9",
                                       "update.local_steps=7", "schedule.learning_rate=0.5",
                                       "schedule.warmup_epochs=0.5"});
  return SyntheticJob(overrides);
}

double Distance(const float* values, const std::vector<double>& expected) {
  double difference = 0, size = 0;
  for (size_t k = 0; k < expected.size(); ++k) {
    difference += std::pow(values[k] - expected[k], 2);
    size += std::pow(expected[k], 2);
  }
  return std::sqrt(difference / size);
}

// The paper's workers in fp64, whose gradients are the model's.
class Reference {
 public:
  Reference(const v1::JobSpec& job, InProcessWorker& worker)
      : job_(job),
        schedule_(MakeSchedule(job, kTickets / job.training().epochs())),
        computer_(MakeGradientOptions(job), &worker.model(), &worker.data()) {
    std::vector<float> first(worker.model().schema().elements());
    worker.model().InitialValues(job.seed(), first.data());
    center_.assign(first.begin(), first.end());
    x_.assign(job.training().workers(), center_);
    v_.assign(job.training().workers(), std::vector<double>(center_.size()));
  }

  void Step(uint32_t w, uint64_t ticket) {
    const double eta = schedule_.At(ticket), delta = job_.update().momentum();
    std::vector<float> at(center_.size());
    for (size_t k = 0; k < at.size(); ++k) {
      at[k] = static_cast<float>(x_[w][k] - eta * delta * v_[w][k]);
    }
    ASSERT_TRUE(computer_.Compute(ticket, at.data(), gate_).ok());
    for (size_t k = 0; k < at.size(); ++k) {
      v_[w][k] = delta * v_[w][k] + computer_.gradient()[k];
      x_[w][k] -= eta * v_[w][k];
    }
  }

  // All workers with the old center.
  void Exchange() {
    const double alpha = job_.update().elasticity();
    const std::vector<double> old = center_;
    for (auto& x : x_) {
      for (size_t k = 0; k < x.size(); ++k) {
        const double e = alpha * (x[k] - old[k]);
        center_[k] += e;
        x[k] -= e;
      }
    }
  }

  const std::vector<double>& center() const { return center_; }

 private:
  const v1::JobSpec job_;
  const Schedule schedule_;
  GradientComputer computer_;
  OpenGate gate_;
  std::vector<double> center_;
  std::vector<std::vector<double>> x_, v_;
};

TEST(Elastic, OneWorkerIsThePapersAsynchronousOne) {
  const v1::JobSpec job = ElasticJob({"training.workers=1"});
  InProcessServers servers(job);
  auto workers = RunJob(job, servers, 1);
  Reference reference(job, *workers[0]);
  for (uint64_t ticket = 0; ticket < kTickets; ++ticket) {
    reference.Step(0, ticket);
    if (ticket % 7 == 6 || ticket + 1 == kTickets) reference.Exchange();
  }
  EXPECT_LT(Distance(workers[0]->client().parameters(), reference.center()), 1e-5);
}

TEST(Elastic, RoundsAreThePapersSynchronousOnes) {
  const v1::JobSpec job = ElasticJob({"update.synchronous=true", "training.max_workers="});
  InProcessServers servers(job);
  auto workers = RunJob(job, servers, 3);
  Reference reference(job, *workers[0]);
  constexpr uint64_t kSteps = kTickets / 3;
  for (uint64_t step = 0; step < kSteps; ++step) {
    for (uint32_t w = 0; w < 3; ++w) reference.Step(w, 3 * step + w);
    if (step % 7 == 6 || step + 1 == kSteps) reference.Exchange();
  }
  for (auto& worker : workers) {
    EXPECT_LT(Distance(worker->client().parameters(), reference.center()), 1e-5);
    EXPECT_EQ(worker->progress().Figures({}).steps(), kSteps);
  }
  const v1::StatusReply status = servers[0]->status();
  for (const auto& segment : status.segments()) EXPECT_EQ(segment.version(), 6u);
}

// The simulator's workers are the daemons': where the order of arrivals is no question, so
// is every bit.
TEST(Elastic, TheSimulatorMakesTheSameOfIt) {
  const std::vector<std::string> rounds = {"update.synchronous=true", "training.max_workers="};
  const std::vector<std::string> alone = {"training.workers=1"};
  for (const std::vector<std::string>& settings : {alone, rounds}) {
    const v1::JobSpec job = ElasticJob(settings);
    const uint32_t count = job.training().workers();
    InProcessServers servers(job);
    auto workers = RunJob(job, servers, static_cast<int>(count));
    const auto train = LoadTrainingData(job).value();
    const auto test = LoadTestData(job, *train).value();
    const auto simulated =
        Simulate({.job = job,
                  .clock = BatchClock::Gamma({.workers = count}).value(),
                  .train = train.get(),
                  .test = test.get()});
    ASSERT_TRUE(simulated.ok()) << simulated.status();
    EXPECT_EQ(simulated->batches, kTickets);
    EXPECT_EQ(simulated->parameters_checksum,
              Checksum(ByteSpan(
                  reinterpret_cast<const uint8_t*>(workers[0]->client().parameters()),
                  workers[0]->model().schema().elements() * sizeof(float))));
  }
}

// The center has moved by what the workers pushed; every batch was some worker's step
// once; more steps between exchanges than a worker may hold tickets otherwise.
TEST(Elastic, UnequalWorkersDoEveryBatchOnce) {
  for (const char* steps : {"1", "7", "30"}) {
    const v1::JobSpec job = ElasticJob({absl::StrCat("update.local_steps=", steps)});
    InProcessServers servers(job);
    auto workers = RunJob(job, servers, 3);
    uint64_t made = 0;
    for (auto& worker : workers) made += worker->progress().Figures({}).steps();
    EXPECT_EQ(made, kTickets);
    for (size_t shard = 0; shard < servers.size(); ++shard) {
      const v1::StatusReply status = servers[shard]->status();
      EXPECT_EQ(status.pushes_duplicate(), 0u);
      EXPECT_EQ(status.pushes_rejected(), 0u);
    }
    EXPECT_TRUE(servers[0]->status().finished());
    EXPECT_EQ(servers[0]->status().completed_tickets(), kTickets);
    EXPECT_EQ(servers[0]->status().redealt_tickets(), 0u);
    std::vector<double> first(workers[0]->model().schema().elements());
    std::vector<float> values(first.size());
    workers[0]->model().InitialValues(job.seed(), values.data());
    double before = 0, after = 0;
    for (size_t k = 0; k < values.size(); ++k) {
      before += std::pow(values[k], 2);
      after += std::pow(workers[0]->client().parameters()[k], 2);
    }
    EXPECT_LT(after, 0.9 * before);
  }
}

// Bounds on dealing: who must wait for others exchanges what it has, so that nobody waits
// for ever.
TEST(Elastic, AStalenessBoundBelowTheLocalStepsIsNoDeadlock) {
  for (const char* bound : {"0", "2"}) {
    const v1::JobSpec job = ElasticJob({absl::StrCat("training.staleness_bound=", bound),
                                        "schedule.ramp_epochs=0.5"});
    InProcessServers servers(job);
    RunJob(job, servers, 3);
    EXPECT_TRUE(servers[0]->status().finished());
    EXPECT_EQ(servers[0]->status().completed_tickets(), kTickets);
  }
}

class ElasticDaemonsTest : public EndToEndTest {
 protected:
  // The worker's row in the lead's status; empty where it is not there yet.
  v1::WorkerStatus WorkerNamed(const Fleet& fleet, const std::string& name) {
    for (const v1::StatusReply& status : Statuses(fleet)) {
      if (!status.lead()) continue;
      for (const v1::WorkerStatus& worker : status.workers()) {
        if (worker.name() == name) return worker;
      }
    }
    return {};
  }
};

// Dead in the middle of its local steps, of which the servers know nothing.
TEST_F(ElasticDaemonsTest, StepsOfAKilledWorkerAreMadeAgainByOthers) {
  constexpr uint64_t kExamples = 600;
  const std::string job = WriteSyntheticJob(
      8192, kExamples,
      {"update.rule=eamsgd", "compression.push=none", "update.local_steps=500",
       "training.workers=3", "timeouts.lease_seconds=3"});
  std::unique_ptr<Fleet> fleet = Servers(job);
  ASSERT_TRUE(fleet->StartWorker(0, {"--slowdown=10000"}).ok());
  ASSERT_TRUE(WaitUntil([&] {
    return WorkerNamed(*fleet, "worker-0").figures().steps() >= 3;
  })) << LogOf(*fleet, "worker-0");
  EXPECT_EQ(WorkerNamed(*fleet, "worker-0").pushes(), 0u);
  fleet->Find("worker-0")->process->Signal(SIGKILL);
  ASSERT_TRUE(fleet->StartWorker(1).ok());
  ASSERT_TRUE(fleet->StartWorker(2).ok());
  ASSERT_TRUE(fleet->WaitForExits(Role::kWorker, kPatience))
      << LogOf(*fleet, "worker-1") << LogOf(*fleet, "server-0");
  const std::vector<v1::StatusReply> statuses = Statuses(*fleet);
  ASSERT_THAT(statuses, SizeIs(2));
  EXPECT_TRUE(statuses[0].finished());
  EXPECT_EQ(statuses[0].completed_tickets(), kExamples);
  EXPECT_GE(statuses[0].redealt_tickets(), 3u);
  EXPECT_EQ(WorkerNamed(*fleet, "worker-1").examples() +
                WorkerNamed(*fleet, "worker-2").examples(),
            kExamples);
}

// Whoever takes a member's place goes on at its first batch that is missing, in the same
// rounds as the others.
TEST_F(ElasticDaemonsTest, AMemberOfRoundsIsReplaced) {
  constexpr uint64_t kExamples = 1500;
  const std::string job = WriteSyntheticJob(
      8192, kExamples,
      {"update.rule=eamsgd", "update.synchronous=true", "compression.push=none",
       "update.local_steps=7", "timeouts.lease_seconds=10"});
  std::unique_ptr<Fleet> fleet = Servers(job);
  ASSERT_TRUE(fleet->StartWorker(0, {"--slowdown=200"}).ok());
  ASSERT_TRUE(fleet->StartWorker(1, {"--slowdown=200"}).ok());
  ASSERT_TRUE(WaitUntil([&] { return Completed(*fleet) > 50; })) << LogOf(*fleet, "worker-0");
  const uint32_t slot = WorkerNamed(*fleet, "worker-1").worker();
  fleet->Find("worker-1")->process->Signal(SIGKILL);
  ASSERT_TRUE(fleet->StartWorker(2, {absl::StrCat("--slot=", slot)}).ok());
  ASSERT_TRUE(fleet->WaitForExits(Role::kWorker, kPatience))
      << LogOf(*fleet, "worker-0") << LogOf(*fleet, "worker-2") << LogOf(*fleet, "server-0");
  const std::vector<v1::StatusReply> statuses = Statuses(*fleet);
  ASSERT_THAT(statuses, SizeIs(2));
  EXPECT_EQ(statuses[0].finish_reason(), "all 1 epochs are complete");
  EXPECT_EQ(statuses[0].completed_tickets(), kExamples);
  for (const v1::StatusReply& status : statuses) {
    for (const auto& segment : status.segments()) {
      EXPECT_EQ(segment.version(), (kExamples / 2 + 6) / 7);
    }
  }
}

// A rate at which every worker runs away: the steps that cannot be made are counted.
TEST_F(ElasticDaemonsTest, DivergenceIsTold) {
  const Ended ended = RunForeshard(
      {"run", "--job",
       WriteJob({"update.rule=eamsgd", "compression.push=none", "update.local_steps=8",
                 "schedule.learning_rate=1e30"}),
       "--results", Path("results"), "--device", "cpu"});
  EXPECT_EQ(ended.status, 1) << ended.output;
  const nlohmann::json results = Results("results");
  EXPECT_GT(results["skipped_batches"], 96 / 2);
  EXPECT_EQ(results["updates"].get<int>() + results["skipped_batches"].get<int>(), 96);
  EXPECT_THAT(results["ended"].get<std::string>(), ::testing::HasSubstr("training diverged"));
}

struct ElasticRun {
  const char* name;
  std::vector<std::string> settings;
};
void PrintTo(const ElasticRun& run, std::ostream* out) { *out << run.name; }

class ElasticRunTest : public EndToEndTest, public ::testing::WithParamInterface<ElasticRun> {};

TEST_P(ElasticRunTest, Trains) {
  std::vector<std::string> settings = {"compression.push=none", "update.local_steps=4"};
  settings.insert(settings.end(), GetParam().settings.begin(), GetParam().settings.end());
  const Ended ended = RunForeshard({"run", "--job", WriteJob(settings), "--results",
                                    Path("results"), "--device", "cpu"});
  ASSERT_EQ(ended.status, 0) << ended.output;
  const nlohmann::json results = Results("results");
  EXPECT_EQ(results["completed"], true);
  EXPECT_EQ(results["epochs"], 3);
  EXPECT_EQ(results["updates"], 3 * 512 / 16);
  EXPECT_EQ(results["skipped_batches"], 0);
  EXPECT_EQ(results["examples"], 3 * 512);
  EXPECT_GT(results["test_accuracy"].get<double>(), 0.8);
}

INSTANTIATE_TEST_SUITE_P(
    All, ElasticRunTest,
    ::testing::Values(
        ElasticRun{"easgd",
                   {"update.rule=easgd", "update.momentum=", "schedule.learning_rate=0.1"}},
        ElasticRun{"eamsgd", {"update.rule=eamsgd"}},
        ElasticRun{"easgd_rounds",
                   {"update.rule=easgd", "update.momentum=", "schedule.learning_rate=0.1",
                    "update.synchronous=true"}},
        ElasticRun{"eamsgd_rounds", {"update.rule=eamsgd", "update.synchronous=true"}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace foreshard
