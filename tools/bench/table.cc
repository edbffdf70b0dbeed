#include "tools/bench/table.h"

#include <cmath>

#include "absl/strings/str_format.h"
#include "tools/json_number.h"

namespace foreshard::bench {
namespace {

// Four digits that count, without an exponent where a person reads it.
std::string Figure(double value) {
  if (!std::isfinite(value)) return "-";
  if (value != 0 && std::fabs(value) < 0.001) return absl::StrFormat("%.3g", value);
  if (std::fabs(value) >= 1000) return absl::StrFormat("%.0f", value);
  const int digits = std::fabs(value) >= 100 ? 1 : std::fabs(value) >= 10 ? 2 : 3;
  return absl::StrFormat("%.*f", digits, value);
}

}  // namespace

std::string TableHeader() {
  return absl::StrFormat("%-44s %12s %-11s %12s %7s\n", "name", "value", "unit", "limit", "ratio");
}

std::string TableLine(const BenchResult& result) {
  return absl::StrFormat("%-44s %12s %-11s %12s %7s\n", result.name, Figure(result.value),
                         result.unit, Figure(result.limit),
                         std::isfinite(result.ratio) ? absl::StrFormat("%.2f", result.ratio) : "-");
}

nlohmann::ordered_json ToJson(const std::vector<BenchResult>& results) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const BenchResult& result : results) {
    list.push_back({{"name", result.name},
                    {"value", Number(result.value)},
                    {"unit", result.unit},
                    {"limit", Number(result.limit)},
                    {"ratio", Number(result.ratio)}});
  }
  return list;
}

}  // namespace foreshard::bench
