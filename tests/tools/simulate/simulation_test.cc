#include "tools/simulate/simulation.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/core/catalogue.h"
#include "common/net/job_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/job_setup.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

constexpr char kJob[] =
    "name: 'simulated' seed: 3 model { name: 'synthetic' elements: 6000 } "
    "data { format: 'synthetic' examples: 400 } "
    "training { epochs: 3 batch_size: 10 workers: 4 } "
    "update { rule: 'dana_zero' momentum: 0.9 } schedule { learning_rate: 0.2 } "
    "servers { shards: 2 segment_elements: 2048 } compression { block_elements: 512 }";

class SimulationTest : public ::testing::Test {
 protected:
  // 120 batches of `seconds` each, on machines that vary by `variation`.
  absl::StatusOr<SimulationResult> Run(const std::vector<std::string>& overrides,
                                       GammaClockOptions clock = {}, NetworkModel network = {}) {
    const auto job = ParseJobSpec(kJob, "the test's job", overrides);
    if (!job.ok()) return job.status();
    if (clock.workers == 1) clock.workers = job->training().workers();
    train_ = LoadTrainingData(*job).value();
    test_ = LoadTestData(*job, *train_).value();
    return Simulate({.job = *job,
                     .clock = BatchClock::Gamma(clock).value(),
                     .network = network,
                     .train = train_.get(),
                     .test = test_.get(),
                     .stop = &stop_,
                     .progress = progress_});
  }

  std::unique_ptr<Dataset> train_, test_;
  std::atomic<bool> stop_{false};
  std::function<void(const SimulationProgress&)> progress_;
};

TEST_F(SimulationTest, TrainsEveryBatchOnce) {
  const SimulationResult result = Run({}).value();
  EXPECT_EQ(result.batches, 120);
  EXPECT_EQ(result.updates, 120);
  EXPECT_EQ(std::accumulate(result.worker_batches.begin(), result.worker_batches.end(), 0ull), 120);
  ASSERT_EQ(result.curve.size(), 3);
  EXPECT_DOUBLE_EQ(result.curve[0].epoch, 1);
  EXPECT_DOUBLE_EQ(result.curve[2].epoch, 3);
  EXPECT_LT(result.curve[2].loss, result.curve[0].loss);
  EXPECT_EQ(result.final_loss, result.curve[2].loss);
  EXPECT_FALSE(result.diverged);
  // Each of 6000 elements, as fp32, in every batch.
  EXPECT_EQ(result.push_bytes, 120 * 6000 * 4);
  EXPECT_EQ(result.pull_bytes, 120 * 6000 * 4);
}

TEST_F(SimulationTest, ProgressHasTheLastEvaluation) {
  std::vector<SimulationProgress> seen;
  progress_ = [&](const SimulationProgress& progress) { seen.push_back(progress); };
  const SimulationResult result = Run({}).value();
  ASSERT_EQ(seen.size(), 3u);  // at 32, 64 and 96 of 120; an epoch has 40
  EXPECT_TRUE(std::isnan(seen[0].accuracy));
  EXPECT_EQ(seen[1].accuracy, result.curve[0].accuracy);
  EXPECT_EQ(seen[2].accuracy, result.curve[1].accuracy);
}

TEST_F(SimulationTest, SameSeedSameBits) {
  const SimulationResult one = Run({"compression.push=one_bit"}).value();
  const SimulationResult two = Run({"compression.push=one_bit"}).value();
  EXPECT_EQ(one.parameters_checksum, two.parameters_checksum);
  EXPECT_EQ(one.virtual_seconds, two.virtual_seconds);
  EXPECT_EQ(one.gap_mean, two.gap_mean);
  EXPECT_EQ(one.lag_counts, two.lag_counts);
  const SimulationResult other = Run({"compression.push=one_bit", "seed=4"}).value();
  EXPECT_NE(one.parameters_checksum, other.parameters_checksum);
}

