// ChartStyle and StandaloneSvg of svg_chart.h.
#include "absl/strings/str_cat.h"
#include "tools/svg_chart.h"

namespace foreshard {
namespace {

constexpr const char* kLight[kSeriesColours] = {"#0b62c4", "#b4470d", "#1a7f37", "#8250df",
                                                "#c2185b", "#8f6000", "#00737d", "#4d5b6a",
                                                "#d1242f", "#557600", "#3949ab", "#7b4b2a"};
constexpr const char* kDark[kSeriesColours] = {"#6cb6ff", "#f0985a", "#6bd387", "#c297ff",
                                               "#ff80b0", "#e3b341", "#4dd0e1", "#b6c2cf",
                                               "#ff7b72", "#b5d45c", "#93a4ff", "#d2a679"};

std::string Colours(const char* const* colours) {
  std::string css;
  for (int i = 0; i < kSeriesColours; ++i) absl::StrAppend(&css, " --series-", i, ": ", colours[i], ";");
  return css;
}

}  // namespace

std::string ChartStyle() {
  std::string css = absl::StrCat(
      ":root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1f24; --soft: #57606a;\n"
      "  --grid: #d8dee4; --card: #f6f8fa;",
      Colours(kLight),
      " }\n@media (prefers-color-scheme: dark) { :root { --paper: #0d1117; --ink: #e6edf3; "
      "--soft: #9da7b3;\n  --grid: #30363d; --card: #161b22;",
      Colours(kDark), R"( } }
svg text { fill: var(--ink); font: 13px system-ui, sans-serif; } svg .tick { fill: var(--soft); }
svg .grid { stroke: var(--grid); } svg .axis { stroke: var(--soft); }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .band { stroke: none; opacity: .13; } svg .bars { fill: none; stroke-width: 1.5; }
svg .reference { stroke: var(--ink); stroke-width: 1.2; stroke-dasharray: 6 4; }
svg .mean { stroke-width: 3; } svg .range { stroke-width: 1.5; opacity: .7; }
svg .outside { fill: var(--paper); stroke-width: 1.5; }
)");
  for (int i = 0; i < kSeriesColours; ++i) {
    absl::StrAppend(&css, "svg .line.s", i, ", svg .bars.s", i, ", svg .mean.s", i, ", svg .range.s",
                    i, ", svg .outside.s", i, " { stroke: var(--series-", i, "); } svg .dot.s", i,
                    ", svg .bar.s", i, ", svg .band.s", i, " { fill: var(--series-", i, "); }\n");
  }
  return css;
}

std::string StandaloneSvg(const std::string& svg) {
  const size_t end = svg.find(">\n");
  if (end == std::string::npos) return svg;
  return absl::StrCat(svg.substr(0, end), " xmlns=\"http://www.w3.org/2000/svg\"><style>",
                      ChartStyle(), "</style>\n<rect width=\"100%\" height=\"100%\" "
                      "fill=\"var(--paper)\"/>\n", svg.substr(end + 2));
}

}  // namespace foreshard
