#include "worker/acknowledged_record.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class AcknowledgedRecordTest : public ::testing::Test {
 protected:
  ~AcknowledgedRecordTest() override { std::remove(path_.c_str()); }
  std::string Read() const {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  const std::string path_ =
      ::testing::TempDir() + std::to_string(getpid()) + ".acknowledged_record_test.csv";
};

TEST_F(AcknowledgedRecordTest, WritesALineAnAnswerAtOnce) {
  auto record = AcknowledgedRecord::Open(path_);
  ASSERT_TRUE(record.ok()) << record.status();
  (*record)->SetIncarnation(1700000000000001);
  (*record)->Note({.segment = 3, .sequence = 7, .ticket = 40, .version = 12, .result = "applied"});
  // There before the object ends.
  EXPECT_EQ(Read(), "segment,incarnation,sequence,ticket,version,result\n"
                    "3,1700000000000001,7,40,12,applied\n");
  (*record)->Note({.segment = 0, .sequence = 8, .ticket = 41, .version = 13, .result = "late"});
  EXPECT_THAT(Read(), HasSubstr("\n0,1700000000000001,8,41,13,late\n"));
}

TEST_F(AcknowledgedRecordTest, AFileThatCannotBeMadeIsNamedWithItsFlag) {
  for (const std::string path : {"/nowhere/acknowledged.csv", "/dev/full"}) {
    const auto record = AcknowledgedRecord::Open(path);
    ASSERT_FALSE(record.ok()) << path;
    EXPECT_THAT(std::string(record.status().message()),
                AllOf(HasSubstr("--record-acknowledged"), HasSubstr(path)));
  }
}

TEST_F(AcknowledgedRecordTest, AFullDiskEndsTheRecordAlone) {
  auto record = AcknowledgedRecord::Open(path_);
  ASSERT_TRUE(record.ok()) << record.status();
  (*record)->Note({.segment = 1, .sequence = 1, .result = "applied"});
  const std::string before = Read();
  rlimit old_limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_action = signal(SIGXFSZ, SIG_IGN);
  const rlimit full = {.rlim_cur = std::filesystem::file_size(path_), .rlim_max = old_limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  (*record)->Note({.segment = 2, .sequence = 2, .result = "applied"});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  signal(SIGXFSZ, old_action);
  (*record)->Note({.segment = 3, .sequence = 3, .result = "applied"});
  EXPECT_EQ(Read(), before);
}

}  // namespace
}  // namespace foreshard
