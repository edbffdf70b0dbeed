#include "tools/interrupt.h"

#include <signal.h>

#include "gtest/gtest.h"

namespace foreshard {
namespace {

TEST(Interrupt, CountsSignalsAndRestoresWhatWasThere) {
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  struct sigaction before = {};
  sigaction(SIGINT, &ignore, &before);
  {
    Interrupt interrupt;
    EXPECT_FALSE(interrupt.requested());
    raise(SIGINT);
    EXPECT_TRUE(interrupt.requested());
    EXPECT_EQ(interrupt.signal(), SIGINT);
    raise(SIGTERM);
    EXPECT_EQ(interrupt.count(), 2);
    EXPECT_EQ(interrupt.signal(), SIGTERM);
  }
  struct sigaction now = {};
  sigaction(SIGINT, &before, &now);
  EXPECT_EQ(now.sa_handler, SIG_IGN);
}

TEST(Interrupt, LeavesHangUpsIgnoredUnderNohup) {
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  struct sigaction before = {};
  sigaction(SIGHUP, &ignore, &before);
  {
    Interrupt interrupt;
    raise(SIGHUP);
    EXPECT_FALSE(interrupt.requested());
  }
  sigaction(SIGHUP, &before, nullptr);
}

}  // namespace
}  // namespace foreshard
