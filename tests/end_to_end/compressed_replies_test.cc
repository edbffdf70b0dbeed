// 1-bit both ways: that it trains as replies in full precision do, and what it moves.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/net/job_spec.h"
#include "gtest/gtest.h"
#include "tests/end_to_end/in_process_job.h"
#include "tests/end_to_end/job_folder.h"
#include "tools/simulate/clock.h"
#include "tools/simulate/simulation.h"
#include "worker/job_setup.h"

namespace foreshard {
namespace {

class CompressedRepliesTest : public EndToEndTest, public ::testing::WithParamInterface<const char*> {
 protected:
  SimulationResult Train(const std::string& reply) {
    const std::string path = WriteJob({absl::StrCat("update.rule=", GetParam()), "training.workers=4",
                                       "training.epochs=2", "schedule.learning_rate=0.002",
                                       absl::StrCat("compression.reply=", reply)});
    const v1::JobSpec job = LoadJobSpec(path, {}).value();
    const auto train = LoadTrainingData(job).value();
    const auto test = LoadTestData(job, *train).value();
    return Simulate({.job = job,
                     .clock = BatchClock::Gamma({.workers = 4, .seed = 3}).value(),
                     .train = train.get(),
                     .test = test.get()})
        .value();
  }
};

TEST_P(CompressedRepliesTest, TrainsAsFullPrecisionRepliesDo) {
  const SimulationResult full = Train("none");
  const double chance = std::log(4.0);
  for (const char* reply : {"one_bit", "one_bit_mean", "quantized"}) {
    const SimulationResult compressed = Train(reply);
    std::printf("%s, replies %s: loss %.3f, accuracy %.1f %%; in full precision %.3f, %.1f %%\n",
                GetParam(), reply, compressed.final_loss, 100 * compressed.final_accuracy,
                full.final_loss, 100 * full.final_accuracy);
    EXPECT_FALSE(compressed.diverged);
    EXPECT_GT(full.final_accuracy, 0.95);
    EXPECT_GT(compressed.final_accuracy, full.final_accuracy - 0.03);
    EXPECT_LT(compressed.final_loss, full.final_loss + 0.05 * chance);
    // The same batches in the same order, and a fraction of the bytes.
    EXPECT_EQ(compressed.batches, full.batches);
    EXPECT_EQ(compressed.lag_counts, full.lag_counts);
    EXPECT_EQ(compressed.push_bytes, full.push_bytes);
    EXPECT_LT(compressed.pull_bytes, full.pull_bytes / (std::string(reply) == "quantized" ? 6 : 25));
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, CompressedRepliesTest, ::testing::Values("dana_zero", "dana_slim"),
                         [](const auto& info) { return std::string(info.param); });

// Real servers and workers: both sides count the same, and nothing is asked for again.
TEST(CompressedReplies, MoveAThirtiethBothWays) {
  const v1::JobSpec job = SyntheticJob({"update.rule=dana_zero", "update.momentum=0.5",
                                        "schedule.learning_rate=0.1", "compression.push=one_bit",
                                        "compression.reply=one_bit", "model.elements=400000",
                                        "servers.segment_elements=65536",
                                        "compression.block_elements=4096"});
  InProcessServers servers(job);
  const auto workers = RunJob(job, servers, 3);
  uint64_t push = 0, pull = 0, push_plain = 0, pull_plain = 0, pulled = 0;
  for (size_t shard = 0; shard < servers.size(); ++shard) {
    const v1::StatusReply status = servers[shard]->status();
    EXPECT_EQ(status.pushes_duplicate(), 0u);
    EXPECT_EQ(status.pushes_rejected(), 0u);
    push += status.push_bytes();
    push_plain += status.push_uncompressed_bytes();
    pull += status.pull_bytes();
    pull_plain += status.pull_uncompressed_bytes();
  }
  std::vector<float> first(job.model().elements());
  workers[0]->model().InitialValues(job.seed(), first.data());
  double before = 0, after = 0;
  for (const auto& worker : workers) {
    pulled += worker->client().traffic().pull_bytes;
    for (size_t k = 0; k < first.size(); ++k) {
      before += std::pow(first[k], 2);
      after += std::pow(worker->client().parameters()[k], 2);
    }
  }
  EXPECT_LT(after, before);
  EXPECT_EQ(pulled, pull);
  // Each worker reads the parameters once, in full precision, when it begins.
  const uint64_t read = workers.size() * job.model().elements() * sizeof(float);
  EXPECT_EQ(pull_plain, push_plain + read);
  EXPECT_LT(push + pull - read, (push_plain + pull_plain - read) / 30);
}

}  // namespace
}  // namespace foreshard
