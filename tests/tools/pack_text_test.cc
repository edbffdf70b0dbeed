#include "tools/pack_text.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iterator>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/data_folder.h"
#include "worker/data/token_records.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class PackTextTest : public DataFolderTest {
 protected:
  PackTextTest() : DataFolderTest("foreshard-text") {}
  void SetUp() override {
    DataFolderTest::SetUp();
    fs::create_directories(directory_ / "in/.hidden");
    Write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n##x\n");
    Write("in/.hidden/x", "\xff");
    Write("in/1.txt", "A b c ax\na b");  // a b c a ##x a b
    Write("in/2.gz", Gzip("c c z"));       // c c [UNK]
  }
  PackTextOptions Options() {
    return {.inputs = {directory_ / "in"}, .vocabulary = directory_ / "vocab.txt", .output = directory_ / "out", .sequence = 8};
  }
  std::set<std::string> Left() {
    std::set<std::string> names;
    for (const auto& each : fs::directory_iterator(directory_)) names.insert(each.path().filename().string());
    return names;
  }
  void ExpectRefused(const PackTextOptions& options, const std::string& text,
                     absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    const auto before = Left();
    const auto figures = PackText(options);
    EXPECT_EQ(figures.status().code(), code) << figures.status();
    EXPECT_THAT(std::string(figures.status().message()), HasSubstr(text));
    EXPECT_EQ(Left(), before);
  }
  // A document of `tokens` letters a, b and c.
  std::string Document(int tokens) {
    std::string text;
    for (int i = 0; i < tokens; ++i) absl::StrAppend(&text, i % 7 == 0 ? "a" : i % 5 == 0 ? "b" : "c", " ");
    return text;
  }
};

TEST_F(PackTextTest, CutsTheStreamOfDocuments) {
  uint64_t told = 0;
  PackTextOptions options = Options();
  options.output += "/";
  options.progress = [&](const PackTextFigures& figures) { told = figures.tokens; };
  const auto figures = PackText(options);
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_EQ(figures->files, 2u);
  EXPECT_EQ(figures->tokens, 10u);
  EXPECT_EQ(told, 10u);
  EXPECT_EQ(figures->unknown, 1u);
  EXPECT_EQ(figures->records, 2u);
  const auto records = TokenRecords::Open(directory_ / "out");
  ASSERT_TRUE(records.ok()) << records.status();
  EXPECT_FALSE((*records)->index().pairs);
  TokenRecord record;
  ASSERT_TRUE((*records)->Read(0, &record).ok());
  EXPECT_THAT(record.tokens, ElementsAre(2, 5, 6, 7, 5, 8, 5, 3));
  EXPECT_EQ(record.words, 6u);
  EXPECT_EQ(record.second, 8u);
  ASSERT_TRUE((*records)->Read(1, &record).ok());
  EXPECT_THAT(record.tokens, ElementsAre(2, 6, 3, 7, 7, 1, 3));
  EXPECT_EQ(record.words, 4u);
  EXPECT_EQ(Left(), (std::set<std::string>{"in", "out", "vocab.txt"}));
}

TEST_F(PackTextTest, HoldsSequencesOutAndSpreadsTheOthers) {
  Write("in/3.txt", Document(600));
  PackTextOptions options = Options();
  options.held_out = 10;
  options.shards = 3;
  const auto figures = PackText(options);
  ASSERT_TRUE(figures.ok()) << figures.status();
  const auto train = TokenRecords::Open(directory_ / "out/train"), test = TokenRecords::Open(directory_ / "out/test");
  ASSERT_TRUE(train.ok() && test.ok());
  EXPECT_EQ((*test)->records(), figures->held_out);
  EXPECT_EQ(figures->held_out, figures->records / 10);
  EXPECT_EQ((*train)->records() + (*test)->records(), figures->records);
  EXPECT_EQ((*train)->index().records.size(), 3u);
}

