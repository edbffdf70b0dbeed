#include "tools/svg_chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace foreshard {
namespace {

constexpr double kWidth = 640, kHeight = 320;
constexpr double kLeft = 64, kRight = 16, kTop = 34, kBottom = 46;
constexpr const char* kDashes[] = {"", "7 4", "2 3"};

// The data's window and where it lies on the drawing.
struct Frame {
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;

  double X(double x) const {
    return kLeft + (x - x_low) / (x_high - x_low) * (kWidth - kLeft - kRight);
  }
  double Y(double y) const {
    return kHeight - kBottom - (y - y_low) / (y_high - y_low) * (kHeight - kTop - kBottom);
  }
};

std::string TickLabel(double value) {
  if (value == 0) return "0";  // never -0
  if (value == 0) return "0";  // never "-0"
  if (std::fabs(value) >= 1e6) return absl::StrFormat("%.3gM", value / 1e6);
  if (std::fabs(value) >= 1e4) return absl::StrFormat("%.4gk", value / 1e3);
  return absl::StrFormat("%.6g", value);
}

Frame FrameOf(const Chart& chart, double x_pad) {
  Frame frame;
  frame.x_low = frame.y_low = std::numeric_limits<double>::infinity();
  frame.x_high = frame.y_high = -frame.x_low;
  for (const Series& series : chart.series) {
    for (const auto& [x, y] : series.points) {
      if (!std::isfinite(x) || !std::isfinite(y)) continue;
      frame.x_low = std::min(frame.x_low, x - x_pad);
      frame.x_high = std::max(frame.x_high, x + x_pad);
      frame.y_low = std::min(frame.y_low, y);
      frame.y_high = std::max(frame.y_high, y);
    }
  }
  if (frame.x_low > frame.x_high) return {};
  if (chart.x_from_zero) frame.x_low = std::min(0.0, frame.x_low);
  if (chart.y_from_zero) frame.y_low = std::min(0.0, frame.y_low);
  if (chart.y_max > 0) frame.y_high = chart.y_max;
  if (frame.x_high <= frame.x_low) frame.x_high = frame.x_low + 1;
  if (frame.y_high <= frame.y_low) frame.y_high = frame.y_low + std::max(1e-6, 0.1 * std::fabs(frame.y_low) + 1e-3);
  // The axis ends at a round value beyond the data.
  const std::vector<double> ticks = AxisTicks(frame.y_low, frame.y_high, 5);
  const double step = ticks[1] - ticks[0];
  if (chart.y_max <= 0) frame.y_high = std::ceil(frame.y_high / step - 1e-9) * step;
  if (!chart.y_from_zero) frame.y_low = std::floor(frame.y_low / step + 1e-9) * step;
  return frame;
}

bool Empty(const Chart& chart) {
  for (const Series& series : chart.series) {
    for (const auto& [x, y] : series.points) {
      if (std::isfinite(x) && std::isfinite(y)) return false;
    }
  }
  return true;
}

void Begin(const Chart& chart, std::string* svg) {
  absl::StrAppendFormat(svg,
                        "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" "
                        "aria-labelledby=\"%s-title %s-description\">\n",
                        kWidth, kHeight, chart.id, chart.id);
  absl::StrAppendFormat(svg, "<title id=\"%s-title\">%s</title>\n", chart.id,
                        EscapeHtml(chart.title));
  absl::StrAppendFormat(svg, "<desc id=\"%s-description\">%s</desc>\n", chart.id,
                        EscapeHtml(chart.description));
}

void Axes(const Chart& chart, const Frame& frame, const std::vector<double>& x_ticks,
          std::string* svg) {
  const double bottom = kHeight - kBottom, right = kWidth - kRight;
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
                        (kLeft + right) / 2, kHeight - 8, EscapeHtml(chart.x_label));
  absl::StrAppendFormat(svg,
                        "<text class=\"label\" text-anchor=\"middle\" "
                        "transform=\"translate(14 %.1f) rotate(-90)\">%s</text>\n",
                        (kTop + bottom) / 2, EscapeHtml(chart.y_label));
}

