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

TEST(AxisTicks, EndWhereNumbersAreTooLargeOrTooNear) {
  for (const auto& [low, high] : std::vector<std::pair<double, double>>{
           {-1e308, 1e308}, {1e17, 1e17 + 16}, {1e17, 1e17}, {0, 5e-324}, {-1e300, 1e300}, {1, 1 + 1e-15}}) {
    const std::vector<double> ticks = AxisTicks(low, high, 5);
    ASSERT_GE(ticks.size(), 2u) << low;
    EXPECT_LE(ticks.size(), 14u) << low;
    for (size_t i = 1; i < ticks.size(); ++i) EXPECT_GT(ticks[i], ticks[i - 1]) << low;
  }
}

TEST(LineChart, LeavesOutWhatNoDrawingHolds) {
  Chart chart;
  chart.series.push_back({.name = "a", .points = {{0, 1}, {1, 1e308}, {2, -1e308}, {3, 2}}});
  const std::string svg = LineChart(chart);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  EXPECT_EQ(LineChart({.series = {{.points = {{0, 1e308}, {1, -1e308}}}}}).find("no data") != std::string::npos, true);
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

TEST(LineChart, SpreadsAreBandsOrBars) {
  Chart chart = {.id = "c",
                 .series = {{.name = "one",
                             .points = {{0, 1}, {1, 2}},
                             .spread = {{0.5, 1.5}, {1.5, 4}}},
                            {.name = "two", .points = {{0, 1}, {1, 2}}}}};
  const std::string bands = LineChart(chart);
  EXPECT_THAT(bands, HasSubstr("class=\"band s0\" d=\"M64.0"));
  EXPECT_THAT(bands, Not(HasSubstr("band s1")));
  EXPECT_THAT(bands, HasSubstr(">4</text>"));  // the axis reaches over the spread
  chart.spread = SpreadStyle::kBars;
  const std::string bars = LineChart(chart);
  EXPECT_THAT(bars, HasSubstr("class=\"bars s0\""));
  EXPECT_THAT(bars, Not(HasSubstr("class=\"band")));
}

TEST(LineChart, AnAxisOfPowersHasEqualStepsForEqualFactors) {
  const std::string svg = LineChart(
      {.id = "c", .series = {{"s", {{0, 9}, {1, 1}, {10, 2}, {100, 3}}}}, .x_log = true});
  // 64 to 624 over two decades; 0 has no place.
  EXPECT_THAT(svg, HasSubstr("d=\"M64.0 274.0 L344.0"));
  EXPECT_THAT(svg, HasSubstr("L624.0"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(LineChart({.id = "c", .series = {{"s", {{-1, 9}, {0, 1}}}}, .x_log = true}),
              HasSubstr("no data"));
}

TEST(LineChart, ALongLegendHasRowsAndMovesTheChartDown) {
  Chart chart = {.id = "c"};
  for (int i = 0; i < 13; ++i) {
    chart.series.push_back({"a series of some length " + std::to_string(i), {{0, i}, {1, i}}});
  }
  const std::string svg = LineChart(chart);
  EXPECT_THAT(svg, HasSubstr("viewBox=\"0 0 640 4"));
  // The thirteenth has the first one's colour and another pattern.
  EXPECT_THAT(svg, HasSubstr("class=\"line s0\" stroke-dasharray=\"\""));
  EXPECT_THAT(svg, HasSubstr("class=\"line s0\" stroke-dasharray=\"7 4\""));
}

TEST(LineChart, TicksBoundAndReferenceAreAsGiven) {
  const std::string svg = LineChart({.id = "c",
                                     .series = {{"s", {{8, 10}, {64, 90}}, true}},
                                     .y_min = 80,
                                     .x_log = true,
                                     .x_ticks = {8, 32, 64},
                                     .reference = 92,
                                     .reference_label = "N = 1 & more"});
  EXPECT_THAT(svg, HasSubstr(">32</text>"));
  EXPECT_THAT(svg, HasSubstr(">80</text>"));
  EXPECT_THAT(svg, Not(HasSubstr(">10</text>")));
  EXPECT_THAT(svg, HasSubstr("clip-path=\"url(#c-clip)\""));
  EXPECT_THAT(svg, HasSubstr("N = 1 &amp; more"));
}

TEST(DotChart, HasADotAValueAndAStrokeAtTheMean) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string svg = DotChart({.id = "d",
                                    .rows = {{"first", {90, 91, nan}, "90.50"},
                                             {"far", {10}, "10.00"},
                                             {"none", {}}},
                                    .x_min = 85,
                                    .reference = 92,
                                    .reference_label = "goal"});
  EXPECT_THAT(svg, HasSubstr("<title>first: 90</title>"));
  EXPECT_THAT(svg, HasSubstr("<title>first: 91</title>"));
  EXPECT_THAT(svg, HasSubstr("class=\"mean s0\""));
  EXPECT_THAT(svg, HasSubstr("class=\"outside s1\""));
  EXPECT_THAT(svg, HasSubstr(">none</text>"));
  EXPECT_THAT(svg, HasSubstr("goal"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(DotChart({.id = "d", .rows = {{"none", {}}}}), HasSubstr("no data"));
}

TEST(StandaloneSvg, BringsItsStyle) {
  const std::string svg = StandaloneSvg(LineChart({.id = "c", .series = {{"s", {{0, 1}, {1, 2}}}}}));
  EXPECT_THAT(svg, ::testing::StartsWith("<svg viewBox"));
  EXPECT_THAT(svg, HasSubstr(" xmlns=\"http://www.w3.org/2000/svg\"><style>"));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(svg, ::testing::EndsWith("</svg>\n"));
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
