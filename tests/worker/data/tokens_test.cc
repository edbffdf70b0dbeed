// Packed text as a data set: its files, what is masked, and batches cut into parts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/core/random.h"
#include "tests/worker/data/data_folder.h"
#include "worker/data/dataset.h"
#include "worker/data/token_records.h"
#include "worker/gradient.h"

namespace foreshard {
namespace {

using testing::HasSubstr;

constexpr uint32_t kSequence = 24, kWords = 200;
constexpr uint32_t kRecords = 40;

class TokensTest : public DataFolderTest {
 protected:
  TokensTest() : DataFolderTest("foreshard-tokens") {}
  void SetUp() override {
    DataFolderTest::SetUp();
    vocabulary_ = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    for (uint32_t i = 5; i < kWords; ++i) absl::StrAppend(&vocabulary_, "w", i, "\n");
    index_ = {.sequence = kSequence,
              .vocabulary = kWords,
              .pairs = true,
              .vocabulary_checksum = Checksum(AsBytes(vocabulary_)),
              .records = {25, kRecords - 25}};
    WriteAll();
  }
  TokenRecord Record(uint32_t number) const {
    TokenRecord record{.label = number % 2};
    const uint32_t length = kSequence - number % 9;
    for (uint32_t i = 0; i < length; ++i) {
      record.tokens.push_back(i == 0 ? 2 : i == 10 || i + 1 == length ? 3 : 5 + static_cast<uint32_t>(RandomBits(1, number, i) % 195));
    }
    record.second = 11;
    record.words = length - 3;
    return record;
  }
  void WriteAll() {
    Write("vocab.txt", vocabulary_);
    uint32_t number = 0;
    for (uint32_t shard = 0; shard < index_.records.size(); ++shard) {
      std::string bytes = TokenShardHeader(index_, shard);
      for (uint64_t i = 0; i < index_.records[shard]; ++i) bytes += PrintTokenRecord(index_, Record(number++));
      Write(TokenShardName(shard), bytes);
    }
    Write("index.tokens", PrintTokenIndex(index_));
  }
  std::string Refusal() { return std::string(LoadTokens(directory_, {}).status().message()); }

