#include "common/core/shard_plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

Schema TestSchema() {
  return Schema::Create({{"w1", {300, 100}, TensorKind::kTrainable, true},
                         {"b1", {7}, TensorKind::kTrainable, false},
                         {"none", {0}, TensorKind::kTrainable, false},
                         {"w2", {11, 500}, TensorKind::kTrainable, true},
                         {"mean", {33}, TensorKind::kStatistic, false}})
      .value();
}

// Segments cover the vector once, blocks cover their segment once, and no block
// crosses a tensor.
void ExpectCovers(const Schema& schema, const ShardPlan& plan) {
  uint64_t at = 0;
  for (size_t i = 0; i < plan.segments().size(); ++i) {
    const SegmentPlan& segment = plan.segments()[i];
    EXPECT_EQ(segment.id, i);
    EXPECT_EQ(segment.begin, at);
    EXPECT_GT(segment.elements, 0u);
    const bool statistic = segment.begin >= schema.trainable_elements();
    EXPECT_EQ(segment.kind == TensorKind::kStatistic, statistic);
    uint64_t inside = 0;
    for (const Block& block : segment.blocks) {
      EXPECT_EQ(block.offset, inside);
      EXPECT_GT(block.elements, 0u);
      inside += block.elements;
      const uint64_t first = segment.begin + block.offset;
      for (size_t t = 0; t < schema.tensors().size(); ++t) {
        const uint64_t begin = schema.offset(t), end = begin + schema.tensors()[t].elements();
        if (first >= begin && first < end) {
          EXPECT_LE(first + block.elements, end);
          EXPECT_EQ(block.decayed, schema.tensors()[t].decayed);
        }
      }
    }
    EXPECT_EQ(inside, segment.elements);
    at += segment.elements;
  }
  EXPECT_EQ(at, schema.elements());
}

TEST(ShardPlan, CoversTheVectorForEveryShardCount) {
  const Schema schema = TestSchema();
  for (uint32_t shards : {1u, 2u, 3u, 5u, 7u, 16u}) {
    for (uint32_t segment : {4096u, 5000u, 1u << 20}) {
      for (uint32_t block : {1u, 100u, 4096u}) {
        const auto plan = ShardPlan::Create(
            schema, {.shards = shards, .segment_elements = segment, .block_elements = block});
        ASSERT_TRUE(plan.ok()) << plan.status();
        ExpectCovers(schema, *plan);
        EXPECT_LT(plan->imbalance(), 0.05) << shards;
        for (const SegmentPlan& s : plan->segments()) EXPECT_LE(s.elements, segment);
      }
    }
  }
}

TEST(ShardPlan, StatisticsBelongToTheLastShard) {
  const auto plan = ShardPlan::Create(TestSchema(), {.shards = 3});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->segments().back().kind, TensorKind::kStatistic);
  EXPECT_EQ(plan->segments().back().shard, 2u);
  EXPECT_EQ(plan->SegmentsOfShard(2).size(), 2u);
}

TEST(ShardPlan, FingerprintSeesSchemaAndOptions) {
  const Schema schema = TestSchema();
  const uint64_t base = ShardPlan::Create(schema, {.shards = 2})->fingerprint();
  EXPECT_EQ(base, ShardPlan::Create(schema, {.shards = 2})->fingerprint());
  EXPECT_NE(base, ShardPlan::Create(schema, {.shards = 3})->fingerprint());
  EXPECT_NE(base, ShardPlan::Create(schema, {.shards = 2, .block_elements = 64})->fingerprint());
}

// Which of the test schema's trainable tensors stay in full precision.
std::string FullTensors(const ShardPlanOptions& options) {
  const Schema schema = TestSchema();
  const auto plan = ShardPlan::Create(schema, options);
  if (!plan.ok()) return std::string(plan.status().message());
  std::string full;
  for (size_t t = 0; t < schema.tensors().size(); ++t) {
    const uint64_t begin = schema.offset(t), end = begin + schema.tensors()[t].elements();
    uint64_t elements = 0;
    for (const SegmentPlan& segment : plan->segments()) {
      for (const Block& block : segment.blocks) {
        const uint64_t at = segment.begin + block.offset;
        if (at >= begin && at < end && block.full) elements += block.elements;
      }
    }
    // All of a tensor or nothing.
    EXPECT_TRUE(elements == 0 || elements == end - begin) << schema.tensors()[t].name;
    if (elements > 0) full += schema.tensors()[t].name + " ";
  }
  return full;
}

