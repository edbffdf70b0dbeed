#include "server/start_interrupt.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <optional>
#include <utility>

#include "common/core/exit_code.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

constexpr timespec kPatience = {60, 0};

sigset_t Ends() {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  return ends;
}

[[noreturn]] void StartUnder(int number) {
  const sigset_t ends = Ends();
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  const StartInterrupt interrupt;
  kill(getpid(), number);
  sigset_t none;
  sigemptyset(&none);
  sigtimedwait(&none, nullptr, &kPatience);
  _exit(99);
}

TEST(StartInterruptDeathTest, EndsTheProcessAtOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(StartUnder(SIGTERM), ::testing::ExitedWithCode(kExitDone), "before it has started: Terminated");
  EXPECT_EXIT(StartUnder(SIGINT), ::testing::ExitedWithCode(kExitInterrupted), "before it has started: Interrupt");
}

// As the main program waits for its end.
[[noreturn]] void EndBehindStart() {
  const sigset_t ends = Ends();
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  std::optional<StartInterrupt> interrupt(std::in_place);
  interrupt.reset();
  kill(getpid(), SIGTERM);
  _exit(sigtimedwait(&ends, nullptr, &kPatience) == SIGTERM ? 7 : 99);
}

TEST(StartInterruptDeathTest, LeavesLaterSignalsToTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(EndBehindStart(), ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace foreshard