  std::string vocabulary_;
  TokenIndex index_;
};

TEST_F(TokensTest, RecordsComeBack) {
  const auto records = TokenRecords::Open(directory_);
  ASSERT_TRUE(records.ok()) << records.status();
  EXPECT_EQ((*records)->records(), kRecords);
  TokenRecord record;
  for (uint32_t i : {0u, 24u, 25u, kRecords - 1}) {
    ASSERT_TRUE((*records)->Read(i, &record).ok());
    const TokenRecord wanted = Record(i);
    EXPECT_EQ(record.tokens, wanted.tokens);
    EXPECT_EQ(record.second, wanted.second);
    EXPECT_EQ(record.label, wanted.label);
    EXPECT_EQ((*records)->Words(i), wanted.words);
  }
}

TEST_F(TokensTest, MasksFifteenPercentInThreeWays) {
  const auto data = LoadTokens(directory_, {});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->shape().height, kSequence);
  EXPECT_EQ((*data)->classes(), kWords);
  EXPECT_EQ((*data)->targets(), 4u);  // 3.6
  EXPECT_TRUE((*data)->has_pairs());
  std::vector<uint32_t> all(kRecords);
  for (uint32_t i = 0; i < kRecords; ++i) all[i] = i;
  uint64_t masked = 0, random = 0, kept = 0;
  Batch batch;
  for (uint64_t epoch = 1; epoch <= 100; ++epoch) {
    ASSERT_TRUE((*data)->Gather(all, epoch, &batch).ok());
    uint64_t targets = 0;
    for (uint32_t e = 0; e < kRecords; ++e) {
      const TokenRecord record = Record(e);
      ASSERT_EQ(batch.lengths[e], static_cast<int32_t>(record.tokens.size()));
      ASSERT_EQ(batch.labels[e], static_cast<int32_t>(record.label));
      std::set<int32_t> chosen;
      for (uint32_t t = 0; t < 4; ++t) {
        const int32_t target = batch.targets[e * 4 + t], at = batch.target_positions[e * 4 + t];
        if (target == kernels::kNoTarget) continue;
        ++targets;
        ASSERT_TRUE(chosen.insert(at).second);
        ASSERT_EQ(target, static_cast<int32_t>(record.tokens[at]));
        ASSERT_GT(target, 4);
        const int32_t now = batch.tokens[e * kSequence + at];
        (now == 4 ? masked : now == target ? kept : random) += 1;
      }
      for (uint32_t p = 0; p < kSequence; ++p) {
        const int32_t now = batch.tokens[e * kSequence + p];
        if (!chosen.contains(static_cast<int32_t>(p))) {
          ASSERT_EQ(now, p < record.tokens.size() ? static_cast<int32_t>(record.tokens[p]) : 0);
        }
        ASSERT_EQ(batch.segments[e * kSequence + p], p >= 11 && p < record.tokens.size());
      }
    }
    ASSERT_EQ(targets, (*data)->Targets(all));
  }
  const auto total = static_cast<double>(masked + random + kept);
  EXPECT_NEAR(masked / total, 0.8, 0.02);
  EXPECT_NEAR(random / total, 0.1, 0.02);
  EXPECT_NEAR(kept / total, 0.1, 0.02);
}

TEST_F(TokensTest, DrawsBelongToSeedEpochAndRecord) {
  const auto data = LoadTokens(directory_, {}).value();
  Batch together, alone, other, still, again;
  ASSERT_TRUE(data->Gather({3, 7, 9}, 5, &together).ok());
  ASSERT_TRUE(data->Gather({7}, 5, &alone).ok());
  ASSERT_TRUE(data->Gather({7}, 6, &other).ok());
  EXPECT_TRUE(std::equal(alone.tokens.begin(), alone.tokens.end(), together.tokens.begin() + kSequence));
  EXPECT_EQ(alone.keys[0], together.keys[1]);
  EXPECT_NE(alone.keys, other.keys);
  EXPECT_NE(alone.tokens, other.tokens);
  // Evaluation: always the same, nothing dropped.
  ASSERT_TRUE(data->Gather({7}, 0, &still).ok());
  ASSERT_TRUE(data->Gather({7}, 0, &again).ok());
  EXPECT_EQ(still.tokens, again.tokens);
  EXPECT_TRUE(still.keys.empty());
}

TEST_F(TokensTest, MicroBatchesGiveTheWholeBatchsGradientWithDropout) {
  const auto data = LoadTokens(directory_, {}).value();
  auto device = kernels::MakeDevice("cpu").value();
  auto model = MakeModel({.name = "bert_tiny",
                          .input = data->shape(),
                          .classes = data->classes(),
                          .batch_size = 12,
                          .text = {.targets = data->targets(), .dropout = 0.1f, .next_sentence = true}},
                         *device).value();
  std::vector<float> parameters(model->schema().elements());
  model->InitialValues(1, parameters.data());
  OpenGate gate;
  std::vector<std::vector<float>> gradients;
  std::vector<GradientStep> steps;
  for (uint32_t parts : {1, 4, 5, 12}) {
    GradientComputer computer({.seed = 2, .batch_size = 12, .micro_batches = parts}, model.get(), data.get());
    const auto step = computer.Compute(5, parameters.data(), gate);  // of the second epoch
    ASSERT_TRUE(step.ok()) << step.status();
    steps.push_back(*step);
    gradients.emplace_back(computer.gradient(), computer.gradient() + parameters.size());
  }
  double norm = 0;
  for (float g : gradients[0]) norm += double{g} * g;
  for (size_t k = 1; k < gradients.size(); ++k) {
    EXPECT_NEAR(steps[k].loss, steps[0].loss, 1e-5);
    EXPECT_EQ(steps[k].correct, steps[0].correct);
    double difference = 0;
    for (size_t i = 0; i < gradients[0].size(); ++i) difference += std::pow(double{gradients[k][i]} - gradients[0][i], 2);
    EXPECT_LT(difference, 1e-10 * norm) << k;
  }
}

// Nothing in it is masked.
class NoTargets : public Dataset {
 public:
  explicit NoTargets(std::unique_ptr<Dataset> of) : of_(std::move(of)) {}
  uint64_t examples() const override { return of_->examples(); }
  InputShape shape() const override { return of_->shape(); }
  uint32_t classes() const override { return of_->classes(); }
  uint64_t Targets(absl::Span<const uint32_t>) const override { return 0; }
  uint32_t targets() const override { return of_->targets(); }
  absl::Status Gather(absl::Span<const uint32_t> indices, uint64_t key, Batch* batch) const override {
    const absl::Status status = of_->Gather(indices, key, batch);
    std::fill(batch->targets.begin(), batch->targets.end(), kernels::kNoTarget);
    return status;
  }

