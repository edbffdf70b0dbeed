#include "server/update_rules/registry.h"

namespace foreshard {
namespace {

struct Entry {
  std::string_view name;
  RuleMaker make;
};

constexpr Entry kRules[] = {
    {"asgd", MakeAsgd},
    {"nag_asgd", MakeNagAsgd},
    {"multi_asgd", MakeMultiAsgd},
    {"dana_zero", MakeDanaZero},
    {"dana_slim", MakeDanaSlim},
    {"lwp", MakeLwp},
    {"staleness_aware", MakeStalenessAware},
    {"dc_asgd", MakeDcAsgd},
    {"dana_dc", MakeDanaDc},
    {"gap_aware", MakeGapAware},
    {"dana_ga", MakeDanaGa},
    {"adam", MakeAdam},
    {"smega2", MakeSmega2},
    {"ormo_da", MakeOrmoDa},
    {"yellow_fin", MakeYellowFin},
    {"dana_rate_aware", MakeDanaRateAware},
    {"easgd", MakeEasgd},
    {"eamsgd", MakeEasgd},
    {"ssgd", MakeSsgd},
    {"apmsqueeze", MakeApmSqueeze},
    {kStatisticsRule, MakeStatistics},
};

}  // namespace

std::vector<std::string_view> RuleNames() {
  std::vector<std::string_view> names;
  for (const Entry& entry : kRules) names.push_back(entry.name);
  return names;
}

std::unique_ptr<UpdateRule> MakeUpdateRule(const RuleSettings& settings, uint64_t elements,
                                           Loops loops) {
  for (const Entry& entry : kRules) {
    if (entry.name == settings.rule) return entry.make(settings, elements, loops);
  }
  return nullptr;
}

std::unique_ptr<UpdateRule> MakeUpdateRule(const RuleSettings& settings, uint64_t elements) {
  return MakeUpdateRule(settings, elements, Loops::kFused);
}

}  // namespace foreshard
