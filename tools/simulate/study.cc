#include "tools/simulate/study.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/core/bytes.h"
#include "common/net/job_spec.h"
#include "common/net/spec_text.h"
#include "glog/logging.h"
#include "tools/simulate/study_validation.h"

namespace foreshard {
namespace {

constexpr char kExampleStudy[] = "deploy/jobs/studies/quick.textproto";

std::string Relative(const std::string& folder, const std::string& path) {
  return (std::filesystem::path(folder) / path).lexically_normal().string();
}

template <typename List, typename Value>
bool Contains(const List& list, const Value& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

template <typename List, typename Value>
void KeepOnly(const Value& wanted, List* list) {
  const List before = *list;
  list->Clear();
  for (const auto& value : before) {
    if (wanted(value)) *list->Add() = value;
  }
}

absl::Status ApplyChanges(const StudyChanges& changes, v1::StudySpec* spec) {
  std::vector<std::string> labels;
  for (const v1::Variant& variant : spec->rules()) labels.push_back(variant.label());
  for (const std::string& wanted : changes.rules) {
    if (!Contains(labels, wanted)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--rule: '", wanted, "': choose labels of the study: ", absl::StrJoin(labels, ", ")));
    }
  }
  if (!changes.rules.empty()) {
    KeepOnly(
        [&](const v1::Variant& variant) {
          return Contains(changes.rules, variant.label()) || variant.label() == spec->baseline();
        },
        spec->mutable_rules());
  }
  if (changes.workers.empty()) return absl::OkStatus();
  v1::StudySpec kept = *spec;
  kept.clear_rules();
  for (uint32_t wanted : changes.workers) {
    bool known = false;
    for (const v1::Variant& variant : spec->rules()) {
      known = known || Contains(variant.workers().empty() ? spec->workers() : variant.workers(),
                                wanted);
    }
    if (!known) {
      return absl::InvalidArgumentError(
          absl::StrCat("--workers: ", wanted, ": the study has no runs with so many"));
    }
  }
  KeepOnly([&](uint32_t count) { return Contains(changes.workers, count); },
           kept.mutable_workers());
  for (v1::Variant variant : spec->rules()) {
    const bool baseline = variant.label() == spec->baseline();
    if (variant.workers().empty()) *variant.mutable_workers() = spec->workers();
    KeepOnly(
        [&](uint32_t count) {
          return Contains(changes.workers, count) || (baseline && count == 1);
        },
        variant.mutable_workers());
    // Without workers it would get the study's.
    if (!variant.workers().empty()) *kept.add_rules() = std::move(variant);
  }
  *spec = std::move(kept);
  return absl::OkStatus();
}

// With "{N}" and "{2.5N}" filled in.
absl::StatusOr<std::string> ForWorkers(const std::string& change, uint32_t workers) {
  std::string filled;
  size_t at = 0;
  for (size_t open; (open = change.find('{', at)) != std::string::npos;) {
    const size_t close = change.find('}', open);
    const std::string inside =
        close == std::string::npos ? "" : change.substr(open + 1, close - open - 1);
    double factor = 1;
    if (inside.empty() || inside.back() != 'N' ||
        (inside.size() > 1 && (!absl::SimpleAtod(inside.substr(0, inside.size() - 1), &factor) ||
                               !(factor > 0 && factor < 1e6)))) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", change, "': in braces write N or a multiple of it, as in {N} or {2N}"));
    }
    absl::StrAppend(&filled, change.substr(at, open - at), std::llround(factor * workers));
    at = close + 1;
  }
  return filled + change.substr(at);
}

// The schedule at `epochs` instead of the job's, in the same proportions.
std::vector<std::string> ScaledSchedule(const v1::JobSpec& job, uint32_t epochs) {
  const double factor = static_cast<double>(epochs) / job.training().epochs();
  const v1::ScheduleSpec& schedule = job.schedule();
  std::vector<std::string> overrides;
  const auto scale = [&](const char* field, float value) {
    if (value > 0) overrides.push_back(absl::StrFormat("schedule.%s=%.9g", field, value * factor));
  };
  scale("warmup_epochs", schedule.warmup_epochs());
  scale("ramp_epochs", schedule.ramp_epochs());
  std::vector<std::string> decays;
  for (float epoch : schedule.decay_epochs()) {
    decays.push_back(absl::StrFormat("%.9g", epoch * factor));
  }
  if (!decays.empty()) {
    overrides.push_back(absl::StrCat("schedule.decay_epochs=", absl::StrJoin(decays, ",")));
  }
  return overrides;
}

}  // namespace

std::string FormatRateSetting(float learning_rate) {
  for (int digits = 1; digits < 9; ++digits) {
    const std::string text = absl::StrFormat("%.*g", digits, learning_rate);
    if (std::strtof(text.c_str(), nullptr) == learning_rate) return text;
  }
  return absl::StrFormat("%.9g", learning_rate);
}

absl::StatusOr<Study> Study::Load(const std::string& path, const StudyChanges& changes) {
  absl::StatusOr<std::string> text = ReadSpecFile(path, "study", kExampleStudy);
  if (!text.ok()) return text.status();
  v1::StudySpec spec;
  if (absl::Status status = ParseSpecText(*text, path, &spec); !status.ok()) return status;
  return Create(std::move(spec), std::filesystem::path(path).parent_path().string(), path, changes);
}

absl::StatusOr<Study> Study::Create(v1::StudySpec spec, const std::string& folder,
                                    const std::string& origin, const StudyChanges& changes) {
  Study study;
  study.origin_ = origin;
  study.last_overrides_ = changes.set;
  FillStudyDefaults(&spec);
  if (absl::Status status = ValidateStudySpec(spec); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ":\n", status.message()));
  }
  if (absl::Status status = ApplyChanges(changes, &spec); !status.ok()) return status;
  // The command line's overrides are under the same rules as the file's.
  v1::StudySpec with_overrides = spec;
  for (const std::string& change : changes.set) with_overrides.add_set(change);
  if (absl::Status status = ValidateStudySpec(with_overrides); !status.ok()) return status;

  study.spec_ = std::move(spec);
  if (!study.spec_.trace().empty()) {
    absl::StatusOr<BatchTrace> trace = LoadTrace(Relative(folder, study.spec_.trace()));
    if (!trace.ok()) return trace.status();
    study.trace_ = *std::move(trace);
  }
  if (absl::Status status = study.Expand(Relative(folder, study.spec_.job())); !status.ok()) {
    return status;
  }
  // As it is run: each variant's last overrides are the command line's.
  for (v1::Variant& variant : *study.spec_.mutable_rules()) {
    for (const std::string& change : changes.set) variant.add_set(change);
  }
  return study;
}

