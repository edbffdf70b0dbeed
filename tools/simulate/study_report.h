// A study as one page that opens without a network: plots, tables, definitions.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tools/simulate/study.h"
#include "tools/simulate/study_plan.h"

namespace foreshard {

struct StudyReport {
  std::string html;
  // Its charts as files of their own: name without extension, content.
  std::vector<std::pair<std::string, std::string>> charts;
};

// Of what is done; the page says where that is not all.
StudyReport MakeStudyReport(const Study& study, const RunResults& results,
                            const std::set<std::string>& failed);

}  // namespace foreshard
