#include "tools/records.h"

#include <unistd.h>

#include <filesystem>

#include "common/core/batch_trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/files.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

class RecordsTest : public ::testing::Test {
 protected:
  RecordsTest() : folder_(::testing::TempDir() + "records_test." + std::to_string(getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~RecordsTest() override { std::filesystem::remove_all(folder_); }

  std::string Part(const std::string& name, const std::string& lines) {
    const std::string path = folder_ + "/" + name;
    EXPECT_TRUE(WriteFileAtomically(path, std::string(kTraceHeader) + lines).ok());
    return path;
  }

  const std::string folder_;
};

TEST_F(RecordsTest, PutsWorkersTogetherBySlotAndStep) {
  // Slots are given in the order of registration, which is not that of the processes.
  const std::vector<std::string> parts = {Part("a", "2,0,0.1\n2,1,0.2\n"), Part("b", "0,0,3\n"),
                                          Part("c", "1,0,4\n1,1,5\n"), folder_ + "/never-made"};
  ASSERT_TRUE(MergeBatches(parts, BatchesPath(folder_)).ok());
  EXPECT_EQ(LoadTrace(BatchesPath(folder_)).value(), (BatchTrace{{3}, {4, 5}, {0.1, 0.2}}));
  for (const std::string& part : parts) EXPECT_FALSE(std::filesystem::exists(part)) << part;
}

TEST_F(RecordsTest, SaysWhenAWorkerIsMissing) {
  const absl::Status merged =
      MergeBatches({Part("a", "2,0,0.1\n"), Part("b", ""), Part("c", "0,0,1\n")},
                   BatchesPath(folder_));
  EXPECT_TRUE(absl::IsInvalidArgument(merged));
  EXPECT_THAT(std::string(merged.message()), HasSubstr("worker 1 is not"));
  // What there is is kept all the same.
  EXPECT_THAT(ReadFile(BatchesPath(folder_)).value(), HasSubstr("0,0,1\n2,0,0.1\n"));
}

TEST_F(RecordsTest, RemovesThoseOfAnEarlierRunAndNothingElse) {
  const std::string batches = Part("batches.csv", "");
  Part("arrivals-0.csv", "");
  Part("arrivals-17.csv", "");
  const std::string other = Part("results.json", "");
  EXPECT_EQ(ArrivalsPath(folder_, 17), folder_ + "/arrivals-17.csv");
  RemoveRecords(folder_);
  EXPECT_FALSE(std::filesystem::exists(batches));
  EXPECT_FALSE(std::filesystem::exists(ArrivalsPath(folder_, 0)));
  EXPECT_FALSE(std::filesystem::exists(ArrivalsPath(folder_, 17)));
  EXPECT_TRUE(std::filesystem::exists(other));
}

}  // namespace
}  // namespace foreshard