absl::Status Study::Expand(const std::string& job_path) {
  absl::StatusOr<std::string> text = ReadSpecFile(job_path, "job", "deploy/jobs/soak.textproto");
  if (!text.ok()) {
    return absl::Status(text.status().code(), absl::StrCat(origin_, ": job: ", text.status().message()));
  }
  std::vector<std::string> problems;
  for (int v = 0; v < spec_.rules_size(); ++v) {
    const v1::Variant& variant = spec_.rules(v);
    const auto& counts = variant.workers().empty() ? spec_.workers() : variant.workers();
    const auto& kinds = variant.machines().empty() ? spec_.machines() : variant.machines();
    bool refused = false;  // one message a variant is enough
    for (const std::string& machines : kinds) {
      for (uint32_t workers : counts) {
        if (refused) continue;
        const StudyCell cell = {static_cast<size_t>(v), workers, machines};
        absl::StatusOr<BatchClock> clock = ClockFor(cell, 0);
        absl::StatusOr<Templates> templates = MakeTemplates(cell, *text, job_path);
        for (const absl::Status& status : {clock.status(), templates.status()}) {
          if (status.ok()) continue;
          refused = true;
          problems.push_back(absl::StrFormat("variant '%s' with %d %s: %s", variant.label(), workers,
                                             workers == 1 ? "worker" : "workers",
                                             std::string(status.message())));
        }
        if (refused) continue;
        cells_.push_back(cell);
        templates_.push_back(*std::move(templates));
      }
    }
  }
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(origin_, ":\n", absl::StrJoin(problems, "\n")));
}

