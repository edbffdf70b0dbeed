#include "tools/bench/table.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard::bench {
namespace {

using ::testing::HasSubstr;

TEST(Table, LinesAlignWithTheHeader) {
  const std::string line = TableLine({"codec/one_bit/encode", 12.3456, "GB/s", 19.5, 0.633});
  EXPECT_EQ(line.size(), TableHeader().size());
  EXPECT_THAT(line, HasSubstr("12.35"));
  EXPECT_THAT(line, HasSubstr("19.50"));
  EXPECT_THAT(line, HasSubstr("0.63"));
}

TEST(Table, FiguresFromTinyToLarge) {
  EXPECT_THAT(TableLine({"a", 0.00001, "s", 0, 0}), HasSubstr("1e-05"));
  EXPECT_THAT(TableLine({"a", 123456.7, "s", 0, 0}), HasSubstr("123457"));
  EXPECT_THAT(TableLine({"a", 150.25, "us", 0, 0}), HasSubstr("150.2"));
}

TEST(Table, JsonHasTheFiveFieldsAndNoNaN) {
  const nlohmann::ordered_json json =
      ToJson({{"a/b", 1.5, "GB/s", 3, 0.5}, {"c", std::numeric_limits<double>::quiet_NaN()}});
  EXPECT_EQ(json.dump(),
            "[{\"name\":\"a/b\",\"value\":1.5,\"unit\":\"GB/s\",\"limit\":3.0,\"ratio\":0.5},"
            "{\"name\":\"c\",\"value\":null,\"unit\":\"\",\"limit\":0.0,\"ratio\":0.0}]");
}

}  // namespace
}  // namespace foreshard::bench
