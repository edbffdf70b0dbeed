// Line and bar charts as inline SVG, for the reports: no script, no network, colours
// from the page's CSS variables (--series-0.., --ink, --grid), so that they follow a
// light or dark page. Every chart has a title and a description for screen readers.
//
//   std::string svg = LineChart({.id = "loss", .title = "Loss", .x_label = "epoch",
//                                .y_label = "mean loss", .series = {{"training", points}}});
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace foreshard {

// Text safe inside HTML and SVG, in elements and in quoted attributes.
std::string EscapeHtml(std::string_view text);

// Colours there are; later series take them again with another dash pattern.
inline constexpr int kSeriesColours = 12;

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x rising; NaN in y breaks the line
  bool markers = false;  // a dot at each point
  // Low and high at each point, as over seeds; empty: not drawn.
  std::vector<std::pair<double, double>> spread;
  // Colour and dash pattern, so that a thing looks the same in all charts of a page;
  // below 0: its place among the chart's series.
  int look = -1;
};

enum class SpreadStyle { kBand, kBars };

struct Chart {
  std::string id;     // unique on the page
  std::string title;
  std::string description;  // one sentence: what is seen
  std::string x_label;
  std::string y_label;
  std::vector<Series> series;
  bool x_from_zero = false;
  bool y_from_zero = false;
  // Upper bound of the y axis; 0: from the data.
  double y_max = 0;
  // Lower bound of the y axis; what is below is not drawn. Absent: from the data.
  std::optional<double> y_min;
  // What is not above 0 has no place on such an axis, and breaks the line.
  bool x_log = false;
  // Where the x axis is labelled; empty: at round values.
  std::vector<double> x_ticks;
  SpreadStyle spread = SpreadStyle::kBand;
  // A level to compare with, as a dashed line across; NaN: none.
  std::optional<double> reference;
  std::string reference_label;
};

// Series differ in colour and dash pattern and are named in a legend of as many rows as
// it takes.
std::string LineChart(const Chart& chart);

// The first series' points as bars around their x (whole numbers, consecutive).
std::string BarChart(const Chart& chart);

// Values of several things, a row each: a dot a value, a line over their range, a stroke
// at their mean.
struct DotRow {
  std::string name;
  std::vector<double> values;  // not finite ones are left out
  std::string note;            // at the right end
  int look = -1;
};

struct DotPlot {
  std::string id, title, description, x_label;
  std::vector<DotRow> rows;  // from the top
  // What is below lies at the edge, as an open dot. Absent: from the data.
  std::optional<double> x_min;
  std::optional<double> reference;
  std::string reference_label;
};

std::string DotChart(const DotPlot& plot);

// Round values at or inside [low, high], about `wanted` of them, rising; at least two.
std::vector<double> AxisTicks(double low, double high, int wanted);
// "10k", "0.05".
std::string TickLabel(double value);

// Colours (light and dark) and the strokes of charts, as CSS. Once a page.
std::string ChartStyle();
// A chart as a file of its own, with its style and background inside.
std::string StandaloneSvg(const std::string& svg);

}  // namespace foreshard
