// What each rule's file offers to registry.cc (internal to server/update_rules).
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "server/update_rules/update_rule.h"

namespace foreshard {

// Each rule has its loops twice: the fast ones, and the formula one element at a
// time, which the parity test holds them to bit for bit.
enum class Loops : uint8_t { kFused, kReference };

// Statistics segments use this rule; no JobSpec names it.
inline constexpr std::string_view kStatisticsRule = "statistics_average";

// As MakeUpdateRule, with the loops chosen.
std::unique_ptr<UpdateRule> MakeUpdateRule(const RuleSettings& settings, uint64_t elements,
                                           Loops loops);

// All names, kStatisticsRule last.
std::vector<std::string_view> RuleNames();

using RuleMaker = std::unique_ptr<UpdateRule> (*)(const RuleSettings& settings, uint64_t elements,
                                                  Loops loops);

std::unique_ptr<UpdateRule> MakeAsgd(const RuleSettings&, uint64_t elements, Loops loops);
std::unique_ptr<UpdateRule> MakeNagAsgd(const RuleSettings&, uint64_t elements, Loops loops);
std::unique_ptr<UpdateRule> MakeMultiAsgd(const RuleSettings&, uint64_t elements, Loops loops);
std::unique_ptr<UpdateRule> MakeDanaZero(const RuleSettings&, uint64_t elements, Loops loops);
std::unique_ptr<UpdateRule> MakeDanaSlim(const RuleSettings&, uint64_t elements, Loops loops);
std::unique_ptr<UpdateRule> MakeLwp(const RuleSettings&, uint64_t elements, Loops loops);
std::unique_ptr<UpdateRule> MakeStalenessAware(const RuleSettings&, uint64_t elements, Loops loops);
std::unique_ptr<UpdateRule> MakeDcAsgd(const RuleSettings&, uint64_t elements, Loops loops);
std::unique_ptr<UpdateRule> MakeDanaDc(const RuleSettings&, uint64_t elements, Loops loops);
std::unique_ptr<UpdateRule> MakeGapAware(const RuleSettings&, uint64_t elements, Loops loops);
std::unique_ptr<UpdateRule> MakeDanaGa(const RuleSettings&, uint64_t elements, Loops loops);
std::unique_ptr<UpdateRule> MakeAdam(const RuleSettings&, uint64_t elements, Loops loops);
std::unique_ptr<UpdateRule> MakeSmega2(const RuleSettings&, uint64_t elements, Loops loops);
std::unique_ptr<UpdateRule> MakeOrmoDa(const RuleSettings&, uint64_t elements, Loops loops);
std::unique_ptr<UpdateRule> MakeYellowFin(const RuleSettings&, uint64_t elements, Loops loops);
std::unique_ptr<UpdateRule> MakeDanaRateAware(const RuleSettings&, uint64_t elements,
                                              Loops loops);
std::unique_ptr<UpdateRule> MakeEasgd(const RuleSettings&, uint64_t elements, Loops loops);
std::unique_ptr<UpdateRule> MakeSsgd(const RuleSettings&, uint64_t elements, Loops loops);
std::unique_ptr<UpdateRule> MakeApmSqueeze(const RuleSettings&, uint64_t elements, Loops loops);
std::unique_ptr<UpdateRule> MakeStatistics(const RuleSettings&, uint64_t elements, Loops loops);

}  // namespace foreshard