// Every codec, asynchronously and in rounds: the loss falls to half, as without one, and fewer
// bytes are pushed.
TEST_F(SimulationTest, TrainsWithEveryCodec) {
  for (const std::vector<std::string>& mode :
       {std::vector<std::string>{"update.rule=dana_zero"}, {"update.rule=ssgd"}}) {
    std::vector<std::string> plain_overrides = mode;
    plain_overrides.insert(plain_overrides.end(), {"training.epochs=10", "schedule.learning_rate=0.05"});
    const SimulationResult plain = Run(plain_overrides).value();
    ASSERT_LT(plain.curve.back().loss, 0.5 * plain.curve[0].loss);
    for (const CodecTraits& codec : Codecs()) {
      if (codec.name == "none") continue;
      SCOPED_TRACE(absl::StrCat(mode[0], " ", std::string(codec.name)));
      std::vector<std::string> overrides = plain_overrides;
      overrides.push_back(absl::StrCat("compression.push=", std::string(codec.name)));
      if (codec.fraction) overrides.push_back("compression.fraction=0.125");
      const SimulationResult result = Run(overrides).value();
      ASSERT_EQ(result.curve.size(), 10);
      EXPECT_LT(result.curve.back().loss, 0.5 * plain.curve[0].loss);
      EXPECT_LE(result.push_bytes, plain.push_bytes / 2);
    }
  }
}

TEST_F(SimulationTest, OneWorkerHasNoLagAndNoSurprise) {
  const SimulationResult result = Run({"training.workers=1"}).value();
  EXPECT_EQ(result.lag_max, 0);
  EXPECT_NEAR(result.surprise_mean, 0, 1e-7);
  // What dana_zero sends lies ahead of theta by design.
  EXPECT_GT(result.gap_mean, 1e-6);
  EXPECT_EQ(result.virtual_seconds, result.ideal_seconds);
}

TEST_F(SimulationTest, TheMeanLagTendsToAllOthersWhateverTheSpeeds) {
  for (const double machines : {0.0, 0.6}) {
    const SimulationResult result =
        Run({"training.workers=8", "training.epochs=20"}, {.machine_variation = machines}).value();
    EXPECT_NEAR(result.lag_mean, 7, 0.3) << machines;
    EXPECT_GT(result.surprise_mean, 0);
  }
}

TEST_F(SimulationTest, EqualMachinesWithoutVariationTakeTurns) {
  const SimulationResult result = Run({}, {.batch_seconds = 2, .variation = 0}).value();
  // 30 rounds of 4; the first ones find 0, 1, 2 and 3 updates, all others 3.
  EXPECT_EQ(result.virtual_seconds, 60);
  EXPECT_EQ(result.lag_counts[3], 117);
  EXPECT_EQ(result.lag_counts[0], 1);
  EXPECT_EQ(result.lag_p99, 3);
  EXPECT_EQ(result.speedup_over_synchronous(), 1);
}

TEST_F(SimulationTest, VirtualTimeIsThatOfTheClock) {
  const SimulationResult asynchronous = Run({}, {.machine_variation = 0.6, .seed = 5}).value();
  EXPECT_DOUBLE_EQ(asynchronous.virtual_seconds, asynchronous.ideal_seconds);
  EXPECT_GT(asynchronous.speedup_over_synchronous(), 1.1);
  const SimulationResult synchronous =
      Run({"update.rule=ssgd"}, {.machine_variation = 0.6, .seed = 5}).value();
  EXPECT_NEAR(synchronous.virtual_seconds, synchronous.synchronous_seconds, 1e-9);
  EXPECT_EQ(synchronous.lag_max, 0);
  EXPECT_EQ(synchronous.batches, 120);
}

