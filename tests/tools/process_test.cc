#include "tools/process.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/files.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);

class ProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "process_test." + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Log() const { return folder_ + "/log"; }
  absl::StatusOr<std::unique_ptr<Process>> Shell(const std::string& script) {
    return Process::Start(
        {.program = "/bin/sh", .arguments = {"-c", script}, .log_path = Log()});
  }
  // Waits until the log holds at least one line.
  std::string FirstLine() {
    const absl::Time deadline = absl::Now() + kLong;
    while (absl::Now() < deadline) {
      const std::vector<std::string> lines = LastLines(Log(), 1);
      if (!lines.empty()) return lines[0];
      absl::SleepFor(absl::Milliseconds(5));
    }
    return "";
  }

  std::string folder_;
};

// Whether a process of this id exists and is no zombie.
bool Alive(pid_t pid) {
  absl::StatusOr<std::string> stat = ReadFile("/proc/" + std::to_string(pid) + "/stat");
  return stat.ok() && !stat->empty() && stat->find(") Z") == std::string::npos;
}

bool Gone(pid_t pid) {
  const absl::Time deadline = absl::Now() + kLong;
  while (Alive(pid) && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  return !Alive(pid);
}

TEST_F(ProcessTest, WritesBothStreamsToTheLogAndGivesItsStatus) {
  auto process = Shell("echo out; echo err >&2; exit 3");
  ASSERT_TRUE(process.ok()) << process.status();
  const std::optional<ProcessExit> exit = (*process)->Wait(kLong);
  ASSERT_TRUE(exit.has_value());
  EXPECT_EQ(exit->status, 3);
  EXPECT_EQ(exit->signal, 0);
  EXPECT_FALSE(exit->ok());
  EXPECT_EQ(exit->Describe(), "exited with status 3 (device lost)");
  EXPECT_THAT(LastLines(Log(), 5), ElementsAre("out", "err"));
  // The answer stays the same when asked again.
  EXPECT_EQ((*process)->Poll()->status, 3);
}

TEST_F(ProcessTest, NamesTheSignal) {
  auto process = Shell("kill -9 $$");
  ASSERT_TRUE(process.ok());
  const std::optional<ProcessExit> exit = (*process)->Wait(kLong);
  ASSERT_TRUE(exit.has_value());
  EXPECT_EQ(exit->signal, SIGKILL);
  EXPECT_EQ(exit->Describe(), "was killed by signal 9 (Killed)");
}

TEST_F(ProcessTest, AMissingProgramIsAnErrorThatNamesIt) {
  auto process = Process::Start({.program = folder_ + "/nothing"});
  ASSERT_FALSE(process.ok());
  EXPECT_TRUE(absl::IsNotFound(process.status()));
  EXPECT_THAT(std::string(process.status().message()), HasSubstr("/nothing"));
}

TEST_F(ProcessTest, ALogThatCannotBeWrittenIsAnError) {
  auto process = Process::Start({.program = "/bin/true", .log_path = folder_ + "/no/log"});
  ASSERT_FALSE(process.ok());
  EXPECT_THAT(std::string(process.status().message()), HasSubstr("/no/log"));
}

TEST_F(ProcessTest, EnvironmentReplacesAndAdds) {
  setenv("FORESHARD_PROCESS_TEST", "ours", 1);
  auto process = Process::Start({.program = "/bin/sh",
                                 .arguments = {"-c", "echo $FORESHARD_PROCESS_TEST $OTHER_NAME"},
                                 .environment = {"FORESHARD_PROCESS_TEST=theirs", "OTHER_NAME=x"},
                                 .log_path = Log()});
  ASSERT_TRUE(process.ok());
  ASSERT_TRUE((*process)->Wait(kLong).has_value());
  EXPECT_THAT(LastLines(Log(), 5), ElementsAre("theirs x"));
  unsetenv("FORESHARD_PROCESS_TEST");
}

TEST_F(ProcessTest, WaitGivesUpAtItsBound) {
  auto process = Shell("sleep 600");
  ASSERT_TRUE(process.ok());
  EXPECT_FALSE((*process)->Wait(absl::Milliseconds(1)).has_value());
  EXPECT_FALSE((*process)->Poll().has_value());
}

TEST_F(ProcessTest, TerminateIsPoliteFirst) {
  auto process = Shell("trap 'exit 7' TERM; echo ready; while true; do sleep 0.01; done");
  ASSERT_TRUE(process.ok());
  ASSERT_EQ(FirstLine(), "ready");
  EXPECT_EQ((*process)->Terminate(kLong).status, 7);
}

TEST_F(ProcessTest, TerminateKillsWhatDoesNotListenAndItsChildren) {
  auto process = Shell("trap '' TERM; sleep 600 & echo $!; wait; wait");
  ASSERT_TRUE(process.ok());
  int grandchild = 0;
  ASSERT_TRUE(absl::SimpleAtoi(FirstLine(), &grandchild));
  EXPECT_EQ((*process)->Terminate(absl::Milliseconds(50)).signal, SIGKILL);
  EXPECT_TRUE(Gone(grandchild));
}

TEST_F(ProcessTest, TheDestructorLeavesNothingRunning) {
  pid_t pid = 0;
  {
    auto process = Shell("sleep 600");
    ASSERT_TRUE(process.ok());
    pid = (*process)->pid();
    EXPECT_TRUE(Alive(pid));
  }
  EXPECT_FALSE(Alive(pid));
}

TEST_F(ProcessTest, DiesWithAParentThatIsKilled) {
  // The parent in the middle starts a child, says its id and waits to be killed.
  const pid_t parent = fork();
  if (parent == 0) {
    auto process = Process::Start({.program = "/bin/sleep", .arguments = {"600"}});
    if (!process.ok()) _exit(1);
    absl::Status written =
        WriteFileAtomically(Log(), std::to_string((*process)->pid()) + "\n");
    if (!written.ok()) _exit(1);
    while (true) pause();
  }
  int child = 0;
  ASSERT_TRUE(absl::SimpleAtoi(FirstLine(), &child));
  EXPECT_TRUE(Alive(child));
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  EXPECT_TRUE(Gone(child));
}

}  // namespace
}  // namespace foreshard
