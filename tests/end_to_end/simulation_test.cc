// That replay and simulator tell the truth: what real daemons made of a job, against what
// the same segments make of it without them.
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/core/batch_trace.h"
#include "common/net/job_spec.h"
#include "gmock/gmock.h"
#include "server/arrivals.h"
#include "tests/end_to_end/job_folder.h"
#include "tools/files.h"
#include "tools/records.h"
#include "tools/run_figures.h"
#include "tools/simulate/clock.h"
#include "tools/simulate/replay_arrivals.h"
#include "tools/simulate/simulation.h"
#include "worker/evaluator.h"
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
    for (const std::vector<Event>& shard : arrivals) {
      for (const Event& event : shard) kinds_.insert(event.kind);
    }
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
  std::set<EventKind> kinds_;  // of events that were recorded
};

struct RecordedRule {
  std::string name;
  std::vector<std::string> overrides;
  EventKind shows = EventKind::kPush;  // what the record must have
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
        RecordedRule{"ssgd",
                     {"update.rule=ssgd", "compression.push=one_bit"},
                     EventKind::kRoundClosed}),
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
  EXPECT_TRUE(kinds_.contains(EventKind::kExpire));
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

// What a run came to, whoever made it.
struct Observed {
  std::vector<double> lags;  // share of the pushes, by lag
  double lag_mean = 0;
  uint64_t lag_p99 = 0;
  std::vector<double> losses, accuracies;  // of the master parameters, by epoch
};

void NoteLags(const std::vector<uint64_t>& counts, Observed* observed) {
  const uint64_t pushes = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  for (size_t lag = 0; lag < counts.size(); ++lag) {
    observed->lags.push_back(static_cast<double>(counts[lag]) / static_cast<double>(pushes));
    observed->lag_mean += static_cast<double>(lag) * observed->lags.back();
  }
  observed->lag_p99 = StalenessQuantile(counts, 0.99, counts.size());
}

// Of the mean over runs.
std::vector<double> MeanOf(const std::vector<Observed>& runs, std::vector<double> Observed::*what) {
  std::vector<double> mean;
  for (const Observed& run : runs) {
    const std::vector<double>& values = run.*what;
    mean.resize(std::max(mean.size(), values.size()));
    for (size_t k = 0; k < values.size(); ++k) mean[k] += values[k] / static_cast<double>(runs.size());
  }
  return mean;
}

// Half the sum of the differences: the share of pushes that would have to have another
// lag.
double TotalVariation(std::vector<double> a, std::vector<double> b) {
  a.resize(std::max(a.size(), b.size()));
  b.resize(a.size());
  double sum = 0;
  for (size_t k = 0; k < a.size(); ++k) sum += std::abs(a[k] - b[k]);
  return sum / 2;
}

// Four machines of unequal speed, three seeds: one real run for each, and what the
// simulator makes of it.
class ValidationTest : public SimulationTest {
 protected:
  static constexpr uint32_t kWorkers = 4;
  static constexpr uint32_t kEpochs = 5;
  static constexpr uint64_t kBatches = kEpochs * 32;
  static constexpr uint64_t kSeeds = 3;

  // 40 to 100 ms a batch, where computing takes one: what is not in the trace hardly
  // counts.
  static BatchTrace MakeTrace(const std::vector<double>& means) {
    BatchTrace trace;
    for (const double mean : means) {
      const BatchClock clock = BatchClock::Gamma({.workers = 1,
                                                  .batch_seconds = mean,
                                                  .variation = 0.2,
                                                  .seed = trace.size()})
                                   .value();
      trace.emplace_back();
      for (uint64_t step = 0; step < kBatches; ++step) {
        trace.back().push_back(clock.BatchSeconds(0, step));
      }
    }
    return trace;
  }

  // At this rate the staleness of the first epoch shows in the loss.
  void Prepare(uint64_t seed) {
    Begin({absl::StrCat("seed=", seed), absl::StrCat("training.workers=", kWorkers),
           absl::StrCat("training.epochs=", kEpochs), "update.rule=dana_zero",
           "compression.push=none", "schedule.learning_rate=0.001"});
  }

