#include "tools/compare.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/data_folder.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

class CompareTest : public DataFolderTest {
 protected:
  CompareTest() : DataFolderTest("foreshard-compare") {}
  // Loss 10 - epoch at 1000 samples of two epochs, the first two of them before anything is known.
  std::string Folder(const std::string& name, double pushed) {
    std::string epochs = "0, 0", losses = "null, 10";
    for (int i = 1; i <= 998; ++i) {
      absl::StrAppend(&epochs, ", ", i / 499.0);
      absl::StrAppend(&losses, ", ", 10 - i / 499.0);
    }
    std::filesystem::create_directories(directory_ / name);
    Write(name + "/results.json",
          absl::StrCat(R"({"job": ")", name, R"(", "seconds": 125, "updates": 10, "push_bytes": )", pushed,
                       R"(, "push_uncompressed_bytes": 32768, "pull_bytes": 0, "pull_uncompressed_bytes": 0,)",
                       R"("test_loss": 3.25, "test_accuracy": null, "curves": {"epoch": [)", epochs,
                       R"(], "loss": [)", losses, "]}}"));
    return (directory_ / name).string();
  }
};

TEST_F(CompareTest, LossesBytesAndTimes) {
  const auto runs = ReadRuns({Folder("whole", 32768), Folder("squeezed", 1024)});
  ASSERT_TRUE(runs.ok()) << runs.status();
  ASSERT_EQ(runs->size(), 2u);
  EXPECT_EQ((*runs)[0].name, "whole");
  EXPECT_EQ((*runs)[0].losses.size(), 999u);
  EXPECT_TRUE(std::isnan((*runs)[0].test_accuracy));
  // The middle of (0.95, 1] of two epochs.
  EXPECT_NEAR(LossAt((*runs)[0], 0.5), 10 - 0.95, 2e-3);
  EXPECT_NEAR(LossAt((*runs)[0], 1), 10 - 1.95, 2e-3);
  const std::string table = ComparisonTable(*runs);
  EXPECT_THAT(table, HasSubstr("whole     "));
  EXPECT_THAT(table, HasSubstr("32.0 KiB (1/1.0)"));
  EXPECT_THAT(table, HasSubstr("1.0 KiB (1/32.0)"));
  EXPECT_THAT(table, HasSubstr("3.2500"));
  EXPECT_THAT(table, HasSubstr("2:05"));
  const std::string svg = LossComparison(*runs);
  EXPECT_THAT(svg, HasSubstr("squeezed"));
  EXPECT_LT(svg.size(), 16'000u);  // thinned
}

TEST_F(CompareTest, WhatIsNoRunIsNamed) {
  const auto refused = [&](const std::string& folder) { return std::string(ReadRuns({folder}).status().message()); };
  EXPECT_THAT(refused((directory_ / "none").string()), HasSubstr("none/results.json"));
  std::filesystem::create_directories(directory_ / "bad");
  Write("bad/results.json", "[1, 2");
  EXPECT_THAT(refused((directory_ / "bad").string()), HasSubstr("bad/results.json: is no results.json"));
  Write("bad/results.json", R"({"job": "x", "curves": {"epoch": [1], "loss": []}})");
  EXPECT_THAT(refused((directory_ / "bad").string()), HasSubstr("has no curves of a run"));
  for (const char* curves : {"7", "null", "[]", R"("x")", R"({"epoch": 1, "loss": 2})", R"({"epoch": "a", "loss": "b"})",
                             R"({"epoch": {"a": 1}, "loss": {"a": 1}})", R"({"epoch": [1], "loss": {"a": 1}})"}) {
    Write("bad/results.json", absl::StrCat(R"({"job": "x", "curves": )", curves, "}"));
    EXPECT_THAT(refused((directory_ / "bad").string()), HasSubstr("bad/results.json: has no curves of a run")) << curves;
  }
}

TEST_F(CompareTest, WhatIsNotKnownOrNotFiniteIsADash) {
  std::filesystem::create_directories(directory_ / "odd");
  Write("odd/results.json",
        R"({"job": "odd", "push_bytes": 2048, "pull_bytes": 1e308, "test_loss": 1e300, "curves": {"epoch": [0.5, 1, 1.5, 2], "loss": [1, 1e308, -1e308, 1e308]}})");
  const auto runs = ReadRuns({(directory_ / "odd").string()});
  ASSERT_TRUE(runs.ok()) << runs.status();
  const std::string table = ComparisonTable(*runs);
  EXPECT_THAT(table, HasSubstr("2.0 KiB "));
  EXPECT_THAT(table, HasSubstr("1e+300"));
  EXPECT_LT(table.size(), 400u);
  EXPECT_THAT(table, ::testing::EndsWith("       -\n"));
  EXPECT_THAT(table, ::testing::Not(HasSubstr("nan")));
  EXPECT_THAT(LossComparison(*runs), ::testing::Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace foreshard
