// DotChart of svg_chart.h.
#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/svg_chart.h"

namespace foreshard {
namespace {

constexpr double kWidth = 640, kTop = 26, kRow = 24, kBottom = 46;
constexpr double kLetter = 7.2, kMaxNames = 230;

double NamesWidth(const DotPlot& plot) {
  size_t longest = 4;
  for (const DotRow& row : plot.rows) longest = std::max(longest, row.name.size());
  return std::min(kMaxNames, 16 + kLetter * static_cast<double>(longest));
}

double NotesWidth(const DotPlot& plot) {
  size_t longest = 0;
  for (const DotRow& row : plot.rows) longest = std::max(longest, row.note.size());
  return longest == 0 ? 16 : 18 + kLetter * static_cast<double>(longest);
}

}  // namespace

std::string DotChart(const DotPlot& plot) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  const auto include = [&](double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  };
  for (const DotRow& row : plot.rows) {
    for (double value : row.values) include(value);
  }
  const bool empty = low > high;
  if (empty) low = 0, high = 1;
  if (plot.reference.has_value()) include(*plot.reference);
  if (plot.x_min.has_value()) low = std::min(*plot.x_min, high);
  if (!(high > low)) high = low + std::max(1e-6, 0.01 * std::fabs(low) + 1e-3);
  const std::vector<double> first_ticks = AxisTicks(low, high, 5);
  const double step = first_ticks[1] - first_ticks[0];
  low = std::floor(low / step + 1e-9) * step;
  high = std::ceil(high / step - 1e-9) * step;

  const double left = NamesWidth(plot), right = kWidth - NotesWidth(plot);
  const double bottom = kTop + kRow * std::max<size_t>(plot.rows.size(), 2);
  const auto X = [&](double value) { return left + (value - low) / (high - low) * (right - left); };

  std::string svg = absl::StrFormat(
      "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-labelledby=\"%s-title %s-description\">\n"
      "<title id=\"%s-title\">%s</title>\n<desc id=\"%s-description\">%s</desc>\n",
      kWidth, bottom + kBottom, plot.id, plot.id, plot.id, EscapeHtml(plot.title), plot.id,
      EscapeHtml(plot.description));
  if (empty) {
    return absl::StrCat(svg, absl::StrFormat("<text class=\"label\" text-anchor=\"middle\" x=\"%.1f\" "
                                             "y=\"%.1f\">no data</text>\n</svg>\n",
                                             kWidth / 2, bottom / 2));
  }
  for (double tick : AxisTicks(low, high, 5)) {
    absl::StrAppendFormat(&svg,
                          "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
                          "<text class=\"tick\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
                          X(tick), X(tick), kTop, bottom, X(tick), bottom + 18, TickLabel(tick));
  }
  absl::StrAppendFormat(&svg,
                        "<line class=\"axis\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n"
                        "<text class=\"label\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
                        left, right, bottom, bottom, (left + right) / 2, bottom + kBottom - 8,
                        EscapeHtml(plot.x_label));
  if (plot.reference.has_value() && std::isfinite(*plot.reference)) {
    const double x = X(*plot.reference);
    absl::StrAppendFormat(&svg,
                          "<line class=\"reference\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
                          "<text class=\"tick\" text-anchor=\"%s\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
                          x, x, kTop - 6, bottom, x > (left + right) / 2 ? "end" : "start", x,
                          kTop - 12, EscapeHtml(plot.reference_label));
  }
  for (size_t r = 0; r < plot.rows.size(); ++r) {
    const DotRow& row = plot.rows[r];
    const double y = kTop + kRow * (r + 0.5);
    const int colour = (row.look >= 0 ? row.look : static_cast<int>(r)) % kSeriesColours;
    absl::StrAppendFormat(&svg,
                          "<text class=\"name\" text-anchor=\"end\" x=\"%.1f\" y=\"%.1f\">%s</text>"
                          "<text class=\"tick\" text-anchor=\"end\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
                          left - 10, y + 4, EscapeHtml(row.name), kWidth - 4, y + 4,
                          EscapeHtml(row.note));
    double row_low = high, row_high = low, sum = 0;
    size_t count = 0;
    for (double value : row.values) {
      if (!std::isfinite(value)) continue;
      row_low = std::min(row_low, std::max(value, low));
      row_high = std::max(row_high, std::max(value, low));
      sum += value;
      ++count;
    }
    if (count == 0) continue;
    absl::StrAppendFormat(&svg,
                          "<line class=\"range s%d\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n",
                          colour, X(row_low), X(row_high), y, y);
    for (double value : row.values) {
      if (!std::isfinite(value)) continue;
      const bool inside = value >= low;
      absl::StrAppendFormat(&svg,
                            "<circle class=\"%s s%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"%s\">"
                            "<title>%s: %.6g</title></circle>\n",
                            inside ? "dot" : "outside", colour, X(std::max(value, low)), y,
                            inside ? "3.5" : "4", EscapeHtml(row.name), value);
    }
    const double mean = sum / static_cast<double>(count);
    if (mean >= low && count > 1) {
      absl::StrAppendFormat(&svg,
                            "<line class=\"mean s%d\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n",
                            colour, X(mean), X(mean), y - 8, y + 8);
    }
  }
  return absl::StrCat(svg, "</svg>\n");
}

}  // namespace foreshard
