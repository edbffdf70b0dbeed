#include "tools/fleet.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/files.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// A shell script stands in for a daemon: the first lines put the value of
// --ready-file into $ready and the rest is the test's.
constexpr char kPrelude[] =
    "#!/bin/sh\n"
    "for a in \"$@\"; do case $a in --ready-file=*) ready=${a#*=} ;; "
    "--shard=*) shard=${a#*=} ;; esac; done\n"
    "up() { echo \"{\\\"address\\\": \\\"127.0.0.1:$1\\\", \\\"pid\\\": $$}\" >\"$ready.part\"; "
    "mv \"$ready.part\" \"$ready\"; }\n";

class FleetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "fleet_test." + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Program(const std::string& name, const std::string& script) {
    const std::string path = folder_ + "/" + name;
    ASSERT_TRUE(WriteFileAtomically(path, kPrelude + script).ok());
    ASSERT_EQ(chmod(path.c_str(), 0755), 0);
  }
  FleetOptions Options() {
    return {.programs = folder_, .folder = folder_, .job = {"--job=some.textproto"}};
  }

  std::string folder_;
};

TEST_F(FleetTest, ServersComeUpInAnyOrderAndAreListedByShard) {
  Program("foreshard-server", "up 700$shard; sleep 600");
  Fleet fleet(Options());
  ASSERT_TRUE(fleet.StartServer(1).ok());
  ASSERT_TRUE(fleet.StartServer(0).ok());
  ASSERT_TRUE(fleet.WaitForServers(absl::Seconds(60)).ok());
  EXPECT_THAT(fleet.addresses(), ElementsAre("127.0.0.1:7000", "127.0.0.1:7001"));
  EXPECT_EQ(fleet.address_list(), "127.0.0.1:7000,127.0.0.1:7001");
  EXPECT_EQ(fleet.Running(Role::kServer), 2u);
  fleet.End(absl::Seconds(60));
  EXPECT_EQ(fleet.Running(Role::kServer), 0u);
}

TEST_F(FleetTest, ArgumentsReachTheProgram) {
  Program("foreshard-server", "up 7000; sleep 600");
  Program("foreshard-worker", "echo \"$@\"");
  Fleet fleet(Options());
  ASSERT_TRUE(fleet.StartServer(0).ok());
  ASSERT_TRUE(fleet.WaitForServers(absl::Seconds(60)).ok());
  ASSERT_TRUE(fleet.StartWorker(2, {"--slowdown=3"}).ok());
  ASSERT_TRUE(fleet.WaitForExits(Role::kWorker, absl::Seconds(60)));
  EXPECT_THAT(LastLines(fleet.Find("worker-2")->log_path, 1),
              ElementsAre(HasSubstr("--servers=127.0.0.1:7000 --role=worker --name=worker-2")));
  EXPECT_THAT(LastLines(fleet.Find("worker-2")->log_path, 1),
              ElementsAre(HasSubstr("--slowdown=3")));
}

TEST_F(FleetTest, AServerThatEndsEarlyIsDescribed) {
  Program("foreshard-server", "echo bad shard >&2; exit 2");
  Fleet fleet(Options());
  ASSERT_TRUE(fleet.StartServer(0).ok());
  const absl::Status status = fleet.WaitForServers(absl::Seconds(60));
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("server-0 exited with status 2 (bad configuration); log: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("\n    bad shard"));
}

TEST_F(FleetTest, AServerThatNeverComesUpIsNamed) {
  Program("foreshard-server", "test $shard = 0 && up 7000; sleep 600");
  Fleet fleet(Options());
  ASSERT_TRUE(fleet.StartServer(0).ok());
  ASSERT_TRUE(fleet.StartServer(1).ok());
  // Until the first is up the second is not the only one that is missing.
  while (!std::filesystem::exists(fleet.Find("server-0")->ready_path)) usleep(1000);
  const absl::Status status = fleet.WaitForServers(absl::Milliseconds(20));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("server-1 not up"));
}

TEST_F(FleetTest, TheWaitCanBeGivenUp) {
  Program("foreshard-server", "sleep 600");
  Fleet fleet(Options());
  ASSERT_TRUE(fleet.StartServer(0).ok());
  EXPECT_TRUE(absl::IsCancelled(
      fleet.WaitForServers(absl::InfiniteDuration(), [] { return true; })));
}

TEST_F(FleetTest, EachExitIsReportedOnce) {
  Program("foreshard-worker", "sleep 600");
  Fleet fleet(Options());
  ASSERT_TRUE(fleet.StartWorker(0).ok());
  EXPECT_THAT(fleet.TakeExits(), SizeIs(0));
  fleet.Find("worker-0")->process->Signal(SIGKILL);
  ASSERT_TRUE(fleet.WaitForExits(Role::kWorker, absl::Seconds(60)));
  const std::vector<ChildExit> exits = fleet.TakeExits();
  ASSERT_THAT(exits, SizeIs(1));
  EXPECT_EQ(exits[0].name, "worker-0");
  EXPECT_EQ(exits[0].exit.signal, SIGKILL);
  EXPECT_THAT(fleet.TakeExits(), SizeIs(0));
}

TEST_F(FleetTest, AMissingProgramComesWithARemedy) {
  Fleet fleet(Options());
  const absl::Status status = fleet.StartServer(0);
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("tools/build"));
}

TEST_F(FleetTest, ReadyFilesAreChecked) {
  const std::string path = folder_ + "/ready";
  EXPECT_FALSE(ReadReadyFile(path).ok());
  ASSERT_TRUE(WriteFileAtomically(path, "half {").ok());
  EXPECT_FALSE(ReadReadyFile(path).ok());
  ASSERT_TRUE(WriteFileAtomically(path, R"({"address": "h:1", "metrics_address": "h:2", "pid": 5})")
                  .ok());
  const ReadyFile ready = ReadReadyFile(path).value();
  EXPECT_EQ(ready.address, "h:1");
  EXPECT_EQ(ready.metrics_address, "h:2");
  EXPECT_EQ(ready.pid, 5);
}

}  // namespace
}  // namespace foreshard
