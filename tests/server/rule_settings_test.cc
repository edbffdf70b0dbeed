// What a job says of its rule reaches the rule in a real server.
#include <cmath>

#include "tests/server/server_harness.h"

namespace foreshard {
namespace {

TEST(RuleSettings, OfAdam) {
  TestServers servers(TestJob({"update.rule=adam", "update.momentum=", "update.beta1=0.5",
                               "update.beta2=0.75", "update.epsilon=0.5",
                               "update.weight_decay=0.25"}));
  TestWorker worker(servers, 0, 5);
  ASSERT_TRUE(worker.SayHello().ok());
  worker.InitialiseAll(3);
  ASSERT_TRUE(worker.Read(0).status.ok());
  const Answer pushed = worker.Push(0, 0);
  ASSERT_TRUE(pushed.status.ok()) << pushed.status;
  const std::vector<float> gradient = worker.Gradient(0, 0);
  for (size_t k = 0; k < gradient.size(); ++k) {
    const double step = 0.5 * gradient[k] / (0.5 * std::abs(gradient[k]) + 0.5) + 0.25 * 3;
    EXPECT_NEAR(pushed.values[k], 3 - 0.01 * step, 1e-6);
  }
}

// Also that the server keeps all that a worker holds for the rules that need it.
TEST(RuleSettings, OfDelayCompensation) {
  for (const bool adaptive : {false, true}) {
    std::vector<std::string> settings = {"update.rule=dc_asgd", "update.momentum=",
                                         "update.dc_lambda=5"};
    settings.push_back(adaptive ? "update.dc_decay=0.75" : "update.dc_adaptive=false");
    TestServers servers(TestJob(settings));
    TestWorker slow(servers, 0, 5), fast(servers, 1, 6);
    ASSERT_TRUE(slow.SayHello().ok());
    ASSERT_TRUE(fast.SayHello().ok());
    slow.InitialiseAll(3);
    ASSERT_TRUE(slow.Read(0).status.ok());
    ASSERT_TRUE(fast.Read(0).status.ok());
    const Answer first = fast.Push(0, 0);
    const Answer second = slow.Push(0, 1);
    ASSERT_TRUE(second.status.ok()) << second.status;
    EXPECT_EQ(second.header.lag(), 1);
    const std::vector<float> earlier = fast.Gradient(0, 0);
    const std::vector<float> gradient = slow.Gradient(0, 1);
    double largest = 0;
    for (size_t k = 0; k < gradient.size(); ++k) {
      const double g = gradient[k];
      const double mean_square = 0.75 * 0.25 * earlier[k] * earlier[k] + 0.25 * g * g;
      const double rate = adaptive ? 5 / std::sqrt(mean_square + 1e-7) : 5;
      const double compensation = rate * g * g * (first.values[k] - 3.0);
      EXPECT_NEAR(second.values[k], first.values[k] - 0.01 * (g + compensation), 1e-5);
      largest = std::max(largest, std::abs(0.01 * compensation));
    }
    EXPECT_GT(largest, 1e-3);  // it is seen
  }
}

// Two workers: one push ahead by their number, none by what was measured.
TEST(RuleSettings, OfTheLag) {
  for (const bool measured : {false, true}) {
    TestServers servers(TestJob({"update.rule=lwp",
                                 measured ? "update.lag=measured" : "update.lag=workers"}));
    TestWorker worker(servers, 0, 5), other(servers, 1, 6);
    ASSERT_TRUE(worker.SayHello().ok());
    ASSERT_TRUE(other.SayHello().ok());
    worker.InitialiseAll(3);
    ASSERT_TRUE(worker.Read(0).status.ok());
    ASSERT_TRUE(other.Read(0).status.ok());
    const Answer pushed = worker.Push(0, 0);
    ASSERT_TRUE(pushed.status.ok()) << pushed.status;
    const std::vector<float> gradient = worker.Gradient(0, 0);
    for (size_t k = 0; k < gradient.size(); ++k) {
      EXPECT_NEAR(pushed.values[k], 3 - (measured ? 0.01 : 0.02) * gradient[k], 1e-6);
    }
  }
}

// ormo_da counts in planned workers, which the schedule knows.
TEST(RuleSettings, OfThePlannedWorkers) {
  TestServers servers(TestJob({"update.rule=ormo_da", "update.momentum=0.5"}));
  TestWorker worker(servers, 0, 5);
  ASSERT_TRUE(worker.SayHello().ok());
  worker.InitialiseAll(3);
  ASSERT_TRUE(worker.Read(0).status.ok());
  // Stamps 1 and 2 are one bucket of the two planned workers: 1 is not old at its push,
  // 2 is one bucket old at the next, which also advances: theta -= eta gamma u.
  const std::vector<float> first = worker.Gradient(0, 0), second = worker.Gradient(0, 1);
  const Answer one = worker.Push(0, 0);
  const Answer two = worker.Push(0, 1);
  ASSERT_TRUE(two.status.ok()) << two.status;
  for (size_t k = 0; k < first.size(); ++k) {
    EXPECT_NEAR(one.values[k], 3 - 0.01 * first[k], 1e-6);
    EXPECT_NEAR(two.values[k], one.values[k] - 0.01 * (0.5 * first[k] + 1.5 * second[k]), 1e-6);
  }
}

}  // namespace
}  // namespace foreshard
