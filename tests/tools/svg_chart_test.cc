#include "tools/svg_chart.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pointwise;

TEST(AxisTicks, AreRoundAndInside) {
  EXPECT_THAT(AxisTicks(0, 10, 5), Pointwise(::testing::DoubleEq(), {0., 2., 4., 6., 8., 10.}));
  EXPECT_THAT(AxisTicks(82.3, 91.2, 5), Pointwise(::testing::DoubleEq(), {84., 86., 88., 90.}));
  for (const auto& [low, high] : std::vector<std::pair<double, double>>{
           {0, 1e-9}, {-3, 1e12}, {5, 5}, {0.1, 0.10001}, {-1, 1}}) {
    const std::vector<double> ticks = AxisTicks(low, high, 5);
    ASSERT_GE(ticks.size(), 2u);
    EXPECT_LE(ticks.size(), 14u);
    for (size_t i = 1; i < ticks.size(); ++i) EXPECT_GT(ticks[i], ticks[i - 1]);
  }
}

TEST(EscapeHtml, LeavesNothingThatMarksUp) {
  EXPECT_EQ(EscapeHtml("a<b> & \"c\" 'd'"), "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
}

TEST(LineChart, DrawsEverySeriesAndBreaksAtNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string svg =
      LineChart({.id = "c",
                 .title = "T",
                 .description = "D",
                 .x_label = "x",
                 .y_label = "y",
                 .series = {{"one", {{0, 0}, {1, 1}, {2, nan}, {3, 1}, {4, 0}}},
                            {"two", {{0, 1}, {4, 1}}, true}}});
  EXPECT_THAT(svg, HasSubstr("class=\"line s0\" stroke-dasharray=\"\" d=\"M64.0 274.0 L"));
  EXPECT_THAT(svg, HasSubstr(" M"));  // the line goes on after the gap
  EXPECT_THAT(svg, HasSubstr("class=\"line s1\" stroke-dasharray=\"7 4\""));
  EXPECT_THAT(svg, HasSubstr("<circle class=\"dot s1\""));
  EXPECT_THAT(svg, HasSubstr("role=\"img\" aria-labelledby=\"c-title c-description\""));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(LineChart, FlatAndSingleLinesHaveAFrame) {
  for (const std::vector<std::pair<double, double>>& points :
       {std::vector<std::pair<double, double>>{{1, 5}}, {{1, 0}, {2, 0}}, {{3, 7}, {4, 7}}}) {
    const std::string svg = LineChart({.id = "c", .series = {{"s", points}}});
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_THAT(svg, Not(HasSubstr("inf")));
    EXPECT_THAT(svg, HasSubstr("class=\"line s0\""));
  }
}

TEST(LineChart, WithoutDataItSaysSo) {
  EXPECT_THAT(LineChart({.id = "c"}), HasSubstr("no data"));
}

TEST(BarChart, HasOneBarAPointFromTheAxisUp) {
  const std::string svg =
      BarChart({.id = "b", .series = {{"s", {{0, 25}, {1, 75}}}}, .y_from_zero = true});
  EXPECT_THAT(svg, HasSubstr("<title>0: 25</title>"));
  EXPECT_THAT(svg, HasSubstr("<title>1: 75</title>"));
}

}  // namespace
}  // namespace foreshard
