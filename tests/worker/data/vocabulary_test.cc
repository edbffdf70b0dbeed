#include "worker/data/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "worker/data/learn_vocabulary.h"

namespace foreshard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kSpecial[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";

std::string Refusal(const std::string& text) {
  return std::string(Vocabulary::Parse(text, "v.txt").status().message());
}

TEST(VocabularyTest, NumbersLinesFromZero) {
  const auto vocabulary = Vocabulary::Parse("a\r\n[PAD]\n[UNK]\n[MASK]\n[CLS]\n[SEP]\n##b", "v.txt");
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  EXPECT_EQ(vocabulary->size(), 7u);
  EXPECT_EQ(vocabulary->Find("a"), 0u);
  EXPECT_EQ(vocabulary->Find("##b"), 6u);
  EXPECT_EQ(vocabulary->Find("b"), 7u);
  EXPECT_EQ(vocabulary->special().pad, 1u);
  EXPECT_EQ(vocabulary->special().mask, 3u);
  EXPECT_EQ(vocabulary->special().separator, 5u);
}

TEST(VocabularyTest, RefusesWhatIsNone) {
  EXPECT_THAT(Refusal("[PAD]\n[UNK]\nthe\n"), HasSubstr("v.txt: has no [CLS], no [SEP], no [MASK] among its 3 tokens"));
  EXPECT_THAT(Refusal(""), HasSubstr("has no [PAD]"));
  EXPECT_THAT(Refusal(absl::StrCat("\xef\xbb\xbf", kSpecial, "a\n")), HasSubstr("line 1: begins with a byte order mark"));
  EXPECT_THAT(Refusal(absl::StrCat(kSpecial, "a\n\nb\n")), HasSubstr("line 7: is empty"));
  EXPECT_THAT(Refusal(absl::StrCat(kSpecial, "a\nb\na\n")), HasSubstr("line 8: 'a' is on line 6 already"));
  EXPECT_THAT(Refusal(absl::StrCat(kSpecial, "\xff\n")), HasSubstr("line 6: is no UTF-8"));
  EXPECT_TRUE(absl::IsNotFound(Vocabulary::Load("/nowhere/vocab.txt").status()));
}

TEST(WordPiecesTest, TakesTheLongestPieces) {
  const auto vocabulary = Vocabulary::Parse(
      absl::StrCat(kSpecial, "un\n##aff\n##able\nunaff\n##ab\n##le\n\u00e9\n##\u00e9\n"), "v.txt");
  ASSERT_TRUE(vocabulary.ok());
  WordPieces pieces(*vocabulary);
  const auto split = [&](const std::string& word) {
    std::vector<uint32_t> ids;
    pieces.Append(word, &ids);
    std::vector<std::string> tokens;
    for (uint32_t id : ids) tokens.push_back(vocabulary->token(id));
    return tokens;
  };
  for (int again = 0; again < 2; ++again) {
    EXPECT_THAT(split("unaffable"), ElementsAre("unaff", "##able"));
    EXPECT_THAT(split("unable"), ElementsAre("un", "##able"));
    EXPECT_THAT(split("unaffx"), ElementsAre("[UNK]"));
    EXPECT_THAT(split("able"), ElementsAre("[UNK]"));
    EXPECT_THAT(split("\u00e9\u00e9"), ElementsAre("\u00e9", "##\u00e9"));
  }
  std::string longest, longer;
  for (int i = 0; i < 100; ++i) longest += "\u00e9";
  longer = longest + "\u00e9";
  EXPECT_EQ(split(longest).size(), 100u);
  EXPECT_THAT(split(longer), ElementsAre("[UNK]"));
}

TEST(LearnVocabularyTest, MergesTheMostFrequentPairs) {
  // Of the pairs l ##o and ##o ##w, both 7 times there, the second begins with the smaller string.
  const auto tokens = LearnVocabulary({{"low", 5}, {"lower", 2}, {"new", 1}}, {.size = 100});
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_THAT(*tokens, ElementsAre("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "##e", "##o", "##r", "##w", "l", "n",
                                   "##ow", "low", "##er", "lower"));
}

TEST(LearnVocabularyTest, StopsAtTheSizeAndSaysWhatDoesNotFit) {
  EXPECT_EQ(LearnVocabulary({{"low", 5}, {"lower", 2}}, {.size = 11})->size(), 11u);
  EXPECT_THAT(std::string(LearnVocabulary({{"low", 5}}, {.size = 7}).status().message()), HasSubstr("alone are 8 tokens"));
  EXPECT_THAT(std::string(LearnVocabulary({}, {.size = 7}).status().message()), HasSubstr("no words"));
  // Repeated characters: from left to right.
  const auto repeated = LearnVocabulary({{"aaaa", 4}}, {.size = 8});
  ASSERT_TRUE(repeated.ok());
  EXPECT_EQ(repeated->back(), "##aa");
  // A word with a rare character is left out.
  const auto most = LearnVocabulary({{"ab", 9}, {"xb", 1}}, {.size = 100, .most_characters = 2});
  ASSERT_TRUE(most.ok());
  EXPECT_THAT(*most, testing::Not(testing::Contains("x")));
}

}  // namespace
}  // namespace foreshard