  // Daemons that follow the trace, to the end. Returns what their batches took.
  BatchTrace RunDaemons(const BatchTrace& pace) {
    const std::string flag = WritePace(pace);
    std::vector<std::string> parts;
    for (uint32_t k = 0; k < kWorkers; ++k) {
      parts.push_back(Path(absl::StrCat("batches-", k, ".csv")));
      EXPECT_TRUE(
          fleet_->StartWorker(k, {flag, absl::StrCat("--record-batches=", parts.back())}).ok());
    }
    master_ = AwaitMaster();
    arrivals_ = EndAndLoadArrivals();
    const absl::Status merged = MergeBatches(parts, Path("batches.csv"));
    EXPECT_TRUE(merged.ok()) << merged;
    auto taken = LoadTrace(Path("batches.csv"));
    EXPECT_TRUE(taken.ok()) << taken.status();
    return taken.ok() ? *std::move(taken) : pace;
  }

  // By how much the slowest batches of a machine were slower than they should have been.
  static double Overrun(const BatchTrace& pace, const BatchTrace& taken) {
    double most = 0;
    for (size_t worker = 0; worker < taken.size(); ++worker) {
      double wanted = 0, had = 0;
      for (size_t step = 0; step < taken[worker].size(); ++step) {
        wanted += pace[worker][step % pace[worker].size()];
        had += taken[worker][step];
      }
      most = std::max(most, had / wanted - 1);
    }
    return most;
  }

  // `updates`: after how many of them each epoch was complete.
  Observed Simulated(const BatchTrace& trace, std::vector<uint64_t>* updates) {
    SimulationOptions options = {.job = job_,
                                 .clock = BatchClock::Trace(trace, trace.size()).value(),
                                 .train = train_.get(),
                                 .test = test_.get()};
    options.job.mutable_training()->set_workers(trace.size());
    const auto result = Simulate(options);
    EXPECT_TRUE(result.ok()) << result.status();
    Observed observed;
    NoteLags(result->lag_counts, &observed);
    for (const CurvePoint& point : result->curve) {
      observed.losses.push_back(point.loss);
      observed.accuracies.push_back(point.accuracy);
      updates->push_back(std::lround(point.epoch / kEpochs * kBatches));
    }
    return observed;
  }

  // The run of the daemons, seen after as many updates.
  Observed Real(const std::vector<uint64_t>& updates) {
    const auto replayed = ReplayArrivals(job_, *train_, arrivals_, {.cuts = updates});
    EXPECT_TRUE(replayed.ok()) << replayed.status();
    Observed observed;
    if (!replayed.ok()) return observed;
    EXPECT_EQ(replayed->parameters, master_);
    EXPECT_EQ(replayed->cuts.size(), kEpochs);
    Evaluator evaluator({.seed = job_.seed(),
                         .batch_size = job_.training().batch_size(),
                         .recalibration_batches = job_.evaluation().recalibration_batches()},
                        model_.get(), train_.get(), test_.get());
    for (std::vector<float> parameters : replayed->cuts) {
      const auto evaluation = evaluator.Evaluate(parameters.data(), 0);
      EXPECT_TRUE(evaluation.ok()) << evaluation.status();
      observed.losses.push_back(evaluation->loss());
      observed.accuracies.push_back(evaluation->accuracy());
    }
    NoteLags(LagsWithAll(), &observed);
    return observed;
  }

  // Of the first segment, from when every worker has pushed: processes do not start
  // all at once, virtual workers do.
  std::vector<uint64_t> LagsWithAll() const {
    std::vector<uint64_t> counts(kBatches);
    std::set<uint32_t> seen;
    uint64_t version = 0;
    for (const Event& event : arrivals_[0]) {
      if (event.segment != 0 || event.kind != EventKind::kPush) continue;
      if (seen.size() == kWorkers) ++counts[version - event.held_version];
      seen.insert(event.worker);
      ++version;
    }
    return counts;
  }

