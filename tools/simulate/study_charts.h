// The charts of a study's report.
//
//   for (const StudyChart& chart : StudyCharts(study, summaries)) page += chart.svg;
#pragma once

#include <string>
#include <vector>

#include "tools/simulate/study.h"
#include "tools/simulate/study_summary.h"

namespace foreshard {

struct StudyChart {
  std::string section;  // heading of the group that it is in
  std::string caption;
  std::string name;  // fit for a file name; unique
  std::string svg;   // for a page with ChartStyle
};

// Charts of one section follow one another. Each variant has the same look in all.
std::vector<StudyChart> StudyCharts(const Study& study, const std::vector<CellSummary>& summaries);

}  // namespace foreshard
