#include "worker/data/basic_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace foreshard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Split(std::string_view text, bool cased = false) {
  std::vector<std::string> words;
  const absl::Status status = BasicTokens(cased).Split(text, "test", 0, &words);
  EXPECT_TRUE(status.ok()) << status;
  return words;
}

TEST(BasicTokensTest, SplitsAtSpaceAndPunctuation) {
  EXPECT_THAT(Split(" \tHeLLo!how  \n Are yoU?  "), ElementsAre("hello", "!", "how", "are", "you", "?"));
  EXPECT_THAT(Split("don't $5 a_b ~"), ElementsAre("don", "'", "t", "$", "5", "a", "_", "b", "~"));
  EXPECT_THAT(Split("\u201equoted\u201d \u2014 so"), ElementsAre("\u201e", "quoted", "\u201d", "\u2014", "so"));
  EXPECT_THAT(Split("one\u00a0two\u3000three"), ElementsAre("one", "two", "three"));
  EXPECT_THAT(Split("one\u2028two\u2029three"), ElementsAre("one", "two", "three"));
  EXPECT_THAT(Split("[MASK]"), ElementsAre("[", "mask", "]"));
  EXPECT_THAT(Split(""), ElementsAre());
}

TEST(BasicTokensTest, LowersAndStripsAccents) {
  EXPECT_THAT(Split("H\u00e9llo \u00c4\u00d6\u00dc \u0130 e\u0301"), ElementsAre("hello", "aou", "i", "e"));
  EXPECT_THAT(Split("H\u00e9llo \u00c4", true), ElementsAre("H\u00e9llo", "\u00c4"));
  EXPECT_THAT(Split("\u0391\u03a3"), ElementsAre("\u03b1\u03c3"));
}

TEST(BasicTokensTest, IdeographsStandAlone) {
  EXPECT_THAT(Split("ah\u535a\u63a8zz"), ElementsAre("ah", "\u535a", "\u63a8", "zz"));
  EXPECT_THAT(Split("\u3042\u3044"), ElementsAre("\u3042\u3044"));  // no ideographs
}

TEST(BasicTokensTest, LeavesControlCharactersOut) {
  EXPECT_THAT(Split(std::string_view("a\0b\x01" "c\u200d" "d\ufffd", 12)), ElementsAre("abcd"));
}

TEST(BasicTokensTest, NamesFileAndByteOfWhatIsNoUtf8) {
  std::vector<std::string> words;
  for (const char* bad : {"ab \xff", "ab \xc3(", "ab \xed\xa0\x80", "ab \xc0\x80", "ab \xf4\x90\x80\x80", "ab \xe2\x82"}) {
    const absl::Status status = BasicTokens(false).Split(bad, "book.txt", 100, &words);
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("book.txt: byte 103 (0x"));
  }
}

}  // namespace
}  // namespace foreshard
