// Text packed by the commands, and BERT on it with real daemons, in full precision and with
// compressed rounds.
#include <cmath>
#include <filesystem>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/net/job_spec.h"
#include "gmock/gmock.h"
#include "tests/end_to_end/job_folder.h"
#include "tools/files.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

class TextRunTest : public EndToEndTest {
 protected:
  void SetUp() override {
    EndToEndTest::SetUp();
    std::filesystem::create_directories(Path("text"));
    // Each word says which is the next, so that a mask can be guessed.
    std::mt19937 random(1);
    const char* words[] = {"one", "two", "three", "four", "five", "six", "seven", "eight"};
    for (int file = 0; file < 4; ++file) {
      std::string text;
      for (int i = 0; i < 3000; ++i) absl::StrAppend(&text, words[(i + file) % 8], i % 10 == 9 ? ".\n" : " ");
      ASSERT_TRUE(WriteFileAtomically(Path(absl::StrCat("text/", file, ".txt")), text).ok());
    }
    Ended ended = RunForeshard({"learn-vocabulary", "--input", Path("text"), "--size", "64", "--output", Path("vocab.txt")});
    ASSERT_EQ(ended.status, 0) << ended.output;
    ended = RunForeshard({"pack-text", "--input", Path("text"), "--vocabulary", Path("vocab.txt"), "--sequence", "16",
                          "--held-out", "10", "--shards", "2", "--output", Path("packed")});
    ASSERT_EQ(ended.status, 0) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("sequences of 16 tokens"));
  }
  std::string Job(const std::vector<std::string>& overrides) {
    const std::string text = absl::StrCat(R"(
name: "text"
seed: 3
model { name: "bert_tiny" positions: 16 dropout: 0.05 }
data { format: "tokens" train_tokens: "train" test_tokens: "test" directory: ")", Path("packed"), R"(" }
training { epochs: 8 batch_size: 16 micro_batches: 2 workers: 2 clip_norm: 1 }
update { rule: "apmsqueeze" weight_decay: 0.01 }
apmsqueeze { warmup_fraction: 0.3 }
schedule { learning_rate: 0.002 warmup_epochs: 0.2 }
servers { shards: 2 segment_elements: 65536 }
compression { push: "one_bit" full_precision: ["*.bias", "*LayerNorm*"] }
timeouts { lease_seconds: 20 connect_seconds: 20 }
)");
    absl::StatusOr<v1::JobSpec> job = ParseJobSpec(text, "the test's job", overrides);
    EXPECT_TRUE(job.ok()) << job.status();
    if (!job.ok()) return "";
    EXPECT_TRUE(WriteFileAtomically(Path("job.textproto"), PrintJobSpec(*job)).ok());
    return Path("job.textproto");
  }
  Ended Run(const std::string& job) {
    return RunForeshard({"run", "--job", job, "--results", Path("results"), "--device", "cpu"});
  }
};

TEST_F(TextRunTest, LearnsWithCompressedRounds) {
  const Ended ended = Run(Job({}));
  ASSERT_EQ(ended.status, 0) << ended.output;
  const nlohmann::json results = Results("results");
  EXPECT_TRUE(results["completed"].get<bool>());
  // Before training: the logarithm of the vocabulary's size, more than 3.
  EXPECT_LT(results["test_loss"].get<double>(), 2.4);
}

TEST_F(TextRunTest, DamagedAndMismatchedDataEndIt) {
  Ended ended = Run(Job({"model.next_sentence=true"}));
  EXPECT_EQ(ended.status, 2) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("the text was packed without pairs"));
  std::filesystem::remove_all(Path("results"));
  ended = Run(Job({"model.positions=8"}));
  EXPECT_EQ(ended.status, 2) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("sequences have 16 tokens, and model.positions is 8"));
  std::filesystem::remove_all(Path("results"));
  std::filesystem::resize_file(Path("packed/train/tokens-00001.tokens"), 16);
  ended = Run(Job({}));
  EXPECT_EQ(ended.status, 2) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("tokens-00001.tokens: is empty"));
}

}  // namespace
}  // namespace foreshard