TEST(ShardPlan, FullPrecisionByNameAndSize) {
  const auto by_name = [](std::vector<std::string> patterns) {
    return FullTensors({.shards = 3, .segment_elements = 5000, .full_precision = std::move(patterns)});
  };
  EXPECT_EQ(by_name({}), "");
  EXPECT_EQ(by_name({"w1"}), "w1 ");
  EXPECT_EQ(by_name({"w*"}), "w1 w2 ");
  EXPECT_EQ(by_name({"*1"}), "w1 b1 ");
  EXPECT_EQ(by_name({"*"}), "w1 b1 w2 ");  // statistics are never compressed anyway
  EXPECT_EQ(by_name({"**2*", "b1"}), "b1 w2 ");
  EXPECT_EQ(by_name({"w1*"}), "w1 ");
  EXPECT_EQ(FullTensors({.full_precision_below = 7}), "");
  EXPECT_EQ(FullTensors({.full_precision_below = 8}), "b1 ");
  EXPECT_EQ(FullTensors({.full_precision_below = 5501}), "b1 w2 ");
  EXPECT_EQ(FullTensors({.full_precision = {"w1"}, .full_precision_below = 8}), "w1 b1 ");
  for (const char* pattern : {"w", "1", "w1?", "mean", "", "W1", "*w", "w1 "}) {
    EXPECT_THAT(by_name({"w1", pattern}), HasSubstr("compression.full_precision: '" + std::string(pattern) +
                                              "': no trainable tensor"));
  }
  EXPECT_THAT(by_name({"conv*"}), HasSubstr("there are w1, b1, none, w2"));
  // It is part of what all programs must agree on.
  const Schema schema = TestSchema();
  EXPECT_NE(ShardPlan::Create(schema, {.full_precision = {"w1"}})->fingerprint(),
            ShardPlan::Create(schema, {})->fingerprint());
  EXPECT_NE(ShardPlan::Create(schema, {.full_precision = {"w1"}})->fingerprint(),
            ShardPlan::Create(schema, {.full_precision = {"w2"}})->fingerprint());
  EXPECT_EQ(ShardPlan::Create(schema, {.full_precision_below = 5})->fingerprint(),
            ShardPlan::Create(schema, {})->fingerprint());
}

TEST(ShardPlan, DeadByName) {
  const Schema schema = TestSchema();
  const auto plan = ShardPlan::Create(
      schema, {.shards = 3, .segment_elements = 5000, .full_precision = {"w2"},
               .full_precision_below = 8, .dead = {"b*", "non*"}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const uint64_t begin = schema.offset(1), end = begin + 7;
  uint64_t dead = 0, full = 0;
  for (const SegmentPlan& segment : plan->segments()) {
    for (const Block& block : segment.blocks) {
      const uint64_t at = segment.begin + block.offset;
      EXPECT_EQ(block.dead, at >= begin && at < end) << at;
      // A size is no name: what is small and dead is dead.
      EXPECT_FALSE(block.dead && block.full);
      dead += block.dead ? block.elements : 0;
      full += block.full ? block.elements : 0;
    }
  }
  EXPECT_EQ(dead, 7u);
  EXPECT_EQ(full, 5500u);

  const auto fingerprint = [&](const ShardPlanOptions& options) {
    return ShardPlan::Create(schema, options)->fingerprint();
  };
  EXPECT_NE(fingerprint({.dead = {"w1"}}), fingerprint({}));
  EXPECT_NE(fingerprint({.dead = {"w1"}}), fingerprint({.dead = {"w2"}}));
  EXPECT_NE(fingerprint({.dead = {"w1"}}), fingerprint({.full_precision = {"w1"}}));
  EXPECT_EQ(fingerprint({.dead = {"w1", "w*1"}}), fingerprint({.dead = {"w1"}}));

  const auto refusal = [&](const ShardPlanOptions& options) {
    return std::string(ShardPlan::Create(schema, options).status().message());
  };
  EXPECT_THAT(refusal({.dead = {"w1", "conv*"}}),
              HasSubstr("apmsqueeze.dead: 'conv*': no trainable tensor of the model has such a name"));
  EXPECT_THAT(refusal({.dead = {"mean"}}), HasSubstr("apmsqueeze.dead: 'mean': no trainable tensor"));
  EXPECT_THAT(refusal({.full_precision = {"*1"}, .dead = {"w*"}}),
              HasSubstr("apmsqueeze.dead: 'w1' is named by compression.full_precision too"));
  EXPECT_THAT(refusal({.dead = {"w*", "b1"}}),
              HasSubstr("apmsqueeze.dead: 'w*', 'b1': no tensor is left that could be trained"));
}

TEST(ShardPlan, RefusesWhatCannotBe) {
  const Schema tiny = Schema::Create({{"a", {3}}}).value();
  EXPECT_THAT(ShardPlan::Create(tiny, {.shards = 0}).status().message(), HasSubstr("0 shards"));
  EXPECT_THAT(ShardPlan::Create(tiny, {.shards = 4}).status().message(), HasSubstr("fewer servers"));
  EXPECT_THAT(ShardPlan::Create(tiny, {.block_elements = 4097}).status().message(), HasSubstr("4097"));
  EXPECT_THAT(ShardPlan::Create(tiny, {.segment_elements = 10}).status().message(),
              HasSubstr("shorter than a block"));
  EXPECT_TRUE(ShardPlan::Create(tiny, {.shards = 3}).ok());
}

}  // namespace
}  // namespace foreshard
