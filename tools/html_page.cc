#include "tools/html_page.h"

#include "absl/strings/str_cat.h"
#include "tools/svg_chart.h"

namespace foreshard {
namespace {

constexpr char kPageStyle[] = R"(
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1080px; padding: 24px 20px 48px; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; }
.lead { color: var(--soft); margin: 0 0 1.2rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: 16px; }
figure { margin: 0; padding: 12px; background: var(--card); border: 1px solid var(--grid); border-radius: 8px; }
figcaption { font-weight: 600; margin-bottom: 4px; }
svg { display: block; width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--grid); vertical-align: top; }
th { font-weight: 600; } td.number, th.number { text-align: right; } td.number { white-space: nowrap; }
table.dense { font-size: .88rem; } .dense th, .dense td { padding: 4px 9px 4px 0; } .dense th[scope=row] { white-space: nowrap; }
pre { overflow-x: auto; background: var(--card); border: 1px solid var(--grid); border-radius: 8px; padding: 12px; }
summary { cursor: pointer; font-weight: 600; margin-top: 2rem; }
dt { font-weight: 600; } dd { margin: 0 0 .6rem; max-width: 70ch; } .note { color: var(--soft); }
)";

}  // namespace

std::string BeginPage(const std::string& title) {
  return absl::StrCat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
      EscapeHtml(title), " - Foreshard</title>\n<style>\n", ChartStyle(), kPageStyle,
      "</style>\n</head>\n<body>\n<main>\n<h1>", EscapeHtml(title), "</h1>\n");
}

std::string EndPage() { return "</main>\n</body>\n</html>\n"; }

std::string Figure(const std::string& caption, const std::string& svg) {
  return absl::StrCat("<figure><figcaption>", EscapeHtml(caption), "</figcaption>\n", svg,
                      "</figure>\n");
}

}  // namespace foreshard