TEST_F(SimulationTest, ElasticWorkersExchangeNowAndThen) {
  const std::vector<std::string> job = {"update.rule=eamsgd", "update.local_steps=7"};
  const SimulationResult result = Run(job, {.machine_variation = 0.6}).value();
  EXPECT_EQ(result.batches, 120);
  EXPECT_EQ(result.updates, 120);
  EXPECT_EQ(std::accumulate(result.worker_batches.begin(), result.worker_batches.end(), 0ull), 120);
  EXPECT_LT(result.final_loss, result.curve[0].loss);
  // Whole sevens, and at the end what is left, of each worker.
  uint64_t exchanges = 0;
  for (const uint64_t batches : result.worker_batches) exchanges += (batches + 6) / 7;
  EXPECT_EQ(result.push_bytes, exchanges * 6000 * 4);
  EXPECT_EQ(result.pull_bytes, 2 * result.push_bytes);  // the center before and after
  EXPECT_EQ(result.lag_max, 0);  // without a network nothing comes between pull and push
  EXPECT_EQ(result.parameters_checksum,
            Run(job, {.machine_variation = 0.6}).value().parameters_checksum);
}

TEST_F(SimulationTest, ElasticRoundsWaitAtTheExchangeOnly) {
  const SimulationResult result =
      Run({"update.rule=easgd", "update.momentum=", "update.local_steps=7",
           "update.synchronous=true"})
          .value();
  EXPECT_EQ(result.batches, 120);
  EXPECT_EQ(result.push_bytes, 4 * 5 * 6000 * 4);  // 30 steps of each of four
  EXPECT_EQ(result.pull_bytes, result.push_bytes);
  EXPECT_LT(result.virtual_seconds, result.synchronous_seconds);
  // A worker pushes when its seven steps are made and the round before has closed.
  const BatchClock clock = BatchClock::Gamma({.workers = 4}).value();
  std::vector<double> pushed(4);
  double closed = 0;
  for (uint64_t first = 0; first < 30; first += 7) {
    for (uint32_t k = 0; k < 4; ++k) {
      for (uint64_t step = first; step < std::min<uint64_t>(first + 7, 30); ++step) {
        pushed[k] += clock.BatchSeconds(k, step);
      }
      pushed[k] = std::max(pushed[k], closed);
    }
    closed = *std::max_element(pushed.begin(), pushed.end());
  }
  EXPECT_NEAR(result.virtual_seconds, closed, 1e-9);
}

// A round trip for the center holds a worker up; that of the push is hidden by the steps
// that go on, unless it is longer than they are.
TEST_F(SimulationTest, ElasticStepsHideThePush) {
  const std::vector<std::string> job = {"update.rule=eamsgd", "training.workers=1",
                                        "training.epochs=1"};
  const GammaClockOptions clock = {.batch_seconds = 1, .variation = 0};
  EXPECT_NEAR(Run(job, clock, {.latency_seconds = 0.5}).value().virtual_seconds, 40 + 4 + 1, 1e-9);
  // 10, pull to 30, push to 50, pull to 70, ...
  EXPECT_NEAR(Run(job, clock, {.latency_seconds = 10}).value().virtual_seconds, 10 + 4 * 40, 1e-9);
}

TEST_F(SimulationTest, ElasticWorkersGoWithBounds) {
  for (const NetworkModel& network : {NetworkModel{}, NetworkModel{.latency_seconds = 3}}) {
    const SimulationResult result =
        Run({"update.rule=eamsgd", "training.staleness_bound=2", "schedule.ramp_epochs=1"},
            {.machine_variation = 0.6}, network)
            .value();
    EXPECT_EQ(result.batches, 120);
    EXPECT_EQ(result.updates, 120);
  }
}

TEST_F(SimulationTest, ElasticParametersThatRunAwayAreDivergence) {
  const SimulationResult result =
      Run({"update.rule=eamsgd", "schedule.learning_rate=1e30"}).value();
  EXPECT_TRUE(result.diverged);
  EXPECT_LT(result.diverged_epoch, 1);
}

