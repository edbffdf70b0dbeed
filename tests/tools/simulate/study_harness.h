// What the tests of studies share: a folder with a small job, a study on it, and an
// engine whose results are a formula.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "google/protobuf/text_format.h"
#include "tools/files.h"
#include "tools/simulate/runner.h"
#include "tools/simulate/simulation.h"
#include "tools/simulate/study.h"

namespace foreshard {

inline constexpr char kTestJob[] = R"(
name: "tiny" seed: 9
model { name: "synthetic" elements: 100 }
data { format: "synthetic" examples: 40 }
training { epochs: 4 batch_size: 1 workers: 2 }
update { rule: "dana_zero" momentum: 0.9 }
schedule { learning_rate: 0.05 warmup_epochs: 1 decay: "step" decay_epochs: [2, 3] decay_factor: 0.1 }
servers { shards: 1 }
)";

class StudyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = absl::StrCat(::testing::TempDir(), info->test_suite_name(), ".", info->name(), ".",
                           getpid());
    std::filesystem::create_directories(folder_);
    ASSERT_TRUE(WriteFileAtomically(Path("job.textproto"), kTestJob).ok());
  }
  void TearDown() override {
    if (!HasFailure()) std::filesystem::remove_all(folder_);
  }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  // Of the study's text; name, job, workers and seeds have defaults.
  absl::StatusOr<Study> Make(const std::string& text, const StudyChanges& changes = {}) const {
    v1::StudySpec spec;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec)) << text;
    if (spec.name().empty()) spec.set_name("test");
    if (spec.job().empty()) spec.set_job("job.textproto");
    if (spec.workers().empty()) spec.add_workers(2);
    if (spec.seeds().empty()) spec.add_seeds(1);
    return Study::Create(std::move(spec), folder_, "the study", changes);
  }
  Study MustMake(const std::string& text, const StudyChanges& changes = {}) const {
    absl::StatusOr<Study> study = Make(text, changes);
    if (!study.ok()) ADD_FAILURE() << study.status();
    return *std::move(study);
  }

  std::string folder_;
};

// Best at a rate of 0.02 (dana_zero: 0.04), worse with more workers; diverges above 0.2.
inline SimulationResult FormulaResult(const SimulationOptions& options) {
  const v1::JobSpec& job = options.job;
  const double rate = job.schedule().learning_rate();
  const double best = job.update().rule() == "dana_zero" ? 0.04 : 0.02;
  SimulationResult result;
  result.diverged = rate > 0.2;
  result.batches = result.updates = 40ull * job.training().epochs();
  if (result.diverged) {
    result.diverged_epoch = 0.5;
    result.final_accuracy = 0.1;
    result.final_loss = std::nan("");
    result.batches = 20;
  } else {
    result.final_accuracy = 0.9 - 0.1 * std::fabs(std::log2(rate / best)) -
                            0.001 * job.training().workers() + 0.0001 * job.seed() +
                            0.002 * job.training().epochs();
    result.final_loss = 1 - result.final_accuracy;
    for (uint32_t epoch = 1; epoch <= job.training().epochs(); ++epoch) {
      result.curve.push_back({static_cast<double>(epoch), 10.0 * epoch, 0.5 / epoch, 0.6 / epoch,
                              result.final_accuracy - 0.1 / epoch});
    }
  }
  result.best_accuracy = result.final_accuracy;
  const uint32_t workers = job.training().workers();
  result.lag_counts = std::vector<uint64_t>(2 * workers, 0);
  result.lag_counts[workers - 1] = result.batches;
  result.lag_mean = workers - 1;
  result.lag_p99 = result.lag_max = workers - 1;
  result.gap_mean = 0.001 * workers;
  result.surprise_mean = 0.0005;
  for (int i = 0; i < 5; ++i) result.gaps.Add(0.001 * workers * (i + 1));
  result.segments = {{result.lag_mean, result.gap_mean, result.surprise_mean}};
  result.virtual_seconds = 40.0 / workers;
  result.synchronous_seconds = 1.2 * result.virtual_seconds;
  result.ideal_seconds = 0.98 * result.virtual_seconds;
  result.worker_batches.assign(workers, result.batches / workers);
  result.gradient_seconds = 1;
  result.evaluation_seconds = 0.5;
  result.total_seconds = 1.6;
  result.parameters_checksum = 0x1234567890abcdef ^ job.seed();
  return result;
}

}  // namespace foreshard
