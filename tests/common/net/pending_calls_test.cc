#include "common/net/pending_calls.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace foreshard {
namespace {

TEST(PendingCalls, NoneAreDoneAtOnce) { PendingCalls(0).Wait(); }

TEST(PendingCalls, WaitSeesWhatEveryCallHasNoted) {
  constexpr size_t kCalls = 8;
  for (int round = 0; round < 200; ++round) {
    std::vector<std::thread> threads;
    {
      // Gone as soon as the last call has noted its part, whatever the threads still do.
      std::vector<std::string> notes(kCalls);
      const auto pending = std::make_shared<PendingCalls>(kCalls);
      for (size_t k = 0; k < kCalls; ++k) {
        threads.emplace_back([&note = notes[k], pending, k] {
          pending->Done([&] { note = "call " + std::to_string(k); });
        });
      }
      pending->Wait();
      for (size_t k = 0; k < kCalls; ++k) EXPECT_EQ(notes[k], "call " + std::to_string(k));
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(PendingCalls, WaitsForTheLast) {
  const auto pending = std::make_shared<PendingCalls>(3);
  int noted = 0;
  pending->Done([&] { ++noted; });
  pending->Done([&] { ++noted; });
  std::thread last([&noted, pending] { pending->Done([&] { ++noted; }); });
  pending->Wait();
  EXPECT_EQ(noted, 3);
  last.join();
}

}  // namespace
}  // namespace foreshard