 private:
  const std::unique_ptr<Dataset> of_;
};

TEST_F(TokensTest, ABatchWithoutTargetsIsAStepOfZero) {
  const NoTargets data(LoadTokens(directory_, {}).value());
  auto device = kernels::MakeDevice("cpu").value();
  auto model = MakeModel({.name = "bert_tiny",
                          .input = data.shape(),
                          .classes = data.classes(),
                          .batch_size = 4,
                          .text = {.targets = data.targets()}},
                         *device).value();
  std::vector<float> parameters(model->schema().elements());
  model->InitialValues(1, parameters.data());
  OpenGate gate;
  GradientComputer computer({.seed = 2, .batch_size = 4, .clip_norm = 1}, model.get(), &data);
  const auto step = computer.Compute(0, parameters.data(), gate);
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_TRUE(step->finite);
  EXPECT_EQ(step->loss, 0);
  EXPECT_EQ(step->norm, 0);
}

TEST_F(TokensTest, RefusesFilesThatAreNotRight) {
  const std::string first = TokenShardName(0), second = TokenShardName(1);
  std::filesystem::resize_file(directory_ / second, 500);
  EXPECT_THAT(Refusal(), HasSubstr("tokens-00001.tokens: it has 500 bytes, the index says"));
  std::filesystem::resize_file(directory_ / second, 24);
  EXPECT_THAT(Refusal(), HasSubstr("tokens-00001.tokens: is empty"));
  WriteAll();
  std::filesystem::remove(directory_ / first);
  EXPECT_THAT(Refusal(), HasSubstr("tokens-00000.tokens: can't be read"));
  WriteAll();
  Write("vocab.txt", vocabulary_ + "more\n");
  EXPECT_THAT(Refusal(), HasSubstr("is not the vocabulary that the text was packed with (200 tokens)"));
  WriteAll();
  Write("index.tokens", "FSTOKENS");
  EXPECT_THAT(Refusal(), HasSubstr("is no index of packed text"));
  index_.records = {kRecords, 0};
  WriteAll();
  EXPECT_THAT(Refusal(), HasSubstr("shard 1 (tokens-00001.tokens) has no records"));
  std::string bytes = PrintTokenIndex(index_);
  bytes[20] ^= 1;
  Write("index.tokens", bytes);
  EXPECT_THAT(Refusal(), HasSubstr("is damaged or cut off"));
  EXPECT_THAT(std::string(LoadTokens(directory_ / "none", {}).status().message()), HasSubstr("foreshard pack-text makes it"));
  EXPECT_THAT(std::string(LoadTokens(directory_, {.mask_fraction = 1}).status().message()), HasSubstr("data.mask_fraction: 1"));
}

TEST_F(TokensTest, ADamagedRecordIsNamed) {
  std::string bytes = TokenShardHeader(index_, 0);
  for (uint32_t i = 0; i < 25; ++i) bytes += PrintTokenRecord(index_, Record(i));
  bytes[24 + 3 * index_.record_bytes() + 30] ^= 1;
  Write(TokenShardName(0), bytes);
  const auto data = LoadTokens(directory_, {}).value();
  Batch batch;
  EXPECT_TRUE(data->Gather({2}, 1, &batch).ok());
  const absl::Status status = data->Gather({2, 3}, 1, &batch);
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("tokens-00000.tokens: record 3 does not have its checksum"));
}

TEST_F(TokensTest, AShardOfAnotherVocabularyIsRefused) {
  TokenIndex other = index_;
  other.vocabulary_checksum ^= 1;
  std::string bytes = TokenShardHeader(other, 1);
  for (uint32_t i = 25; i < kRecords; ++i) bytes += PrintTokenRecord(other, Record(i));
  Write(TokenShardName(1), bytes);
  EXPECT_THAT(Refusal(), HasSubstr("tokens-00001.tokens: was packed with another vocabulary"));
  bytes = TokenShardHeader(index_, 0) + bytes.substr(24);
  Write(TokenShardName(1), bytes);
  EXPECT_THAT(Refusal(), HasSubstr("tokens-00001.tokens: is not shard 1 of packed text"));
}

TEST_F(TokensTest, VersionOneIsRead) {
  index_.version = 1;
  EXPECT_EQ(TokenShardHeader(index_, 1), std::string("FSTOKREC\1\0\0\0\1\0\0\0", 16));
  WriteAll();
  const auto records = TokenRecords::Open(directory_);
  ASSERT_TRUE(records.ok()) << records.status();
  TokenRecord record;
  for (uint32_t i : {0u, 24u, 25u, kRecords - 1}) {
    ASSERT_TRUE((*records)->Read(i, &record).ok());
    EXPECT_EQ(record.tokens, Record(i).tokens);
  }
  index_.version = 3;
  WriteAll();
  EXPECT_THAT(Refusal(), HasSubstr("has version 3 of the format; this program reads versions 1 to 2"));
}

TEST_F(TokensTest, WordsAreCounted) {
  const auto refusal = [&](const TokenRecord& first) {
    std::string bytes = TokenShardHeader(index_, 0) + PrintTokenRecord(index_, first);
    for (uint32_t i = 1; i < 25; ++i) bytes += PrintTokenRecord(index_, Record(i));
    Write(TokenShardName(0), bytes);
    Batch batch;
    return std::string(LoadTokens(directory_, {}).value()->Gather({0}, 1, &batch).message());
  };
  TokenRecord record = Record(0);
  record.words -= 1;
  EXPECT_THAT(refusal(record), HasSubstr("tokens-00000.tokens: record 0 has 21 words and says 20"));
  record.words = 0;
  EXPECT_THAT(refusal(record), HasSubstr("record 0 has 21 words and says 0"));
  record = {.second = 2, .tokens = {2, 3}};
  EXPECT_THAT(refusal(record), HasSubstr("record 0 has 0 words and says 0"));
}

TEST(TokenRecordTest, LargeVocabulariesTakeFourBytesAToken) {
  TokenIndex index{.sequence = 8, .vocabulary = 65536};
  EXPECT_EQ(index.record_bytes(), 32u);
  index.vocabulary = 65537;
  EXPECT_EQ(index.record_bytes(), 48u);
  EXPECT_EQ(PrintTokenRecord(index, {.tokens = {65536}}).size(), 48u);
}

}  // namespace
}  // namespace foreshard
