// Benchmark results as a table and as JSON.
//
//   std::fputs(TableHeader().c_str(), stdout);
//   for (const BenchResult& result : results) std::fputs(TableLine(result).c_str(), stdout);
//   nlohmann::ordered_json json = ToJson(results);   // [{"name", "value", "unit", "limit", "ratio"}]
#pragma once

#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tools/bench/bench.h"

namespace foreshard::bench {

// Lines end with a line feed; columns have fixed widths, so that lines can be printed
// as they come.
std::string TableHeader();
std::string TableLine(const BenchResult& result);

// Numbers that are not finite become null.
nlohmann::ordered_json ToJson(const std::vector<BenchResult>& results);

}  // namespace foreshard::bench