absl::StatusOr<Study::Templates> Study::MakeTemplates(const StudyCell& cell,
                                                      const std::string& text,
                                                      const std::string& job_path) const {
  const v1::Variant& variant = spec_.rules(cell.variant);
  std::vector<std::string> overrides = {"training.max_workers="};
  const auto add = [&](const auto& changes, std::vector<std::string>* to) {
    for (const std::string& change : changes) {
      absl::StatusOr<std::string> filled = ForWorkers(change, cell.workers);
      if (!filled.ok()) return filled.status();
      to->push_back(*std::move(filled));
    }
    return absl::OkStatus();
  };
  for (const absl::Status& status : {add(spec_.set(), &overrides), add(variant.set(), &overrides),
                                     add(last_overrides_, &overrides)}) {
    if (!status.ok()) return status;
  }
  overrides.push_back(absl::StrCat("training.workers=", cell.workers));
  if (has_search()) {
    const auto& rates = variant.learning_rates().empty() ? spec_.search().learning_rates()
                                                         : variant.learning_rates();
    overrides.push_back(absl::StrCat("schedule.learning_rate=", FormatRateSetting(rates[0])));
  }
  Templates templates;
  absl::StatusOr<v1::JobSpec> job = ParseJobSpec(text, job_path, overrides);
  if (!job.ok()) return job.status();
  templates.job = *std::move(job);
  if (!has_search()) return templates;
  for (uint32_t epochs : spec_.search().epochs()) {
    std::vector<std::string> shorter = overrides;
    for (std::string& change : ScaledSchedule(templates.job, epochs)) {
      shorter.push_back(std::move(change));
    }
    if (absl::Status status = add(spec_.search().set(), &shorter); !status.ok()) return status;
    shorter.push_back(absl::StrCat("training.epochs=", epochs));
    job = ParseJobSpec(text, job_path, shorter);
    if (!job.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("in the search, runs of ", epochs, " epochs: ",
                                                     job.status().message()));
    }
    templates.rungs.push_back(*std::move(job));
  }
  return templates;
}

bool Study::is_baseline(size_t cell) const {
  return cells_[cell].workers == 1 && !spec_.baseline().empty() && label(cell) == spec_.baseline();
}

std::vector<std::vector<size_t>> Study::Groups() const {
  std::vector<std::vector<size_t>> groups;
  for (size_t cell = 0; cell < cells_.size(); ++cell) {
    const auto same = [&](const std::vector<size_t>& group) {
      const StudyCell& first = cells_[group.front()];
      return first.workers == cells_[cell].workers && first.machines == cells_[cell].machines;
    };
    auto found = std::find_if(groups.begin(), groups.end(), same);
    if (found == groups.end()) {
      groups.push_back({cell});
    } else {
      found->push_back(cell);
    }
  }
  return groups;
}

std::vector<float> Study::LearningRates(size_t cell) const {
  const v1::Variant& variant = spec_.rules(cells_[cell].variant);
  const auto& rates = variant.learning_rates().empty() ? spec_.search().learning_rates()
                                                       : variant.learning_rates();
  std::vector<float> rising(rates.begin(), rates.end());
  std::sort(rising.begin(), rising.end());
  return rising;
}

std::string Study::CellSlug(size_t cell) const {
  return absl::StrCat(Slug(label(cell)), "-n", cells_[cell].workers, "-", cells_[cell].machines);
}

std::string Study::CellName(size_t cell) const {
  return absl::StrFormat("%s, %d %s%s", label(cell), cells_[cell].workers,
                         cells_[cell].machines == "trace" ? "of the trace" : cells_[cell].machines,
                         cells_[cell].workers == 1 ? " machine" : " machines");
}

std::string Study::SearchKey(size_t cell, size_t rung, float learning_rate) const {
  return absl::StrCat("search-", CellSlug(cell), "-rate", FormatRateSetting(learning_rate), "-e",
                      spec_.search().epochs(rung));
}

std::string Study::FinalKey(size_t cell, uint64_t seed) const {
  return absl::StrCat("full-", CellSlug(cell), "-s", seed);
}

