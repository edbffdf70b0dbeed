// Text packed by the commands, and BERT on it with real daemons, in full precision and with
// compressed rounds.
#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/net/job_spec.h"
#include "gmock/gmock.h"
#include "tests/end_to_end/job_folder.h"
#include "tools/files.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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
  // Of the words and full stops of all files: the loss of who knows nothing of what stands around.
  double Entropy() {
    std::map<std::string, int> counts;
    int all = 0;
    for (int file = 0; file < 4; ++file) {
      std::string text = ReadFile(Path(absl::StrCat("text/", file, ".txt"))).value();
      absl::StrReplaceAll({{".", " . "}}, &text);
      for (const auto& word : absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
        ++counts[std::string(word)];
        ++all;
      }
    }
    double entropy = 0;
    for (const auto& [word, count] : counts) {
      const double share = static_cast<double>(count) / all;
      entropy -= share * std::log(share);
    }
    return entropy;
  }
  // Another folder of the same text.
  void Pack(const std::string& folder, const std::vector<std::string>& options, const std::string& vocabulary = "vocab.txt") {
    std::vector<std::string> arguments = {"pack-text", "--input", Path("text"), "--vocabulary", Path(vocabulary),
                                          "--held-out", "10", "--shards", "2", "--output", Path(folder)};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Ended ended = RunForeshard(arguments);
    ASSERT_EQ(ended.status, 0) << ended.output;
  }
  // The vocabulary with its last two tokens changed over.
  void WriteOtherVocabulary(const std::string& name) {
    std::vector<std::string> tokens = absl::StrSplit(ReadFile(Path("vocab.txt")).value(), '\n', absl::SkipEmpty());
    std::swap(tokens[tokens.size() - 1], tokens[tokens.size() - 2]);
    ASSERT_TRUE(WriteFileAtomically(Path(name), absl::StrJoin(tokens, "\n") + "\n").ok());
  }
  std::string Job(const std::vector<std::string>& overrides) {
    const std::string text = absl::StrCat(R"(
name: "text"
seed: 3
model { name: "bert_tiny" positions: 16 dropout: 0 }
data { format: "tokens" train_tokens: "train" test_tokens: "test" directory: ")", Path("packed"), R"(" }
training { epochs: 24 batch_size: 16 micro_batches: 2 workers: 2 clip_norm: 1 }
update { rule: "apmsqueeze" weight_decay: 0.01 bias_correction: true }
apmsqueeze { warmup_fraction: 0.6 }
schedule { learning_rate: 0.002 warmup_epochs: 0.2 decay: "cosine" }
servers { shards: 2 segment_elements: 65536 }
compression { push: "one_bit" block_elements: 128 full_precision: ["*.bias", "*LayerNorm*"] }
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
  const double entropy = Entropy();
  EXPECT_NEAR(entropy, 2.195, 1e-3);
  EXPECT_LT(results["test_loss"].get<double>(), entropy / 2);
  // A training step's memory is what workers say, and no evaluator.
  EXPECT_THAT(ReadFile(Path("results/logs/worker-0.log")).value(), HasSubstr("a step of 8 examples at once takes"));
  EXPECT_THAT(ReadFile(Path("results/logs/evaluator.log")).value(), Not(HasSubstr("examples at once")));
}

TEST_F(TextRunTest, TestTextThatDoesNotFitEndsIt) {
  WriteOtherVocabulary("other.txt");
  Pack("other", {"--sequence", "16"}, "other.txt");
  Pack("long", {"--sequence", "32"});
  for (const auto& [folder, what] : std::map<std::string, std::string>{
           {"other", "another vocabulary ("}, {"long", "sequences of 32 tokens, not 16"}}) {
    std::filesystem::remove_all(Path("results"));
    const Ended ended = Run(Job({absl::StrCat("data.test_tokens=", Path(folder), "/test")}));
    EXPECT_EQ(ended.status, 2) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(what));
    EXPECT_THAT(ended.output, HasSubstr(Path(absl::StrCat(folder, "/test"))));
    EXPECT_THAT(ended.output, HasSubstr(Path("packed/train")));
  }
}

TEST_F(TextRunTest, AWorkerOfAnotherVocabularyIsRefused) {
  WriteOtherVocabulary("other.txt");
  Pack("other", {"--sequence", "16"}, "other.txt");
  auto fleet = Servers(Job({}));
  ASSERT_NE(fleet, nullptr);
  ASSERT_TRUE(fleet->StartWorker(0).ok());
  ASSERT_TRUE(WaitUntil([&] { return absl::StrContains(LogOf(*fleet, "worker-0"), "training as worker"); }))
      << LogOf(*fleet, "worker-0");
  ASSERT_TRUE(fleet->StartWorker(1, {absl::StrCat("--data-directory=", Path("other"))}).ok());
  std::vector<ChildExit> exits;
  ASSERT_TRUE(WaitUntil([&] { return !(exits = fleet->TakeExits()).empty(); }));
  EXPECT_EQ(exits[0].name, "worker-1");
  EXPECT_EQ(exits[0].exit.status, 2) << exits[0].Describe();
  EXPECT_THAT(LogOf(*fleet, "worker-1"), HasSubstr("other training data: the text here was packed with another vocabulary"));
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