TEST_F(SimulationTest, MessagesTakeTheirTime) {
  // One worker and one shard with one segment: each step is a batch, a push of 24,000
  // bytes and a reply of as many, one after the other.
  const std::vector<std::string> job = {"training.workers=1", "training.epochs=1",
                                        "servers.shards=1", "servers.segment_elements=6000"};
  const GammaClockOptions clock = {.batch_seconds = 1, .variation = 0};
  const SimulationResult plain = Run(job, clock).value();
  EXPECT_DOUBLE_EQ(plain.virtual_seconds, 40);
  const SimulationResult late = Run(job, clock, {.latency_seconds = 0.25}).value();
  EXPECT_DOUBLE_EQ(late.virtual_seconds, 40 * 1.5);
  const SimulationResult narrow = Run(job, clock, {.worker_bytes_per_second = 24'000}).value();
  EXPECT_NEAR(narrow.virtual_seconds, 40 * 3, 40 * 0.05);
  // The same parameters: with one worker time changes nothing.
  EXPECT_EQ(plain.parameters_checksum, narrow.parameters_checksum);
}

TEST_F(SimulationTest, WorkersShareTheServersLink) {
  // Eight workers that compute in no time to speak of: the server's link is what is
  // busy, 24,200 bytes a push.
  const SimulationResult result =
      Run({"training.workers=8", "servers.shards=1", "servers.segment_elements=6000"},
          {.batch_seconds = 1e-6}, {.server_bytes_per_second = 24'200})
          .value();
  EXPECT_NEAR(result.virtual_seconds, 121, 1);
}

TEST_F(SimulationTest, CompressedMessagesAreSmallerAndDecoded) {
  const SimulationResult plain = Run({}).value();
  const SimulationResult small =
      Run({"compression.push=one_bit", "compression.reply=bf16"}, {}, {.latency_seconds = 0.01})
          .value();
  EXPECT_LT(small.push_bytes * 25, plain.push_bytes);
  // The first replies to a slot's reads are whole.
  EXPECT_EQ(small.pull_bytes * 2, plain.pull_bytes);
  EXPECT_LT(small.final_loss, 1.5 * plain.final_loss);
}

TEST_F(SimulationTest, OneBitBothWaysMovesAsMuchEitherWay) {
  const std::vector<std::string> job = {"compression.push=one_bit", "training.epochs=6",
                                        "schedule.learning_rate=0.05"};
  std::vector<std::string> both = job;
  both.push_back("compression.reply=one_bit");
  for (const NetworkModel& network : {NetworkModel{}, NetworkModel{.latency_seconds = 0.3}}) {
    const SimulationResult full = Run(job, {.machine_variation = 0.6}, network).value();
    const SimulationResult result = Run(both, {.machine_variation = 0.6}, network).value();
    // First parameters, which nobody counts, are in full precision; no reply to a push is.
    EXPECT_EQ(result.pull_bytes, result.push_bytes);
    EXPECT_LT(result.pull_bytes, full.pull_bytes / 25);
    EXPECT_EQ(result.lag_counts, full.lag_counts);
    EXPECT_LT(result.final_loss, result.curve[0].loss / 5);
    // What the codec still owes is a part of how far the parameters are from the worker's.
    EXPECT_GT(result.surprise_mean, full.surprise_mean);
    EXPECT_EQ(result.parameters_checksum,
              Run(both, {.machine_variation = 0.6}, network).value().parameters_checksum);
  }
}

TEST_F(SimulationTest, SlimIsZeroThroughAStepOfTheRate) {
  // With the exact repair both train the same; the repair waits for the batches under way.
  const std::vector<std::string> steps = {"schedule.decay=step", "schedule.decay_epochs=1,2",
                                          "schedule.decay_factor=0.1", "training.workers=4"};
  std::vector<std::string> slim = steps;
  slim.push_back("update.rule=dana_slim");
  const SimulationResult zero = Run(steps, {.variation = 0}).value();
  const SimulationResult repaired = Run(slim, {.variation = 0}).value();
  EXPECT_EQ(repaired.batches, 120);
  EXPECT_EQ(repaired.virtual_seconds, zero.virtual_seconds);
  // At the steps zero's workers hold parameters of the old rate, slim's new ones.
  EXPECT_LT(repaired.surprise_mean, zero.surprise_mean);
  EXPECT_GT(repaired.surprise_mean, 0.8 * zero.surprise_mean);
  // Zero is evaluated at theta, slim at what it sends, which momentum has moved on.
  EXPECT_NEAR(repaired.final_loss, zero.final_loss, 0.05 * zero.final_loss);
  const SimulationResult unequal = Run(slim, {.machine_variation = 0.6}).value();
  EXPECT_EQ(unequal.batches, 120);
  EXPECT_GT(unequal.virtual_seconds, unequal.ideal_seconds);
}

TEST_F(SimulationTest, ADelayBoundsTheRateAsTheorySays) {
  // Plain SGD with a delay of 7, curvature at most 1: stable up to 2 sin(pi / 30) = 0.209.
  const auto loss = [&](const std::string& rule, double rate) {
    std::vector<std::string> job = {"model.name=quadratic",     "model.elements=256",
                                    "training.workers=8",       "training.epochs=10",
                                    "servers.shards=1",         "update.rule=" + rule,
                                    absl::StrCat("schedule.learning_rate=", rate),
                                    "data.examples=3000",       "compression.block_elements=64",
                                    "servers.segment_elements=256"};
    if (rule == "asgd") job.push_back("update.momentum=");
    const SimulationResult result = Run(job, {.variation = 0}).value();
    return result.diverged ? HUGE_VAL : result.final_loss;
  };
  EXPECT_LT(loss("asgd", 0.19), 1);
  EXPECT_GT(loss("asgd", 0.23), 1e3);
  // Look-ahead bears rates at which momentum without it runs away.
  EXPECT_LT(loss("dana_zero", 0.06), 1);
  EXPECT_GT(loss("nag_asgd", 0.06), 1e3);
  EXPECT_GT(loss("lwp", 0.06), 1e3);
  EXPECT_GT(loss("multi_asgd", 0.06), 1e3);
}

// Ten rounds an epoch, of a rule that squeezes; the variance forgets in 20.
std::vector<std::string> Squeeze(const std::vector<std::string>& overrides) {
  std::vector<std::string> all = {"update.rule=apmsqueeze",  "update.momentum=", "update.beta2=0.95",
                                  "schedule.learning_rate=0.01", "training.epochs=20"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return all;
}

TEST_F(SimulationTest, TheVarianceIsFrozenWhereItIsStable) {
  const SimulationResult result = Run(Squeeze({"apmsqueeze.automatic_freeze=true", "schedule.learning_rate=0.02"})).value();
  ASSERT_EQ(result.phase_changes.size(), 1u);
  EXPECT_TRUE(result.phase_changes[0].compressed);
  // v has forgotten its start after about four spans.
  EXPECT_GT(result.phase_changes[0].round, 60u);
  EXPECT_LT(result.phase_changes[0].round, 180u);
  // One bit an element and a scale a block, from then on.
  const double full = 4.0 * 6000 * 4 * static_cast<double>(result.phase_changes[0].round);
  EXPECT_LT(static_cast<double>(result.push_bytes), 1.35 * full);
  EXPECT_GE(static_cast<double>(result.push_bytes), full);
  EXPECT_LT(result.curve.back().loss, 0.5 * result.curve[0].loss);
  const SimulationResult risen =
      Run(Squeeze({"apmsqueeze.automatic_freeze=true", "schedule.learning_rate=0.02", "training.epochs=40",
                   "schedule.warmup_epochs=25"})).value();
  ASSERT_EQ(risen.phase_changes.size(), 1u);
  EXPECT_GE(risen.phase_changes[0].round, 250u);
}

TEST_F(SimulationTest, TooLargeAnErrorLeadsBackToFullPrecision) {
  const SimulationResult result =
      Run(Squeeze({"apmsqueeze.warmup_rounds=20", "apmsqueeze.error_limit=0.001"})).value();
  ASSERT_EQ(result.phase_changes.size(), 1u);
  EXPECT_FALSE(result.phase_changes[0].compressed);
  EXPECT_GT(result.phase_changes[0].round, 20u);
  EXPECT_LT(result.phase_changes[0].round, 30u);
  EXPECT_LT(result.curve.back().loss, 0.5 * result.curve[0].loss);
  EXPECT_TRUE(Run(Squeeze({"apmsqueeze.warmup_rounds=20"}))->phase_changes.empty());
}

TEST_F(SimulationTest, AFreezeThatIsTooEarlyIsRefused) {
  EXPECT_THAT(std::string(Run(Squeeze({"apmsqueeze.warmup_rounds=20", "schedule.warmup_epochs=3"})).status().message()),
              HasSubstr("apmsqueeze.warmup_rounds: 20: would freeze the variance while the learning rate "
                        "still rises, up to round 30"));
  EXPECT_THAT(std::string(Run(Squeeze({"apmsqueeze.automatic_freeze=true", "update.beta2=0.995"})).status().message()),
              HasSubstr("200 rounds before, and the job has 200 rounds: it would never be frozen"));
}

TEST_F(SimulationTest, DivergenceIsAResult) {
  // |1 - eta 0.01| > 1: every step makes the vector longer, until it overflows.
  const SimulationResult result =
      Run({"update.rule=asgd", "update.momentum=", "schedule.learning_rate=1e5",
           "training.epochs=30"})
          .value();
  EXPECT_TRUE(result.diverged);
  EXPECT_GT(result.diverged_epoch, 0);
  EXPECT_LT(result.diverged_epoch, 30);
  EXPECT_TRUE(std::isfinite(result.final_loss));
  EXPECT_TRUE(std::isfinite(result.final_accuracy));
  EXPECT_LT(result.batches, 1200);
}

TEST_F(SimulationTest, StopsWhenAsked) {
  stop_ = true;
  EXPECT_EQ(Run({}).status().code(), absl::StatusCode::kCancelled);
}

TEST_F(SimulationTest, RefusesAClockOfTooFewMachines) {
  const auto result = Run({"training.workers=5"}, {.workers = 4});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(result.status().message(), HasSubstr("4 machines for 5 workers"));
}

TEST_F(SimulationTest, MeasuresBySegmentToo) {
  const SimulationResult result = Run({}).value();
  double lag = 0, squares = 0;
  uint64_t trainable = 0;
  for (const auto& segment : result.segments) {
    if (segment.gap_mean == 0) continue;
    ++trainable;
    lag += segment.lag_mean;
    squares += segment.gap_mean;
  }
  ASSERT_GT(trainable, 1u);
  EXPECT_NEAR(lag / static_cast<double>(trainable), result.lag_mean, 1e-9);
  EXPECT_NEAR(squares / static_cast<double>(trainable), result.gap_mean, 0.2 * result.gap_mean);
}

TEST(LogHistogramTest, BinsGrowByPowers) {
  LogHistogram histogram;
  histogram.Add(0);
  histogram.Add(1e-9);
  histogram.Add(1.1e-7);
  histogram.Add(1.1e-6);
  histogram.Add(1e9);
  EXPECT_EQ(histogram.counts[0], 2);
  EXPECT_EQ(histogram.counts[1], 1);
  EXPECT_EQ(histogram.counts[9], 1);
  EXPECT_EQ(histogram.counts[LogHistogram::kBins], 1);
  EXPECT_EQ(LogHistogram::LowerEdge(0), 0);
  EXPECT_NEAR(LogHistogram::LowerEdge(9), 1e-6, 1e-12);
}

}  // namespace
}  // namespace foreshard
