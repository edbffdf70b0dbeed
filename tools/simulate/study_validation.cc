#include "tools/simulate/study_validation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/core/catalogue.h"

namespace foreshard {
namespace {

constexpr uint32_t kMaxWorkers = 256;
constexpr uint32_t kMaxEpochs = 1'000'000;
constexpr size_t kMaxLabel = 80;
// Longer batches, and wider spreads than any fleet has, are slips of the pen; sums of
// virtual time keep their precision below.
constexpr double kMaxSeconds = 1e6;
constexpr double kMaxVariation = 3;
constexpr char kKnownMachines[] = "equal, unequal, trace";

class Problems {
 public:
  template <typename Value>
  void Add(const std::string& field, const Value& value, const std::string& remedy) {
    lines_.push_back(absl::StrCat(field, ": ", value, ": ", remedy));
  }
  absl::Status status() const {
    return lines_.empty() ? absl::OkStatus()
                          : absl::InvalidArgumentError(absl::StrJoin(lines_, "\n"));
  }

 private:
  std::vector<std::string> lines_;
};

// Names each value that is there twice.
template <typename List>
void CheckUnique(const std::string& field, const List& list, Problems* problems) {
  std::set<typename List::value_type> seen;
  for (const auto& value : list) {
    if (!seen.insert(value).second) problems->Add(field, value, "is there twice; take one out");
  }
}

template <typename List>
void CheckWorkers(const std::string& field, const List& workers, Problems* problems) {
  for (uint32_t count : workers) {
    if (count < 1 || count > kMaxWorkers) {
      problems->Add(field, count, absl::StrCat("give whole numbers from 1 to ", kMaxWorkers));
    }
  }
  CheckUnique(field, workers, problems);
}

template <typename List>
void CheckMachines(const std::string& field, const List& machines, Problems* problems) {
  for (const std::string& kind : machines) {
    if (kind != "equal" && kind != "unequal" && kind != "trace") {
      problems->Add(field, absl::StrCat("'", kind, "'"),
                    absl::StrCat("choose among: ", kKnownMachines));
    }
  }
  CheckUnique(field, machines, problems);
}

template <typename List>
void CheckRates(const std::string& field, const List& rates, Problems* problems) {
  bool numbers = true;
  for (float rate : rates) {
    if (rate > 0 && std::isfinite(rate)) continue;
    problems->Add(field, rate, "give numbers above 0");
    numbers = false;
  }
  // What is not a number equals nothing, not even itself.
  if (numbers) CheckUnique(field, rates, problems);
}

// Fields of a job that the study itself decides; `why` by field.
template <typename List>
void CheckOverrides(const std::string& field, const List& overrides,
                    const std::map<std::string, std::string>& decided, Problems* problems) {
  for (const std::string& change : overrides) {
    const std::string name = change.substr(0, change.find('='));
    if (auto found = decided.find(name); found != decided.end()) {
      problems->Add(field, absl::StrCat("'", change, "'"),
                    absl::StrCat(found->second, " decides that; take it out"));
    }
  }
}

bool NamesRule(const v1::Variant& variant) {
  return std::any_of(variant.set().begin(), variant.set().end(), [](const std::string& change) {
    return absl::StartsWith(change, "update.rule=");
  });
}

// After FillStudyDefaults: a variant without update.rule= has a label that is no rule.
void CheckVariants(const v1::StudySpec& spec, const std::map<std::string, std::string>& decided,
                   Problems* problems) {
  if (spec.rules().empty()) {
    problems->Add("rules", "missing", "say what to compare, as in rules { label: \"dana_zero\" }");
  }
  std::map<std::string, std::string> by_slug;
  for (int i = 0; i < spec.rules_size(); ++i) {
    const v1::Variant& variant = spec.rules(i);
    const std::string& label = variant.label();
    const std::string field = absl::StrCat("rules[", i, "]");
    if (label.empty() || label.size() > kMaxLabel ||
        !std::all_of(label.begin(), label.end(), [](char c) { return absl::ascii_isprint(c); })) {
      problems->Add(field + ".label", absl::StrCat("'", label, "'"),
                    absl::StrCat("give it a name of 1 to ", kMaxLabel, " printable characters"));
    } else if (auto [found, fresh] = by_slug.emplace(Slug(label), label); !fresh) {
      problems->Add(field + ".label", absl::StrCat("'", label, "'"),
                    found->second == label
                        ? "is there twice; take one out"
                        : absl::StrCat("makes the same file names as '", found->second,
                                       "'; change one of them"));
    } else if (!NamesRule(variant)) {
      std::vector<std::string> rules;
      for (const RuleTraits& rule : Rules()) rules.emplace_back(rule.name);
      problems->Add(field + ".label", absl::StrCat("'", label, "'"),
                    absl::StrCat("is no update rule, and none is named in `set`; say set: "
                                 "\"update.rule=NAME\" with one of: ",
                                 absl::StrJoin(rules, ", ")));
    }
    CheckWorkers(field + ".workers", variant.workers(), problems);
    CheckMachines(field + ".machines", variant.machines(), problems);
    CheckRates(field + ".learning_rates", variant.learning_rates(), problems);
    CheckOverrides(field + ".set", variant.set(), decided, problems);
    if (!spec.has_search() && !variant.learning_rates().empty()) {
      problems->Add(field + ".learning_rates", "set", "only a study with a search has use for it; "
                    "say schedule.learning_rate=... in `set`");
    }
  }
}

void CheckBaseline(const v1::StudySpec& spec, Problems* problems) {
  if (spec.baseline().empty()) return;
  std::vector<std::string> labels;
  for (const v1::Variant& variant : spec.rules()) {
    labels.push_back(variant.label());
    if (variant.label() != spec.baseline()) continue;
    const auto& workers = variant.workers().empty() ? spec.workers() : variant.workers();
    if (std::find(workers.begin(), workers.end(), 1u) == workers.end()) {
      problems->Add("baseline", absl::StrCat("'", spec.baseline(), "'"),
                    "does not run with 1 worker; add 1 to its workers");
    }
    return;
  }
  problems->Add("baseline", absl::StrCat("'", spec.baseline(), "'"),
                absl::StrCat("choose the label of a variant: ", absl::StrJoin(labels, ", ")));
}

void CheckTrace(const v1::StudySpec& spec, Problems* problems) {
  const auto has_trace = [](const auto& machines) {
    return std::find(machines.begin(), machines.end(), "trace") != machines.end();
  };
  bool used = has_trace(spec.machines());
  for (const v1::Variant& variant : spec.rules()) used = used || has_trace(variant.machines());
  if (used && spec.trace().empty()) {
    problems->Add("trace", "missing",
                  "machines: \"trace\" needs a file of \"worker,step,seconds\" lines");
  } else if (!used && !spec.trace().empty()) {
    problems->Add("trace", absl::StrCat("'", spec.trace(), "'"),
                  "only machines: \"trace\" uses it; add that, or take it out");
  }
}

void CheckClockAndNetwork(const v1::StudySpec& spec, Problems* problems) {
  const v1::ClockSpec& clock = spec.clock();
  if (!(clock.batch_seconds() > 0 && clock.batch_seconds() <= kMaxSeconds)) {
    problems->Add("clock.batch_seconds", clock.batch_seconds(),
                  absl::StrCat("give a number above 0, at most ", kMaxSeconds));
  }
  const auto check_to = [&](const std::string& field, double value, double most) {
    if (!(value >= 0 && value <= most)) {
      problems->Add(field, value, absl::StrCat("give a number from 0 to ", most));
    }
  };
  const auto check = [&](const std::string& field, double value) {
    if (!(value >= 0) || !std::isfinite(value)) {
      problems->Add(field, value, "give a number of 0 or more");
    }
  };
  check_to("clock.variation", clock.variation(), kMaxVariation);
  check_to("clock.machine_variation", clock.machine_variation(), kMaxVariation);
  check_to("network.latency_seconds", spec.network().latency_seconds(), kMaxSeconds);
  check("network.worker_bytes_per_second", spec.network().worker_bytes_per_second());
  check("network.server_bytes_per_second", spec.network().server_bytes_per_second());
}

void CheckSearch(const v1::StudySpec& spec, const std::map<std::string, std::string>& decided,
                 Problems* problems) {
  if (!spec.has_search()) {
    if (spec.finalists() > 0) {
      problems->Add("finalists", spec.finalists(),
                    "only a search can say who they are; add one, or take it out");
    }
    return;
  }
  const v1::SearchSpec& search = spec.search();
  const bool own_everywhere =
      !spec.rules().empty() &&
      std::all_of(spec.rules().begin(), spec.rules().end(),
                  [](const v1::Variant& variant) { return !variant.learning_rates().empty(); });
  if (search.learning_rates().empty() && !own_everywhere) {
    problems->Add("search.learning_rates", "missing", "give candidates, as in [0.01, 0.02, 0.05]");
  }
  CheckRates("search.learning_rates", search.learning_rates(), problems);
  if (search.epochs().empty()) {
    problems->Add("search.epochs", "missing", "give the lengths of the short runs, as in [1, 2, 4]");
  }
  uint32_t last = 0;
  for (uint32_t epochs : search.epochs()) {
    if (epochs <= last || epochs > kMaxEpochs) {
      problems->Add("search.epochs", epochs,
                    absl::StrCat("give rising numbers from 1 to ", kMaxEpochs));
    }
    last = epochs;
  }
  if (!(search.keep() > 0 && search.keep() <= 1)) {
    problems->Add("search.keep", search.keep(), "make it above 0 and at most 1");
  }
  CheckOverrides("search.set", search.set(), decided, problems);
}

}  // namespace

std::string Slug(const std::string& label) {
  std::string slug;
  for (char c : label) {
    if (absl::ascii_isalnum(c) || c == '_' || c == '.') {
      slug.push_back(c);
    } else if (c == '+') {
      slug += "plus";
    } else if (!slug.empty() && slug.back() != '_') {
      slug.push_back('_');
    }
  }
  while (slug.size() > 1 && slug.back() == '_') slug.pop_back();
  return slug.empty() ? "_" : slug;
}

void FillStudyDefaults(v1::StudySpec* spec) {
  if (spec->machines().empty()) spec->add_machines("equal");
  v1::ClockSpec& clock = *spec->mutable_clock();
  if (!clock.has_batch_seconds()) clock.set_batch_seconds(1);
  if (!clock.has_variation()) clock.set_variation(0.1);
  if (!clock.has_machine_variation()) clock.set_machine_variation(0.6);
  if (spec->has_search()) {
    v1::SearchSpec& search = *spec->mutable_search();
    if (!search.has_keep()) search.set_keep(0.5);
    if (!search.has_seed() && spec->seeds_size() > 0) search.set_seed(spec->seeds(0));
  }
  for (v1::Variant& variant : *spec->mutable_rules()) {
    if (NamesRule(variant) || FindRule(variant.label()) == nullptr) continue;
    // First, so that the variant's other settings are read as this rule's.
    const std::vector<std::string> others(variant.set().begin(), variant.set().end());
    variant.clear_set();
    variant.add_set(absl::StrCat("update.rule=", variant.label()));
    for (const std::string& change : others) variant.add_set(change);
  }
}

absl::Status ValidateStudySpec(const v1::StudySpec& spec) {
  Problems problems;
  const bool name_fits = !spec.name().empty() && spec.name().size() <= 100 &&
                         std::all_of(spec.name().begin(), spec.name().end(), [](char c) {
                           return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
                         });
  if (!name_fits) {
    problems.Add("name", absl::StrCat("'", spec.name(), "'"),
                 "give the study a name of 1 to 100 letters, digits, '-', '_' and '.'");
  }
  if (spec.job().empty()) problems.Add("job", "missing", "name the file of a job");

  std::map<std::string, std::string> decided = {{"training.workers", "the study's workers"},
                                                {"seed", "the study's seeds"}};
  if (spec.has_search()) decided["schedule.learning_rate"] = "the search";
  CheckOverrides("set", spec.set(), decided, &problems);
  CheckVariants(spec, decided, &problems);
  decided["training.epochs"] = "search.epochs";
  CheckSearch(spec, decided, &problems);

  const bool own_workers =
      !spec.rules().empty() &&
      std::all_of(spec.rules().begin(), spec.rules().end(),
                  [](const v1::Variant& variant) { return !variant.workers().empty(); });
  if (spec.workers().empty() && !own_workers) {
    problems.Add("workers", "missing", "give numbers of workers, as in [1, 8]");
  }
  CheckWorkers("workers", spec.workers(), &problems);
  CheckMachines("machines", spec.machines(), &problems);
  if (spec.seeds().empty()) problems.Add("seeds", "missing", "give at least one, as in [1, 2, 3]");
  CheckUnique("seeds", spec.seeds(), &problems);
  CheckBaseline(spec, &problems);
  CheckTrace(spec, &problems);
  CheckClockAndNetwork(spec, &problems);
  return problems.status();
}

}  // namespace foreshard