  // Of the difference of two means over the seeds, from the spread over seeds.
  static double StandardError(const std::vector<Observed>& a, const std::vector<Observed>& b,
                              size_t epoch) {
    double error = 0;
    for (const std::vector<Observed>* runs : {&a, &b}) {
      const double mean = MeanOf(*runs, &Observed::losses)[epoch];
      double squares = 0;
      for (const Observed& run : *runs) squares += std::pow(run.losses[epoch] - mean, 2);
      error += squares / (kSeeds - 1) / kSeeds;
    }
    return std::sqrt(error);
  }

  static void Print(const char* name, const std::vector<Observed>& runs) {
    for (uint64_t seed = 1; seed <= runs.size(); ++seed) {
      const Observed& run = runs[seed - 1];
      std::printf("%-10s %4d   %8.2f %7d   ", name, static_cast<int>(seed), run.lag_mean,
                  static_cast<int>(run.lag_p99));
      for (size_t k = 0; k < run.losses.size(); ++k) {
        std::printf(" %.3f/%5.1f%%", run.losses[k], 100 * run.accuracies[k]);
      }
      std::printf("\n");
    }
  }

  std::vector<float> master_;
  std::vector<std::vector<Event>> arrivals_;
};

TEST_F(ValidationTest, DaemonsAndSimulatorAgreeOnLagAndLearningCurve) {
  // Measured on two cores with a load of ten: 0.03 at most, and 0.08 to 0.13
  // (tools/README.md). A worker more or less would be 1 in the mean.
  constexpr double kLagTolerance = 0.3;        // of the mean, in updates
  constexpr double kVariationTolerance = 0.2;  // of the distribution
  const BatchTrace pace = MakeTrace({0.040, 0.045, 0.050, 0.100});
  std::vector<Observed> real, simulated, alone, equal;
  double overrun = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ASSERT_NO_FATAL_FAILURE(Prepare(seed));
    const BatchTrace taken = RunDaemons(pace);
    overrun = std::max(overrun, Overrun(pace, taken));
    // A machine that cannot keep to the trace has made another one.
    const BatchTrace& trace = Overrun(pace, taken) < 0.05 ? pace : taken;
    std::vector<uint64_t> updates, others;
    simulated.push_back(Simulated(trace, &updates));
    real.push_back(Real(updates));
    ASSERT_FALSE(HasFailure());
    // What the simulator would say of other fleets.
    alone.push_back(Simulated(MakeTrace({0.040}), &others));
    equal.push_back(Simulated(MakeTrace(std::vector<double>(kWorkers, 0.050)), &others));
  }
  std::printf("batches took up to %.1f %% longer than the trace\n", 100 * overrun);
  std::printf("           seed   mean lag p99 lag    loss/accuracy by epoch\n");
  Print("daemons", real);
  Print("simulated", simulated);
  Print("N = 1", alone);
  Print("equal", equal);

  const auto lag_mean = [](const std::vector<Observed>& runs) {
    double mean = 0;
    for (const Observed& run : runs) mean += run.lag_mean / static_cast<double>(runs.size());
    return mean;
  };
  const auto distance = [&](const std::vector<Observed>& runs) {
    return TotalVariation(MeanOf(real, &Observed::lags), MeanOf(runs, &Observed::lags));
  };
  std::printf("total variation between lags, to the simulation %.3f, to equal machines %.3f\n",
              distance(simulated), distance(equal));
  EXPECT_NEAR(lag_mean(real), lag_mean(simulated), kLagTolerance);
  EXPECT_LT(distance(simulated), kVariationTolerance);
  EXPECT_GT(distance(equal), distance(simulated));
  const std::vector<double> of_real = MeanOf(real, &Observed::losses);
  const std::vector<double> of_simulated = MeanOf(simulated, &Observed::losses);
  for (size_t epoch = 0; epoch < kEpochs; ++epoch) {
    EXPECT_NEAR(of_real[epoch], of_simulated[epoch], StandardError(real, simulated, epoch))
        << "epoch " << epoch + 1;
  }
  // The noise is small enough to tell a fleet from a single worker.
  EXPECT_GT(std::abs(of_real[0] - MeanOf(alone, &Observed::losses)[0]),
            StandardError(real, alone, 0));
}

}  // namespace
}  // namespace foreshard
