#include "tools/svg_chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace foreshard {
namespace {

constexpr double kWidth = 640, kPlotHeight = 320;
constexpr double kLeft = 64, kRight = 16, kTop = 34, kBottom = 46;
constexpr double kLegendRow = 18, kLetter = 7.5;
constexpr const char* kDashes[] = {"", "7 4", "2 3"};
constexpr double kBarDodge = 3;  // between the error bars of neighbours at one x
constexpr double kBarRoom = 0.04;  // at either end of the axis, of its length

double Log(double value) { return value > 0 ? std::log10(value) : std::nan(""); }

// Not beyond what the difference of two is a number of.
bool IsDrawn(double value) { return std::fabs(value) <= 1e300; }

// The data's window (of logarithms, on such an axis) and where it lies on the drawing.
struct Frame {
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;
  bool x_log = false;
  double top = kTop, height = kPlotHeight;

  double bottom() const { return height - kBottom; }
  double right() const { return kWidth - kRight; }
  double X(double x) const {
    const double at = x_log ? Log(x) : x;
    return kLeft + (at - x_low) / (x_high - x_low) * (kWidth - kLeft - kRight);
  }
  double Y(double y) const {
    return bottom() - (y - y_low) / (y_high - y_low) * (bottom() - top);
  }
  bool Shows(double x, double y) const { return IsDrawn(y) && IsDrawn(x_log ? Log(x) : x); }
};

// Colour and dash pattern of a series.
struct Look {
  int colour = 0;
  const char* dash = "";
};

Look LookOf(const Chart& chart, size_t index) {
  const int look = chart.series[index].look;
  const int place = look >= 0 ? look : static_cast<int>(index);
  return {place % kSeriesColours, kDashes[(place + place / kSeriesColours) % std::size(kDashes)]};
}

// Where each series' name stands in the legend.
std::vector<std::pair<double, double>> LegendPlaces(const Chart& chart) {
  std::vector<std::pair<double, double>> places;
  double x = kLeft, y = 16;
  for (const Series& series : chart.series) {
    const double width = 30 + kLetter * static_cast<double>(series.name.size()) + 24;
    if (x > kLeft && x + width - 24 > kWidth - kRight) {
      x = kLeft;
      y += kLegendRow;
    }
    places.emplace_back(x, y);
    x += width;
  }
  return places;
}

Frame FrameOf(const Chart& chart, double x_pad) {
  Frame frame;
  frame.x_log = chart.x_log;
  frame.x_low = frame.y_low = std::numeric_limits<double>::infinity();
  frame.x_high = frame.y_high = -frame.x_low;
  const auto include = [&](double y) {
    if (!IsDrawn(y)) return;
    frame.y_low = std::min(frame.y_low, y);
    frame.y_high = std::max(frame.y_high, y);
  };
  for (const Series& series : chart.series) {
    for (size_t i = 0; i < series.points.size(); ++i) {
      const auto& [x, y] = series.points[i];
      if (!frame.Shows(x, y)) continue;
      const double at = chart.x_log ? Log(x) : x;
      frame.x_low = std::min(frame.x_low, at - x_pad);
      frame.x_high = std::max(frame.x_high, at + x_pad);
      include(y);
      if (i >= series.spread.size()) continue;
      include(series.spread[i].first);
      include(series.spread[i].second);
    }
  }
  if (frame.x_low > frame.x_high) return {};
  if (chart.reference.has_value()) include(*chart.reference);
  if (chart.x_from_zero && !chart.x_log) frame.x_low = std::min(0.0, frame.x_low);
  if (chart.y_from_zero) frame.y_low = std::min(0.0, frame.y_low);
  if (chart.y_min.has_value()) frame.y_low = *chart.y_min;
  if (chart.y_max > 0) frame.y_high = chart.y_max;
  if (frame.x_high <= frame.x_low) frame.x_high = frame.x_low + 1;
  if (chart.spread == SpreadStyle::kBars) {  // room for those beside their x
    const double room = kBarRoom * (frame.x_high - frame.x_low);
    frame.x_low -= room;
    frame.x_high += room;
  }
  if (frame.y_high <= frame.y_low) {
    frame.y_high = frame.y_low + std::max(1e-6, 0.1 * std::fabs(frame.y_low) + 1e-3);
  }
  // The axis ends at a round value beyond the data.
  const std::vector<double> ticks = AxisTicks(frame.y_low, frame.y_high, 5);
  const double step = ticks[1] - ticks[0];
  if (chart.y_max <= 0) frame.y_high = std::ceil(frame.y_high / step - 1e-9) * step;
  if (!chart.y_from_zero) frame.y_low = std::floor(frame.y_low / step + 1e-9) * step;
  return frame;
}

// Where an axis of powers is labelled: at powers of ten, and between where they are few.
std::vector<double> LogTicks(const Frame& frame) {
  const double decades = frame.x_high - frame.x_low;
  std::vector<double> ticks;
  for (double power = std::floor(frame.x_low); power <= frame.x_high + 1e-9; ++power) {
    for (double factor : {1.0, 2.0, 5.0}) {
      if (factor > 1 && decades > 2) continue;
      const double tick = factor * std::pow(10.0, power);
      if (Log(tick) > frame.x_low - 1e-9 && Log(tick) < frame.x_high + 1e-9) ticks.push_back(tick);
    }
  }
  return ticks;
}

std::vector<double> XTicks(const Chart& chart, const Frame& frame) {
  if (!chart.x_ticks.empty()) return chart.x_ticks;
  return chart.x_log ? LogTicks(frame) : AxisTicks(frame.x_low, frame.x_high, 8);
}

bool Empty(const Chart& chart) {
  const Frame frame = {.x_log = chart.x_log};
  for (const Series& series : chart.series) {
    for (const auto& [x, y] : series.points) {
      if (frame.Shows(x, y)) return false;
    }
  }
  return true;
}

void Begin(const Chart& chart, double height, std::string* svg) {
  absl::StrAppendFormat(svg,
                        "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" "
                        "aria-labelledby=\"%s-title %s-description\">\n",
                        kWidth, height, chart.id, chart.id);
  absl::StrAppendFormat(svg, "<title id=\"%s-title\">%s</title>\n", chart.id,
                        EscapeHtml(chart.title));
  absl::StrAppendFormat(svg, "<desc id=\"%s-description\">%s</desc>\n", chart.id,
                        EscapeHtml(chart.description));
}

void Axes(const Chart& chart, const Frame& frame, const std::vector<double>& x_ticks,
          std::string* svg) {
  const double bottom = frame.bottom(), right = frame.right();
  for (double tick : AxisTicks(frame.y_low, frame.y_high, 5)) {
    absl::StrAppendFormat(svg, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>",
                          kLeft, right, frame.Y(tick), frame.Y(tick));
    absl::StrAppendFormat(svg, "<text class=\"tick\" text-anchor=\"end\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
                          kLeft - 8, frame.Y(tick) + 4, TickLabel(tick));
  }
  for (double tick : x_ticks) {
    absl::StrAppendFormat(svg, "<text class=\"tick\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
                          frame.X(tick), bottom + 18, TickLabel(tick));
  }
  absl::StrAppendFormat(svg, "<line class=\"axis\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n",
                        kLeft, right, bottom, bottom);
  absl::StrAppendFormat(svg, "<text class=\"label\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
                        (kLeft + right) / 2, frame.height - 8, EscapeHtml(chart.x_label));
  absl::StrAppendFormat(svg,
                        "<text class=\"label\" text-anchor=\"middle\" "
                        "transform=\"translate(14 %.1f) rotate(-90)\">%s</text>\n",
                        (frame.top + bottom) / 2, EscapeHtml(chart.y_label));
}

void Reference(const Chart& chart, const Frame& frame, std::string* svg) {
  if (!chart.reference.has_value() || !IsDrawn(*chart.reference)) return;
  const double y = frame.Y(*chart.reference);
  absl::StrAppendFormat(svg,
                        "<line class=\"reference\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
                        "<text class=\"tick\" text-anchor=\"end\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
                        kLeft, frame.right(), y, y, frame.right(), y - 5,
                        EscapeHtml(chart.reference_label));
}

// What lies between low and high, or a bar at each point.
std::string SpreadOf(const Chart& chart, const Frame& frame, const Series& series, int colour,
                     double dodge) {
  std::string svg;
  std::string there, back;
  for (size_t i = 0; i < std::min(series.points.size(), series.spread.size()); ++i) {
    const double x = series.points[i].first;
    const auto& [low, high] = series.spread[i];
    if (!frame.Shows(x, low) || !frame.Shows(x, high)) continue;
    if (chart.spread == SpreadStyle::kBars) {
      const double at = frame.X(x) + dodge;
      absl::StrAppendFormat(&svg,
                            "<path class=\"bars s%d\" d=\"M%.1f %.1f h6 m-3 0 V%.1f m-3 0 h6\"/>\n",
                            colour, at - 3, frame.Y(low), frame.Y(high));
      continue;
    }
    absl::StrAppendFormat(&there, "%s%.1f %.1f", there.empty() ? "M" : " L", frame.X(x), frame.Y(high));
    back = absl::StrFormat(" L%.1f %.1f", frame.X(x), frame.Y(low)) + back;
  }
  if (!there.empty()) {
    absl::StrAppendFormat(&svg, "<path class=\"band s%d\" d=\"%s%s Z\"/>\n", colour, there, back);
  }
  return svg;
}

std::string NoData(const Chart& chart) {
  std::string svg;
  Begin(chart, kPlotHeight, &svg);
  absl::StrAppendFormat(&svg, "<text class=\"label\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">no data</text>\n</svg>\n",
                        kWidth / 2, kPlotHeight / 2);
  return svg;
}

}  // namespace