StudyRun Study::SearchRun(size_t cell, size_t rung, float learning_rate) const {
  CHECK_LT(rung, templates_[cell].rungs.size());
  StudyRun run;
  run.cell = cell;
  run.rung = static_cast<int>(rung);
  run.job = templates_[cell].rungs[rung];
  run.job.set_seed(spec_.search().seed());
  run.job.mutable_schedule()->set_learning_rate(learning_rate);
  run.key = SearchKey(cell, rung, learning_rate);
  run.name = absl::StrCat(CellName(cell), ", search: rate ", FormatRateSetting(learning_rate),
                          ", epochs ", spec_.search().epochs(rung));
  return run;
}

StudyRun Study::FinalRun(size_t cell, uint64_t seed, float learning_rate) const {
  StudyRun run;
  run.cell = cell;
  run.job = templates_[cell].job;
  run.job.set_seed(seed);
  if (learning_rate > 0) run.job.mutable_schedule()->set_learning_rate(learning_rate);
  run.key = FinalKey(cell, seed);
  run.name = absl::StrCat(CellName(cell), ", seed ", seed);
  run.evaluation_interval_epochs = run.job.evaluation().interval_epochs();
  return run;
}

absl::StatusOr<BatchClock> Study::ClockFor(const StudyCell& cell, uint64_t seed) const {
  if (cell.machines == "trace") return BatchClock::Trace(trace_, cell.workers);
  const v1::ClockSpec& clock = spec_.clock();
  return BatchClock::Gamma(
      {.workers = cell.workers,
       .batch_seconds = clock.batch_seconds(),
       .variation = clock.variation(),
       .machine_variation = cell.machines == "unequal" ? clock.machine_variation() : 0,
       .seed = seed});
}

BatchClock Study::MakeClock(const StudyRun& run) const {
  absl::StatusOr<BatchClock> clock = ClockFor(cells_[run.cell], run.job.seed());
  CHECK(clock.ok()) << clock.status();  // the same but for the seed was made in Expand
  return *std::move(clock);
}

NetworkModel Study::network() const {
  return {.latency_seconds = spec_.network().latency_seconds(),
          .worker_bytes_per_second = spec_.network().worker_bytes_per_second(),
          .server_bytes_per_second = spec_.network().server_bytes_per_second()};
}

bool Study::has_network() const {
  const NetworkModel model = network();
  return model.latency_seconds > 0 || model.worker_bytes_per_second > 0 ||
         model.server_bytes_per_second > 0;
}

std::string Study::Describe(const StudyRun& run) const {
  // Where the data lie does not count, only what they are.
  v1::JobSpec job = run.job;
  job.clear_name();
  job.clear_timeouts();
  for (auto clear : {&v1::DataSpec::clear_directory, &v1::DataSpec::clear_train_images,
                     &v1::DataSpec::clear_train_labels, &v1::DataSpec::clear_test_images,
                     &v1::DataSpec::clear_test_labels, &v1::DataSpec::clear_train_files,
                     &v1::DataSpec::clear_test_files}) {
    (job.mutable_data()->*clear)();
  }
  const StudyCell& cell = cells_[run.cell];
  std::string text = absl::StrCat(PrintJobSpec(job), "machines: ", cell.machines,
                                  "\nevaluated each: ", run.evaluation_interval_epochs, "\n");
  if (cell.machines == "trace") {
    const std::string trace = PrintTrace(trace_);
    absl::StrAppend(&text, "trace: ", Checksum(AsBytes(trace)), "\n");
  } else {
    absl::StrAppendFormat(&text, "clock: %.17g %.17g %.17g\n", spec_.clock().batch_seconds(),
                          spec_.clock().variation(),
                          cell.machines == "unequal" ? spec_.clock().machine_variation() : 0);
  }
  absl::StrAppendFormat(&text, "network: %.17g %.17g %.17g\n", spec_.network().latency_seconds(),
                        spec_.network().worker_bytes_per_second(),
                        spec_.network().server_bytes_per_second());
  return text;
}

}  // namespace foreshard