TEST_F(PackTextTest, PairsFollowOrDoNot) {
  // Each document has letters of its own order, so that what follows can be told.
  fs::remove_all(directory_ / "in");
  fs::create_directories(directory_ / "in");
  std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    absl::StrAppend(&vocabulary, "w", i, "\n");
    absl::StrAppend(&text, "w", i, " ");
  }
  Write("vocab.txt", vocabulary);
  Write("in/one", text);
  Write("in/two", Document(5));  // less than a part
  PackTextOptions options = Options();
  options.sequence = 32;  // parts of 14
  options.pairs = true;
  const auto figures = PackText(options);
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_EQ(figures->records, 107u);  // 214 parts, and one of 4 that is dropped
  const auto records = TokenRecords::Open(directory_ / "out");
  ASSERT_TRUE(records.ok());
  EXPECT_TRUE((*records)->index().pairs);
  int others = 0;
  TokenRecord record;
  for (uint64_t i = 0; i < 107; ++i) {
    ASSERT_TRUE((*records)->Read(i, &record).ok());
    ASSERT_EQ(record.second, 16u);
    ASSERT_EQ(record.tokens.size(), 31u);
    const bool follows = record.tokens[16] == record.tokens[14] + 1;
    EXPECT_EQ(record.label, follows ? 0u : 1u) << i;
    EXPECT_EQ(record.tokens[1], 5 + 28 * i);
    others += record.label == 1;
  }
  EXPECT_GT(others, 35);
  EXPECT_LT(others, 72);
  // The same again, by the seed.
  PackTextOptions again = options;
  again.output = directory_ / "again";
  ASSERT_TRUE(PackText(again).ok());
  TokenRecord second;
  const auto repeated = TokenRecords::Open(directory_ / "again").value();
  for (uint64_t i = 0; i < 107; ++i) {
    ASSERT_TRUE((*records)->Read(i, &record).ok() && repeated->Read(i, &second).ok());
    EXPECT_EQ(record.tokens, second.tokens);
  }
}

// Words that each document has alone, in `documents` of so many words.
std::string OwnWords(int documents, int words, const std::function<void(int, const std::string&)>& document) {
  std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (int d = 0; d < documents; ++d) {
    std::string text;
    for (int i = 0; i < words; ++i) {
      absl::StrAppend(&vocabulary, "w", d * words + i, "\n");
      absl::StrAppend(&text, "w", d * words + i, " ");
    }
    document(d, text);
  }
  return vocabulary;
}

TEST_F(PackTextTest, NoSegmentIsInTrainingAndTest) {
  fs::remove_all(directory_ / "in");
  fs::create_directories(directory_ / "in");
  // Documents of 5 parts of 14: two pairs that may follow, and a first part without a next.
  Write("vocab.txt", OwnWords(80, 70, [&](int d, const std::string& text) { Write(absl::StrCat("in/", d), text); }));
  PackTextOptions options = Options();
  options.sequence = 32;
  options.pairs = true;
  options.held_out = 5;
  const auto figures = PackText(options);
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_EQ(figures->records, 240u);
  EXPECT_EQ(figures->held_out, 48u);
  std::set<uint32_t> words[2];
  int others[2] = {};
  for (const int test : {0, 1}) {
    const auto records = TokenRecords::Open(directory_ / (test ? "out/test" : "out/train"));
    ASSERT_TRUE(records.ok()) << records.status();
    TokenRecord record;
    for (uint64_t i = 0; i < (*records)->records(); ++i) {
      ASSERT_TRUE((*records)->Read(i, &record).ok());
      for (const uint32_t token : record.tokens) {
        if (token >= 5) words[test].insert(token);
      }
      others[test] += static_cast<int>(record.label);
      EXPECT_EQ(record.label, record.tokens[16] == record.tokens[14] + 1 ? 0u : 1u);
    }
  }
  std::vector<uint32_t> both;
  std::set_intersection(words[0].begin(), words[0].end(), words[1].begin(), words[1].end(), std::back_inserter(both));
  EXPECT_TRUE(both.empty()) << both.size();
  EXPECT_GT(others[0], 96);
  EXPECT_GT(others[1], 20);
  EXPECT_LT(others[1], 48);
}

TEST_F(PackTextTest, APairAloneOfItsKindIsFollowed) {
  fs::remove_all(directory_ / "in");
  fs::create_directories(directory_ / "in");
  Write("vocab.txt", OwnWords(1, 140, [&](int, const std::string& text) { Write("in/one", text); }));
  PackTextOptions options = Options();
  options.sequence = 32;
  options.pairs = true;
  options.held_out = 5;
  for (options.seed = 1; options.seed <= 8; ++options.seed) {
    options.output = directory_ / absl::StrCat("out", options.seed);
    const auto figures = PackText(options);
    ASSERT_TRUE(figures.ok()) << figures.status();
    EXPECT_EQ(figures->held_out, 1u);
    TokenRecord record;
    ASSERT_TRUE(TokenRecords::Open(options.output + "/test").value()->Read(0, &record).ok());
    EXPECT_EQ(record.label, 0u);
    EXPECT_EQ(record.tokens[16], record.tokens[14] + 1);
  }
}