std::string EscapeHtml(std::string_view text) {
  std::string escaped;
  for (char c : text) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      case '\'': escaped += "&#39;"; break;
      default: escaped += c;
    }
  }
  return escaped;
}

std::string TickLabel(double value) {
  if (value == 0) return "0";  // never "-0"
  if (std::fabs(value) >= 1e6) return absl::StrFormat("%.3gM", value / 1e6);
  if (std::fabs(value) >= 1e4) return absl::StrFormat("%.4gk", value / 1e3);
  return absl::StrFormat("%.6g", value);
}

std::vector<double> AxisTicks(double low, double high, int wanted) {
  constexpr int kMostHalvings = 8;
  constexpr double kMostSteps = 4e15;  // from zero; beyond 2^52 there are no halves between whole numbers
  if (!(high > low)) high = low + std::max(1.0, 1e-3 * std::fabs(low));
  const double rough = (high - low) / std::max(1, wanted);
  const double magnitude = std::pow(10.0, std::floor(std::log10(rough)));
  double step = magnitude;
  for (double factor : {1.0, 2.0, 2.5, 5.0, 10.0}) {
    step = factor * magnitude;
    if (step >= rough * 0.999) break;
  }
  std::vector<double> ticks;
  for (int halvings = 0; halvings < kMostHalvings; ++halvings, step /= 2) {
    const double first = std::ceil(low / step - 1e-9), last = std::floor(high / step + 1e-9);
    if (!(std::fabs(first) < kMostSteps && std::fabs(last) < kMostSteps)) break;
    ticks.clear();
    for (double k = first; k <= last; ++k) ticks.push_back(k * step);
    if (ticks.size() >= 2) return ticks;
  }
  return {low, high};
}

