// That the simulator tells the truth: real daemons that follow a trace, against virtual
// workers with that trace.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/end_to_end/recorded_run.h"
#include "tools/records.h"
#include "tools/run_figures.h"
#include "tools/simulate/clock.h"
#include "tools/simulate/simulation.h"
#include "worker/evaluator.h"

namespace foreshard {
namespace {

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
class ValidationTest : public RecordedRunTest {
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
