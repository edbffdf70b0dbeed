// A residual network on CIFAR's format, with real daemons.
#include <string>

#include "absl/strings/str_cat.h"
#include "common/net/job_spec.h"
#include "gmock/gmock.h"
#include "kernels/device.h"
#include "tests/end_to_end/job_folder.h"
#include "tools/files.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

constexpr int kBatch = 16, kTraining = 3 * kBatch + 5, kTest = 20;

// Images with one channel and one half brighter, by class.
std::string Records(int examples) {
  std::string bytes;
  for (int i = 0; i < examples; ++i) {
    const int label = i % 10;
    bytes += static_cast<char>(label);
    for (int channel = 0; channel < 3; ++channel) {
      for (int pixel = 0; pixel < 32 * 32; ++pixel) {
        const bool bright = channel == label % 3 && (pixel < 512) == (label < 5);
        bytes += static_cast<char>((pixel * 37 + i * 11) % 64 + (bright ? 150 : 30));
      }
    }
  }
  return bytes;
}

class CifarRunTest : public EndToEndTest {
 protected:
  void SetUp() override {
    EndToEndTest::SetUp();
    const std::string training = Records(kTraining);
    const size_t first = 20 * 3073;
    ASSERT_TRUE(WriteFileAtomically(Path("a.bin"), training.substr(0, first)).ok());
    ASSERT_TRUE(WriteFileAtomically(Path("b.bin"), training.substr(first)).ok());
    ASSERT_TRUE(WriteFileAtomically(Path("test.bin"), Records(kTest)).ok());
    absl::StatusOr<v1::JobSpec> job = LoadJobSpec(
        FORESHARD_SOURCE_DIR "/deploy/jobs/cifar10_resnet20_dana.textproto",
        {absl::StrCat("data.directory=", folder_), "data.train_files=a.bin,b.bin",
         "data.test_files=test.bin", "training.epochs=2", "training.workers=2",
         absl::StrCat("training.batch_size=", kBatch), "schedule.warmup_epochs=0",
         "schedule.decay_epochs=1", "evaluation.recalibration_batches=2", "compression.push=one_bit"});
    ASSERT_TRUE(job.ok()) << job.status();
    ASSERT_TRUE(WriteFileAtomically(Path("job.textproto"), PrintJobSpec(*job)).ok());
  }
  Ended Run(const std::string& device = "cpu") {
    return RunForeshard({"run", "--job", Path("job.textproto"), "--results", Path("results"),
                         "--device", device});
  }
};

TEST_F(CifarRunTest, TrainsAndEvaluatesResnet20) {
  const Ended ended = Run();
  ASSERT_EQ(ended.status, 0) << ended.output;
  const nlohmann::json results = Results("results");
  EXPECT_TRUE(results["completed"].get<bool>());
  EXPECT_EQ(results["examples"].get<int>(), 2 * kTraining);
  EXPECT_EQ(results["updates"].get<int>(), 2 * 4);
  EXPECT_EQ(results["skipped_batches"].get<int>(), 0);
  ASSERT_TRUE(results["test_accuracy"].is_number());
  EXPECT_TRUE(results["test_loss"].is_number());
}

TEST_F(CifarRunTest, ADamagedFileEndsItWithTwoAndItsName) {
  ASSERT_TRUE(WriteFileAtomically(Path("b.bin"), Records(3) + "x").ok());
  const Ended ended = Run();
  EXPECT_EQ(ended.status, 2) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("b.bin: has 9220 bytes"));
}

TEST_F(CifarRunTest, ADeviceThatIsNotThereEndsItWithThree) {
  if (kernels::MakeDevice("cuda").ok()) GTEST_SKIP() << "there is a GPU";
  const Ended ended = Run("cuda:1");
  EXPECT_EQ(ended.status, 3) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("device 'cuda:1' cannot be used: "));
  EXPECT_THAT(ended.output, HasSubstr("--device=cpu"));
}

}  // namespace
}  // namespace foreshard