std::string LineChart(const Chart& chart) {
  if (Empty(chart)) return NoData(chart);
  const std::vector<std::pair<double, double>> places = LegendPlaces(chart);
  Frame frame = FrameOf(chart, 0);
  const double legend = places.back().second - places.front().second;
  frame.top += legend;
  frame.height += legend;
  std::string svg;
  Begin(chart, frame.height, &svg);
  Axes(chart, frame, XTicks(chart, frame), &svg);
  Reference(chart, frame, &svg);
  // Where the axes are bounded, lines may go beyond; dots at the edge stay whole.
  const bool clipped = chart.y_min.has_value() || chart.y_max > 0;
  if (clipped) {
    absl::StrAppendFormat(&svg,
                          "<clipPath id=\"%s-clip\"><rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
                          "height=\"%.1f\"/></clipPath>\n<g clip-path=\"url(#%s-clip)\">\n",
                          chart.id, kLeft - 8, frame.top - 6, frame.right() - kLeft + 16,
                          frame.bottom() - frame.top + 6, chart.id);
  }
  for (size_t s = 0; s < chart.series.size(); ++s) {
    const Series& series = chart.series[s];
    const Look look = LookOf(chart, s);
    const bool bars = chart.spread == SpreadStyle::kBars && !series.spread.empty();
    const double dodge = bars ? kBarDodge * (s - (chart.series.size() - 1) / 2.0) : 0;
    svg += SpreadOf(chart, frame, series, look.colour, dodge);
    std::string path;
    bool pen_down = false;
    for (const auto& [x, y] : series.points) {
      if (!frame.Shows(x, y)) {
        pen_down = false;
        continue;
      }
      absl::StrAppendFormat(&path, "%s%.1f %.1f", pen_down ? " L" : " M", frame.X(x) + dodge,
                            frame.Y(y));
      pen_down = true;
    }
    absl::StrAppendFormat(&svg, "<path class=\"line s%d\" stroke-dasharray=\"%s\" d=\"%s\"/>\n",
                          look.colour, look.dash, path.empty() ? "" : path.substr(1));
    if (!series.markers) continue;
    for (const auto& [x, y] : series.points) {
      if (!frame.Shows(x, y)) continue;
      absl::StrAppendFormat(&svg,
                            "<circle class=\"dot s%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\">"
                            "<title>%s: %.6g at %.6g</title></circle>\n",
                            look.colour, frame.X(x) + dodge, frame.Y(y), EscapeHtml(series.name), y,
                            x);
    }
  }
  if (clipped) svg += "</g>\n";
  for (size_t s = 0; s < chart.series.size(); ++s) {
    const auto& [x, y] = places[s];
    const Look look = LookOf(chart, s);
    absl::StrAppendFormat(&svg,
                          "<line class=\"line s%d\" stroke-dasharray=\"%s\" x1=\"%.1f\" x2=\"%.1f\" "
                          "y1=\"%.0f\" y2=\"%.0f\"/><text class=\"legend\" x=\"%.1f\" y=\"%.0f\">%s</text>\n",
                          look.colour, look.dash, x, x + 24, y, y, x + 30, y + 4,
                          EscapeHtml(chart.series[s].name));
  }
  return absl::StrCat(svg, "</svg>\n");
}

std::string BarChart(const Chart& chart) {
  if (Empty(chart)) return NoData(chart);
  const Frame frame = FrameOf(chart, 0.6);
  std::string svg;
  Begin(chart, kPlotHeight, &svg);
  const auto& points = chart.series.front().points;
  std::vector<double> x_ticks;
  const size_t every = (points.size() + 15) / 16;
  for (size_t i = 0; i < points.size(); i += every) x_ticks.push_back(points[i].first);
  Axes(chart, frame, x_ticks, &svg);
  for (const auto& [x, y] : points) {
    if (!frame.Shows(x, y)) continue;
    const double top = frame.Y(y);
    absl::StrAppendFormat(&svg,
                          "<rect class=\"bar s0\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
                          "height=\"%.1f\"><title>%.6g: %.6g</title></rect>\n",
                          frame.X(x - 0.4), top, frame.X(x + 0.4) - frame.X(x - 0.4),
                          std::max(0.0, frame.Y(frame.y_low) - top), x, y);
  }
  return absl::StrCat(svg, "</svg>\n");
}

}  // namespace foreshard