TEST_F(PackTextTest, RefusesByNameAndLeavesNothing) {
  PackTextOptions options = Options();
  options.vocabulary = Write("bad.txt", "[PAD]\n[UNK]\na\n");
  ExpectRefused(options, "bad.txt: has no [CLS], no [SEP], no [MASK]");
  options = Options();
  options.inputs = {directory_ / "none"};
  ExpectRefused(options, "is neither a file nor a folder", absl::StatusCode::kNotFound);
  options = Options();
  options.sequence = 7;
  ExpectRefused(options, "--sequence: 7: give 8 to 65535 tokens");
  options.sequence = 18;
  options.pairs = true;
  ExpectRefused(options, "--sequence: 18: pairs need at least 19 tokens");
  options = Options();
  options.held_out = 1;
  ExpectRefused(options, "--held-out: 1");
  options = Options();
  options.shards = 3;
  ExpectRefused(options, "--shards: 3: the text makes only 2 sequences");
  options = Options();
  options.held_out = 3;
  ExpectRefused(options, "--held-out: 3: the text makes only 2 sequences");
  options = Options();
  options.inputs = {Write("empty.txt", " \n\n")};
  ExpectRefused(options, "--input: the text makes no sequence of 8 tokens: it has 0");
  EXPECT_THAT(std::string(LearnTextVocabulary({.inputs = options.inputs, .output = directory_ / "none.txt"}).status().message()),
              HasSubstr("there are no words in the text; --input"));
  for (const char* missing : {"[CLS]", "[SEP]", "[MASK]"}) {
    std::string tokens;
    for (const char* token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"}) {
      if (token != std::string_view(missing)) absl::StrAppend(&tokens, token, "\n");
    }
    options = Options();
    options.vocabulary = Write("bad.txt", tokens);
    ExpectRefused(options, absl::StrCat("bad.txt: has no ", missing, " among its 5 tokens"));
  }
  options = Options();
  options.output = directory_ / "in";
  ExpectRefused(options, "is there already");
  Write("in/3.txt", "fine\nand \xc3\x28 not");
  ExpectRefused(Options(), "in/3.txt: byte 9 (0xc3) is not UTF-8");
}

TEST_F(PackTextTest, DamagedGzipIsBadText) {
  const std::string whole = Gzip(Document(5000));
  Write("in/2.gz", whole.substr(0, whole.size() / 2));
  ExpectRefused(Options(), "in/2.gz: cannot be decompressed");
  const absl::Status learned = LearnTextVocabulary({.inputs = {directory_ / "in"}, .output = directory_ / "new.txt"}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(learned)) << learned;
}

TEST_F(PackTextTest, AnInterruptLeavesNothing) {
  PackTextOptions options = Options();
  int asked = 0;
  options.interrupted = [&] { return ++asked == 2; };
  ExpectRefused(options, "interrupted; nothing is left of", absl::StatusCode::kCancelled);
}

TEST_F(PackTextTest, ReplacesWhatAKilledRunHasLeft) {
  fs::create_directories(directory_ / "out.part/train");
  Write("out.part/train/records", "half");
  EXPECT_TRUE(PackText(Options()).ok());
  fs::remove_all(directory_ / "out");
  fs::create_directories(directory_ / "out.part");
  Write("out.part/mine", "x");
  ExpectRefused(Options(), "mine is in it; move it away");
}

TEST_F(PackTextTest, LearnsAVocabularyThatPacksWithoutUnknown) {
  fs::remove(directory_ / "in/2.gz");
  Write("in/1.txt", "the other mother thought of the other brother\nthen there was the weather");
  LearnTextOptions learn{.inputs = {directory_ / "in"}, .output = directory_ / "new/learned.txt", .size = 40};
  const auto tokens = LearnTextVocabulary(learn);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_LE(*tokens, 40u);
  const auto vocabulary = Vocabulary::Load(directory_ / "new/learned.txt");
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  EXPECT_EQ(vocabulary->size(), *tokens);
  EXPECT_LT(vocabulary->Find("the"), *tokens);
  PackTextOptions options = Options();
  options.vocabulary = directory_ / "new/learned.txt";
  EXPECT_EQ(PackText(options)->unknown, 0u);
  learn.interrupted = [] { return true; };
  learn.output = directory_ / "never.txt";
  EXPECT_TRUE(absl::IsCancelled(LearnTextVocabulary(learn).status()));
  EXPECT_FALSE(fs::exists(directory_ / "never.txt"));
}

}  // namespace
}  // namespace foreshard
