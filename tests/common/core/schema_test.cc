#include "common/core/schema.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

TEST(Schema, LaysTensorsOutInOrder) {
  const auto schema = Schema::Create({{"a", {2, 3}, TensorKind::kTrainable, true},
                                      {"empty", {0, 7}, TensorKind::kTrainable, false},
                                      {"scalar", {}, TensorKind::kTrainable, false},
                                      {"mean", {4}, TensorKind::kStatistic, false}});
  ASSERT_TRUE(schema.ok()) << schema.status();
  EXPECT_EQ(schema->offset(1), 6u);
  EXPECT_EQ(schema->offset(2), 6u);
  EXPECT_EQ(schema->offset(3), 7u);
  EXPECT_EQ(schema->trainable_elements(), 7u);
  EXPECT_EQ(schema->statistic_elements(), 4u);
}

TEST(Schema, RefusesWhatCannotBe) {
  EXPECT_THAT(Schema::Create({{"", {1}}}).status().message(), HasSubstr("has no name"));
  EXPECT_THAT(Schema::Create({{"a", {1}}, {"a", {2}}}).status().message(), HasSubstr("'a'"));
  EXPECT_THAT(Schema::Create({{"a", {-1}}}).status().message(), HasSubstr("negative"));
  EXPECT_THAT(Schema::Create({{"s", {1}, TensorKind::kStatistic}, {"late", {1}}}).status().message(),
              HasSubstr("'late'"));
  EXPECT_THAT(Schema::Create({{"huge", {1 << 30, 1 << 30, 1 << 30}}}).status().message(),
              HasSubstr("2^40"));
}

TEST(Schema, FingerprintAndDifferenceSeeEveryField) {
  const std::vector<TensorSpec> base = {{"a", {2, 3}, TensorKind::kTrainable, true},
                                        {"m", {4}, TensorKind::kStatistic, false}};
  const Schema schema = Schema::Create(base).value();
  EXPECT_EQ(schema.fingerprint(), Schema::Create(base)->fingerprint());
  EXPECT_EQ(schema.Difference(Schema::Create(base).value()), "");
  std::vector<std::vector<TensorSpec>> variants(4, base);
  variants[0][0].name = "b";
  variants[1][0].shape = {3, 2};
  variants[2][0].decayed = false;
  variants[3].pop_back();
  for (const auto& variant : variants) {
    const Schema other = Schema::Create(variant).value();
    EXPECT_NE(other.fingerprint(), schema.fingerprint());
    EXPECT_NE(schema.Difference(other), "");
  }
}

}  // namespace
}  // namespace foreshard