std::string NoData(const Chart& chart) {
  std::string svg;
  Begin(chart, &svg);
  absl::StrAppendFormat(&svg, "<text class=\"label\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">no data</text>\n</svg>\n",
                        kWidth / 2, kHeight / 2);
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

std::vector<double> AxisTicks(double low, double high, int wanted) {
  if (!(high > low)) high = low + 1;
  const double rough = (high - low) / std::max(1, wanted);
  const double magnitude = std::pow(10.0, std::floor(std::log10(rough)));
  double step = magnitude;
  for (double factor : {1.0, 2.0, 2.5, 5.0, 10.0}) {
    step = factor * magnitude;
    if (step >= rough * 0.999) break;
  }
  std::vector<double> ticks;
  while (true) {
    ticks.clear();
    const double first = std::ceil(low / step - 1e-9);
    for (double k = first; k * step <= high + 1e-9 * step; ++k) ticks.push_back(k * step);
    if (ticks.size() >= 2) return ticks;
    step /= 2;
  }
}

std::string LineChart(const Chart& chart) {
  if (Empty(chart)) return NoData(chart);
  const Frame frame = FrameOf(chart, 0);
  std::string svg;
  Begin(chart, &svg);
  Axes(chart, frame, AxisTicks(frame.x_low, frame.x_high, 8), &svg);
  double legend_x = kLeft;
  for (size_t s = 0; s < chart.series.size(); ++s) {
    const Series& series = chart.series[s];
    const char* dash = kDashes[s % std::size(kDashes)];
    std::string path;
    bool pen_down = false;
    for (const auto& [x, y] : series.points) {
      if (!std::isfinite(x) || !std::isfinite(y)) {
        pen_down = false;
        continue;
      }
      absl::StrAppendFormat(&path, "%s%.1f %.1f", pen_down ? " L" : " M", frame.X(x),
                            frame.Y(std::clamp(y, frame.y_low, frame.y_high)));
      pen_down = true;
    }
    absl::StrAppendFormat(&svg, "<path class=\"line s%d\" stroke-dasharray=\"%s\" d=\"%s\"/>\n", s,
                          dash, path.empty() ? "" : path.substr(1));
    if (series.markers) {
      for (const auto& [x, y] : series.points) {
        if (!std::isfinite(x) || !std::isfinite(y)) continue;
        absl::StrAppendFormat(&svg,
                              "<circle class=\"dot s%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\">"
                              "<title>%s: %.6g at %.6g</title></circle>\n",
                              s, frame.X(x), frame.Y(std::clamp(y, frame.y_low, frame.y_high)),
                              EscapeHtml(series.name), y, x);
      }
    }
    absl::StrAppendFormat(&svg,
                          "<line class=\"line s%d\" stroke-dasharray=\"%s\" x1=\"%.1f\" x2=\"%.1f\" "
                          "y1=\"16\" y2=\"16\"/><text class=\"legend\" x=\"%.1f\" y=\"20\">%s</text>\n",
                          s, dash, legend_x, legend_x + 24, legend_x + 30,
                          EscapeHtml(series.name));
    legend_x += 30 + 7.5 * series.name.size() + 24;
  }
  return absl::StrCat(svg, "</svg>\n");
}

std::string BarChart(const Chart& chart) {
  if (Empty(chart)) return NoData(chart);
  const Frame frame = FrameOf(chart, 0.6);
  std::string svg;
  Begin(chart, &svg);
  const auto& points = chart.series.front().points;
  std::vector<double> x_ticks;
  const size_t every = (points.size() + 15) / 16;
  for (size_t i = 0; i < points.size(); i += every) x_ticks.push_back(points[i].first);
  Axes(chart, frame, x_ticks, &svg);
  for (const auto& [x, y] : points) {
    if (!std::isfinite(y)) continue;
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
