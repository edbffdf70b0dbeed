// Pictures packed by the command, and a job on them with real daemons, which also starts from
// given weights.
#include <cmath>
#include <filesystem>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/net/job_spec.h"
#include "gmock/gmock.h"
#include "tests/end_to_end/job_folder.h"
#include "tools/files.h"
#include "worker/data/image_codec.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

constexpr int kBatch = 8, kTraining = 5 * kBatch + 3, kTest = 24;

class PackedRunTest : public EndToEndTest {
 protected:
  void SetUp() override {
    EndToEndTest::SetUp();
    WritePictures("pictures/train", kTraining, 1);
    WritePictures("pictures/test", kTest, 2);
    for (const std::string folder : {"train", "test"}) {
      const Ended packed = RunForeshard({"pack-images", "--input", Path("pictures/" + folder), "--output",
                                         Path(folder), "--size", "24", "--shards", "2"});
      ASSERT_EQ(packed.status, 0) << packed.output;
      EXPECT_THAT(packed.output, HasSubstr(" images in 2 shards"));
    }
  }
  // Noise, brighter in red, green or blue, which is the class; of several sizes.
  void WritePictures(const std::string& folder, int count, uint32_t seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < count; ++i) {
      const int label = i % 3;
      Image image{static_cast<uint32_t>(20 + i % 30), static_cast<uint32_t>(40 - i % 7), {}};
      for (uint32_t k = 0; k < image.width * image.height * 3; ++k) {
        image.pixels.push_back(static_cast<uint8_t>(random() % 100 + (k % 3 == static_cast<uint32_t>(label) ? 140 : 30)));
      }
      const std::string name = absl::StrCat(folder, "/class", label, "/", i, ".jpg");
      std::filesystem::create_directories(std::filesystem::path(Path(name)).parent_path());
      ASSERT_TRUE(WriteFileAtomically(Path(name), EncodeJpeg(image).value()).ok());
    }
  }
  std::string Job(const std::string& name, const std::vector<std::string>& overrides) {
    const std::string text = absl::StrCat(R"(
name: "packed"
seed: 3
model { name: "mlp" widths: [16] }
data { format: "packed" train_packed: "train" test_packed: "test" classes: 3 image_side: 12
       least_area: 0.3 flip: true channel_means: [0.4, 0.4, 0.4] channel_deviations: [0.25, 0.25, 0.25]
       decode_threads: 1 directory: ")", folder_, R"(" }
training { epochs: 6 batch_size: )", kBatch, R"( workers: 2 }
update { rule: "dana_slim" momentum: 0.9 }
schedule { learning_rate: 0.02 }
servers { shards: 2 segment_elements: 1024 }
compression { push: "one_bit" block_elements: 256 }
evaluation { recalibration_batches: 6 }
timeouts { lease_seconds: 20 connect_seconds: 20 }
)");
    absl::StatusOr<v1::JobSpec> job = ParseJobSpec(text, "the test's job", overrides);
    EXPECT_TRUE(job.ok()) << job.status();
    if (!job.ok()) return "";
    EXPECT_TRUE(WriteFileAtomically(Path(name), PrintJobSpec(*job)).ok());
    return Path(name);
  }
  Ended Run(const std::string& job, const std::string& results) {
    return RunForeshard({"run", "--job", job, "--results", Path(results), "--device", "cpu"});
  }
  std::string Checksum(const std::string& file) {
    const Ended ended = RunForeshard({"weights", "--checksum", Path(file)});
    EXPECT_EQ(ended.status, 0) << ended.output;
    return ended.output.substr(0, 16);
  }
};

TEST_F(PackedRunTest, TrainsAndEvaluates) {
  const Ended ended = Run(Job("job.textproto", {}), "results");
  ASSERT_EQ(ended.status, 0) << ended.output;
  const nlohmann::json results = Results("results");
  EXPECT_TRUE(results["completed"].get<bool>());
  EXPECT_EQ(results["examples"].get<int>(), 6 * kTraining);
  EXPECT_EQ(results["updates"].get<int>(), 6 * 6);
  ASSERT_TRUE(results["test_accuracy"].is_number());
  EXPECT_GT(results["test_accuracy"].get<double>(), 0.8);
}

TEST_F(PackedRunTest, DamagedFilesEndItWithTheirNames) {
  const std::string job = Job("job.textproto", {});
  std::filesystem::resize_file(Path("train/images-00001.packed"), 1000);
  Ended ended = Run(job, "cut");
  EXPECT_EQ(ended.status, 2) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("images-00001.packed: has 1000 bytes"));
  std::filesystem::remove(Path("train/index.packed"));
  ended = Run(job, "none");
  EXPECT_EQ(ended.status, 2) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("train/index.packed: can't be read"));
}

TEST_F(PackedRunTest, StartsFromGivenWeights) {
  const auto first_values = [&](const std::string& job, const std::string& file) {
    const Ended ended = RunForeshard({"weights", "--job", job, "--first-values", "--output", Path(file)});
    EXPECT_EQ(ended.status, 0) << ended.output;
    return Checksum(file);
  };
  const auto given = [&](const std::string& file, const std::string& checksum) -> std::vector<std::string> {
    return {"model.initial_weights=" + Path(file), "model.initial_weights_checksum=" + checksum};
  };
  const std::string job = Job("job.textproto", {});
  const std::string own = first_values(job, "own.safetensors");
  const std::string other = first_values(Job("other.textproto", {"seed=4"}), "other.safetensors");
  EXPECT_NE(own, other);
  EXPECT_EQ(first_values(Job("given.textproto", given("other.safetensors", other)), "again.safetensors"), other);
  // There and back between the layouts.
  Ended ended = RunForeshard({"weights", "--job", job, "--from-pytorch", Path("own.safetensors"), "--output",
                              Path("plain.safetensors")});
  ASSERT_EQ(ended.status, 0) << ended.output;
  ended = RunForeshard({"weights", "--job", job, "--to-pytorch", Path("plain.safetensors"), "--output",
                        Path("back.safetensors")});
  ASSERT_EQ(ended.status, 0) << ended.output;
  EXPECT_NE(Checksum("plain.safetensors"), own);
  EXPECT_EQ(Checksum("back.safetensors"), own);

  // A rate that moves nothing leaves what a run began with.
  const auto loss = [&](const std::string& name, std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"schedule.learning_rate=1e-12", "training.epochs=1"});
    const Ended run = Run(Job(name + ".textproto", overrides), name);
    EXPECT_EQ(run.status, 0) << run.output;
    return Results(name)["test_loss"].get<double>();
  };
  const double without = loss("without", {});
  EXPECT_NEAR(loss("with_own", given("own.safetensors", own)), without, 1e-5);
  EXPECT_GT(std::abs(loss("with_other", given("other.safetensors", other)) - without), 1e-3);

  // Another checksum, and a file that is cut, with a checksum that is right.
  ended = Run(Job("wrong.textproto", given("own.safetensors", other)), "wrong");
  EXPECT_EQ(ended.status, 2) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("own.safetensors has the checksum " + own));
  std::filesystem::resize_file(Path("own.safetensors"), 3000);
  ended = Run(Job("cut.textproto", given("own.safetensors", Checksum("own.safetensors"))), "cut");
  EXPECT_EQ(ended.status, 2) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("model.initial_weights: "));
  ended = RunForeshard({"weights", "--job", job, "--from-pytorch", Path("own.safetensors"), "--output", Path("x")});
  EXPECT_EQ(ended.status, 2) << ended.output;
}

}  // namespace
}  // namespace foreshard
