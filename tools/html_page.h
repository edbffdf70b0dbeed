// The frame of a report: one page, no script, nothing from the network, light and dark.
//
//   std::string html = BeginPage("quick");
//   html += Figure("Loss", LineChart(chart)) + EndPage();
#pragma once

#include <string>

namespace foreshard {

// Up to and with the page's heading of level 1.
std::string BeginPage(const std::string& title);
std::string EndPage();

// A chart with a caption.
std::string Figure(const std::string& caption, const std::string& svg);

}  // namespace foreshard
