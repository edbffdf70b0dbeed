// `foreshard bench` as a program that others read.
#include <string>

#include "gmock/gmock.h"
#include "tests/end_to_end/job_folder.h"
#include "tools/files.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

class BenchTest : public EndToEndTest {};

TEST_F(BenchTest, WritesATableAndAListWithFiveFields) {
  for (const char* suite : {"codec", "exchange", "journal", "restart", "metrics"}) {
    const Ended ended =
        RunForeshard({"bench", suite, "--quick", "--seconds", "0.01", "--json", Path("bench.json")});
    ASSERT_EQ(ended.status, 0) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("ratio"));
    const auto list =
        nlohmann::json::parse(ReadFile(Path("bench.json")).value_or(""), nullptr, false);
    ASSERT_TRUE(list.is_array());
    ASSERT_GT(list.size(), 0u);
    for (const nlohmann::json& line : list) {
      EXPECT_EQ(line.size(), 5u);
      EXPECT_THAT(line["name"].get<std::string>(), HasSubstr(suite));
      EXPECT_THAT(ended.output, HasSubstr(line["name"].get<std::string>()));
      EXPECT_TRUE(line["unit"].is_string());
      for (const char* number : {"value", "limit", "ratio"}) {
        ASSERT_TRUE(line[number].is_number()) << line.dump();
        EXPECT_GT(line[number].get<double>(), 0) << line.dump();
      }
    }
  }
}

TEST_F(BenchTest, AFileThatCannotBeWrittenIsSaidBeforeMeasuring) {
  const Ended ended = RunForeshard({"bench", "codec", "--json", Path("no/bench.json")});
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.output, HasSubstr("no/bench.json"));
}

}  // namespace
}  // namespace foreshard
