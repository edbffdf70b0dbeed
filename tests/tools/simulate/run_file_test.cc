#include "tools/simulate/run_file.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "gmock/gmock.h"
#include "kernels/cpu/isa.h"
#include "tests/tools/simulate/study_harness.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

class RunFileTest : public StudyTest {
 protected:
  SimulationResult Result() {
    const Study study = MustMake(R"(rules { label: "dana_zero" })");
    const StudyRun run = study.FinalRun(0, 1, 0);
    SimulationResult result = FormulaResult({.job = run.job, .clock = study.MakeClock(run)});
    result.final_accuracy = 1.0 / 3;
    result.discarded = 7;
    return result;
  }
};

TEST_F(RunFileTest, WhatIsWrittenIsReadToTheLastBit) {
  const SimulationResult result = Result();
  ASSERT_TRUE(WriteRunFile(folder_, {"key", 0xfedcba9876543210, "what it was", result}).ok());
  const absl::StatusOr<RunFile> file = ReadRunFile(folder_, "key");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->fingerprint, 0xfedcba9876543210);
  const SimulationResult& read = file->result;
  EXPECT_EQ(read.final_accuracy, 1.0 / 3);
  EXPECT_EQ(read.lag_counts, result.lag_counts);
  EXPECT_EQ(read.gaps.counts, result.gaps.counts);
  EXPECT_EQ(read.parameters_checksum, result.parameters_checksum);
  EXPECT_EQ(read.discarded, 7u);
  EXPECT_EQ(read.worker_batches, result.worker_batches);
  EXPECT_EQ(read.total_seconds, result.total_seconds);
  ASSERT_EQ(read.curve.size(), result.curve.size());
  EXPECT_EQ(read.curve[2].accuracy, result.curve[2].accuracy);
  EXPECT_EQ(read.curve[2].virtual_seconds, result.curve[2].virtual_seconds);
  ASSERT_EQ(read.segments.size(), 1u);
  EXPECT_EQ(read.segments[0].gap_mean, result.segments[0].gap_mean);
}

TEST_F(RunFileTest, WhatIsNotFiniteComesBackAsNaN) {
  SimulationResult result = Result();
  result.final_loss = std::numeric_limits<double>::infinity();
  result.diverged = true;
  ASSERT_TRUE(WriteRunFile(folder_, {"key", 1, "", result}).ok());
  const absl::StatusOr<RunFile> file = ReadRunFile(folder_, "key");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(std::isnan(file->result.final_loss));
  EXPECT_TRUE(file->result.diverged);
}

TEST_F(RunFileTest, OtherFilesAreDataLossAndNoneIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(ReadRunFile(folder_, "none").status()));
  for (const char* text : {"", "{", "{}", "[1]", "{\"format\": 1}", "{\"format\": 2}",
                           "{\"format\": 999}",
                           "{\"format\": 2, \"fingerprint\": \"xyz\", \"result\": {}}"}) {
    ASSERT_TRUE(WriteFileAtomically(Path("key.json"), text).ok());
    const absl::Status status = ReadRunFile(folder_, "key").status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << text << status;
    EXPECT_THAT(status.message(), HasSubstr("key.json"));
  }
  // Cut off.
  ASSERT_TRUE(WriteRunFile(folder_, {"key", 1, "", Result()}).ok());
  const std::string whole = *ReadFile(Path("key.json"));
  for (size_t length = 0; length + 2 < whole.size(); length += 97) {
    ASSERT_TRUE(WriteFileAtomically(Path("key.json"), whole.substr(0, length)).ok());
    EXPECT_TRUE(absl::IsDataLoss(ReadRunFile(folder_, "key").status())) << length;
  }
}

TEST_F(RunFileTest, WhatWasChangedIsDataLossThoughItParses) {
  ASSERT_TRUE(WriteRunFile(folder_, {"key", 1, "", Result()}).ok());
  const std::string whole = *ReadFile(Path("key.json"));
  // Every digit, one at a time.
  size_t changed = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    if (!absl::ascii_isdigit(whole[at])) continue;
    std::string other = whole;
    other[at] = other[at] == '9' ? '8' : other[at] + 1;
    ASSERT_TRUE(WriteFileAtomically(Path("key.json"), other).ok());
    EXPECT_TRUE(absl::IsDataLoss(ReadRunFile(folder_, "key").status())) << at;
    ++changed;
  }
  EXPECT_GT(changed, 100u);
  ASSERT_TRUE(WriteFileAtomically(Path("key.json"), whole).ok());
  EXPECT_TRUE(ReadRunFile(folder_, "key").ok());
}

TEST_F(RunFileTest, FingerprintsDependOnDescriptionAndData) {
  EXPECT_EQ(RunFingerprint("a", 1), RunFingerprint("a", 1));
  EXPECT_NE(RunFingerprint("a", 1), RunFingerprint("b", 1));
  EXPECT_NE(RunFingerprint("a", 1), RunFingerprint("a", 2));
  const uint64_t best = RunFingerprint("a", 1);
  const kernels::ScopedIsa baseline(kernels::Isa::kBaseline);
  EXPECT_EQ(RunFingerprint("a", 1) == best, kernels::BestIsa() == kernels::Isa::kBaseline);
}

}  // namespace
}  // namespace foreshard
