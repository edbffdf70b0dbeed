// Line and bar charts as inline SVG, for the report: no script, no network, colours
// from the page's CSS variables (--series-0.., --ink, --grid), so that they follow a
// light or dark page. Every chart has a title and a description for screen readers.
//
//   std::string svg = LineChart({.id = "loss", .title = "Loss", .x_label = "epoch",
//                                .y_label = "mean loss", .series = {{"training", points}}});
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace foreshard {

// Text safe inside HTML and SVG, in elements and in quoted attributes.
std::string EscapeHtml(std::string_view text);

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x rising; NaN in y breaks the line
  bool markers = false;  // a dot at each point
};

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
};

// Series differ in colour and dash pattern and are named in a legend.
std::string LineChart(const Chart& chart);

// The first series' points as bars around their x (whole numbers, consecutive).
std::string BarChart(const Chart& chart);

// Round values at or inside [low, high], about `wanted` of them, rising; at least two.
std::vector<double> AxisTicks(double low, double high, int wanted);

}  // namespace foreshard
