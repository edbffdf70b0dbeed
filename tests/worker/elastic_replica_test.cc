#include "worker/elastic_replica.h"

#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Two segments of two trainable elements and one of a statistic.
class ElasticReplicaTest : public testing::Test {
 protected:
  ElasticReplicaTest()
      : schema_(Schema::Create({{"w", {4}, TensorKind::kTrainable, false},
                                {"mean", {1}, TensorKind::kStatistic, false}})
                    .value()),
        plan_(ShardPlan::Create(schema_, {.shards = 1, .segment_elements = 2, .block_elements = 2})
                  .value()) {}

  ElasticOptions Options() const {
    ElasticOptions options;
    options.elasticity = 0.5f;
    options.local_steps = 3;
    options.schedule = {.learning_rate = 1, .batches_per_epoch = 10};
    return options;
  }

  const Schema schema_;
  const ShardPlan plan_;
  const std::vector<float> start_ = {1, 2, 3, 4, 5};
  const std::vector<float> gradient_ = {1, 1, 1, 1};
};

TEST_F(ElasticReplicaTest, ExchangesAfterSoManySteps) {
  ElasticReplica replica(Options(), plan_, schema_);
  replica.Restart(start_.data());
  EXPECT_FALSE(replica.due());
  replica.Step(7, 0, gradient_.data());
  replica.Skip(8, 0);
  EXPECT_FALSE(replica.due());
  replica.Step(3, 0, gradient_.data());  // dealt again
  EXPECT_TRUE(replica.due());
  EXPECT_THAT(replica.tickets(), ElementsAre(7, 8, 3));
  EXPECT_THAT(replica.local().parameters(), ElementsAre(-1, 0, 1, 2, 5));

  const std::vector<float> center = {1, 2, 3, 4, 9};
  EXPECT_TRUE(replica.Exchange(center.data()));
  EXPECT_THAT(std::vector<float>(replica.difference(), replica.difference() + 4),
              ElementsAre(-1, -1, -1, -1));
  EXPECT_THAT(replica.local().parameters(), ElementsAre(0, 1, 2, 3, 5));
  replica.Exchanged();
  EXPECT_THAT(replica.tickets(), IsEmpty());
  EXPECT_FALSE(replica.due());
}

// Five rounds' worth of steps by three: the exchanges are after steps 2, 5, ... and the
// last one, whatever step a worker begins at.
TEST_F(ElasticReplicaTest, RoundsFollowFromTheSteps) {
  ElasticOptions options = Options();
  options.synchronous_steps = 14;
  for (const uint64_t first : {0, 4, 12}) {
    ElasticReplica replica(options, plan_, schema_);
    replica.Restart(start_.data());
    std::vector<uint64_t> after, rounds;
    for (uint64_t step = first; step < 14; ++step) {
      replica.Step(2 * step + 1, step, gradient_.data());
      if (!replica.due()) continue;
      after.push_back(step);
      rounds.push_back(replica.round());
      replica.Exchange(start_.data());
      replica.Exchanged();
      EXPECT_FALSE(replica.due());
    }
    EXPECT_THAT(replica.tickets(), IsEmpty());
    if (first == 0) {
      EXPECT_THAT(after, ElementsAre(2, 5, 8, 11, 13));
      EXPECT_THAT(rounds, ElementsAre(0, 1, 2, 3, 4));
    } else if (first == 4) {
      EXPECT_THAT(after, ElementsAre(5, 8, 11, 13));
      EXPECT_THAT(rounds, ElementsAre(1, 2, 3, 4));
    } else {
      EXPECT_THAT(after, ElementsAre(13));
      EXPECT_THAT(rounds, ElementsAre(4));
    }
  }
}

TEST_F(ElasticReplicaTest, TheRateIsOfTheTicketOrOfTheSegmentsClock) {
  ElasticOptions options = Options();
  options.local.momentum = 0.5f;
  options.schedule.decay = Decay::kStep;
  options.schedule.decay_epochs = {1};
  options.schedule.decay_factor = 0.5;
  ElasticReplica replica(options, plan_, schema_);
  replica.Restart(start_.data());
  replica.set_clock(1, 12);  // the second segment's server is an epoch ahead
  replica.Step(0, 0, gradient_.data());
  EXPECT_THAT(replica.local().parameters(), ElementsAre(0, 1, 2.5f, 3.5f, 5));
  const float* at = replica.GradientPoint(1);
  EXPECT_THAT(std::vector<float>(at, at + 5), ElementsAre(-0.5f, 0.5f, 2.25f, 3.25f, 5));
  at = replica.GradientPoint(10);  // this ticket is as far
  EXPECT_THAT(std::vector<float>(at, at + 5), ElementsAre(-0.25f, 0.75f, 2.25f, 3.25f, 5));
}

TEST_F(ElasticReplicaTest, InRoundsTheRateIsOfTheTicketAlone) {
  ElasticOptions options = Options();
  options.schedule.decay = Decay::kStep;
  options.schedule.decay_epochs = {1};
  options.schedule.decay_factor = 0.5;
  options.synchronous_steps = 14;
  ElasticReplica replica(options, plan_, schema_);
  replica.Restart(start_.data());
  replica.set_clock(1, 12);  // another member's push to the next round
  replica.Step(9, 4, gradient_.data());
  EXPECT_THAT(replica.local().parameters(), ElementsAre(0, 1, 2, 3, 5));
}

TEST_F(ElasticReplicaTest, ParametersThatRanAwayBeginAnewAtTheCenter) {
  ElasticOptions options = Options();
  options.local.momentum = 0.5f;
  ElasticReplica replica(options, plan_, schema_);
  replica.Restart(start_.data());
  const float huge = std::numeric_limits<float>::max();
  const std::vector<float> gradient = {1, huge, 1, 1};
  replica.Step(0, 0, gradient.data());
  replica.Step(1, 0, gradient.data());
  const std::vector<float> center = {4, 3, 2, 1, 0};
  EXPECT_FALSE(replica.Exchange(center.data()));
  EXPECT_THAT(replica.local().parameters(), ElementsAre(4, 3, 2, 1, 0));
  EXPECT_THAT(replica.local().velocity(), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(replica.tickets(), ElementsAre(0, 1));
}

}  // namespace
}  // namespace foreshard
