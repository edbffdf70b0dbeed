#include "tools/simulate/study_results.h"

#include <filesystem>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "tests/tools/simulate/study_harness.h"
#include "tools/simulate/study_charts.h"
#include "tools/simulate/study_display.h"
#include "tools/simulate/study_report.h"
#include "tools/simulate/study_summary.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kStudy[] = R"(
    rules { label: "one, alone" set: "update.rule=nag_asgd" workers: 1 }
    rules { label: "dana_zero" } rules { label: "<lwp>" set: "update.rule=lwp" }
    rules { label: "wild" set: "update.rule=lwp" learning_rates: [0.5] }
    workers: [2, 4] machines: ["equal", "unequal"] seeds: [1, 2, 3] baseline: "one, alone"
    search { learning_rates: [0.01, 0.02, 0.04] epochs: [1, 2] })";

class StudyResultsTest : public StudyTest {
 protected:
  // Everything that the plan asks for.
  RunResults RunAll(const Study& study) {
    RunResults results;
    const StudyPlan plan(study);
    for (std::vector<StudyRun> ready; !(ready = plan.Ready(results, {})).empty();) {
      for (const StudyRun& run : ready) {
        results[run.key] = FormulaResult({.job = run.job, .clock = study.MakeClock(run)});
      }
    }
    return results;
  }
};

TEST_F(StudyResultsTest, EveryFullRunHasTheFieldsThatAreAskedFor) {
  const Study study = MustMake(kStudy);
  const RunResults results = RunAll(study);
  const nlohmann::ordered_json json = StudyResultsJson(study, StudyEntries(study, results, {}));
  ASSERT_EQ(json.size(), (2u + 3 * 2 * 2) * 3);
  std::vector<std::string> names;
  for (const auto& [name, value] : json[0].items()) names.push_back(name);
  names.resize(12);
  EXPECT_THAT(names, ElementsAre("rule", "workers", "machines", "seed", "final_accuracy",
                                 "best_accuracy", "diverged", "lag_mean", "lag_p99", "gap_mean",
                                 "virtual_seconds", "speedup_over_synchronous"));
  const auto& first = json[0];
  EXPECT_EQ(first["rule"], "one, alone");
  EXPECT_EQ(first["points_lost"].get<double>(), 0);
  EXPECT_EQ(first["seed"], 1);
  EXPECT_EQ(first["learning_rate"].dump(), "0.02");
  EXPECT_DOUBLE_EQ(first["speedup_over_synchronous"].get<double>(), 1.2);
  for (const auto& run : json) {
    if (run["rule"] != "wild") continue;
    EXPECT_EQ(run["diverged"], true);
    EXPECT_TRUE(run["final_loss"].is_null());
    EXPECT_EQ(run["diverged_epoch"], 0.5);
    // Against the same seed: 0.9 - 0.001 + 0.0001 * seed + 0.002 * 4, and 0.1.
    EXPECT_NEAR(run["points_lost"].get<double>(), 80.7 + 0.01 * run["seed"].get<double>(), 1e-6);
  }
}

TEST_F(StudyResultsTest, TheBaselineMayRunOnOneKindOfMachinesOnly) {
  const Study study = MustMake(R"(
      rules { label: "one" set: "update.rule=lwp" workers: 1 machines: "equal" }
      rules { label: "dana_zero" } machines: "unequal" baseline: "one")");
  const RunResults results = RunAll(study);
  const auto entries = StudyEntries(study, results, {});
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_TRUE(entries[1].points_lost.has_value());
}

TEST_F(StudyResultsTest, TheSearchIsTold) {
  const Study study = MustMake(kStudy);
  const nlohmann::ordered_json json = StudySearchJson(study, RunAll(study), {});
  ASSERT_EQ(json.size(), study.cells().size());
  const auto& zero = json[2];
  EXPECT_EQ(zero["rule"], "dana_zero");
  EXPECT_EQ(zero["learning_rate"].dump(), "0.04");
  EXPECT_EQ(zero["largest_stable_rate"].dump(), "0.04");
  EXPECT_EQ(zero["full_length"], true);
  ASSERT_EQ(zero["rungs"].size(), 2u);
  EXPECT_EQ(zero["rungs"][0]["candidates"].size(), 3u);
  EXPECT_EQ(zero["rungs"][1]["candidates"].size(), 2u);
  EXPECT_EQ(zero["rungs"][1]["epochs"], 2);
  for (const auto& cell : json) {
    if (cell["rule"] == "wild") {
      EXPECT_TRUE(cell["largest_stable_rate"].is_null());
    }
  }
}

TEST_F(StudyResultsTest, TablesHaveALineARunAndAPoint) {
  const Study study = MustMake(kStudy);
  const RunResults results = RunAll(study);
  const auto entries = StudyEntries(study, results, {});
  const std::vector<std::string> lines =
      absl::StrSplit(StudyResultsCsv(study, entries), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 1 + entries.size());
  EXPECT_THAT(lines[0], ::testing::StartsWith("rule,workers,machines,seed,final_accuracy,"));
  EXPECT_THAT(lines[1], ::testing::StartsWith("\"one, alone\",1,equal,1,"));
  size_t points = 0;
  for (const StudyEntry& entry : entries) points += entry.result->curve.size();
  const std::vector<std::string> curves =
      absl::StrSplit(StudyCurvesCsv(study, entries), '\n', absl::SkipEmpty());
  EXPECT_EQ(curves.size(), 1 + points);
  EXPECT_EQ(curves[0], "rule,workers,machines,seed,epoch,virtual_seconds,training_loss,loss,accuracy");
}

TEST_F(StudyResultsTest, TimeIsInAFileOfItsOwn) {
  const Study study = MustMake(kStudy);
  RunResults results = RunAll(study);
  const nlohmann::ordered_json timing = StudyTimingJson(study, results, {});
  EXPECT_EQ(timing.size(), results.size());
  EXPECT_NEAR(timing[0]["overhead"].get<double>(), 0.1, 1e-12);
  ASSERT_TRUE(WriteStudyResults(study, results, {}, Path("a")).ok());
  for (auto& [key, result] : results) result.total_seconds = result.gradient_seconds = 1234.5;
  ASSERT_TRUE(WriteStudyResults(study, results, {}, Path("b")).ok());
  size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(Path("a"))) {
    if (!entry.is_regular_file()) continue;
    const std::string name = std::filesystem::relative(entry.path(), Path("a")).string();
    const bool same = *ReadFile(entry.path().string()) == *ReadFile(Path("b/" + name));
    EXPECT_EQ(same, name != "timing.json") << name;
    ++files;
  }
  EXPECT_GT(files, 7u + 10);
}

TEST_F(StudyResultsTest, TheReportShowsAllOfIt) {
  const Study study = MustMake(kStudy);
  const StudyReport report = MakeStudyReport(study, RunAll(study), {});
  for (const char* part :
       {"Who is ahead", "All results", "Largest stable learning rate", "What the words mean",
        "Points lost", "Equal machines", "N = 4, unequal machines", "id=\"accuracy-by-workers-equal",
        "id=\"epochs-n2-equal-title", "id=\"time-n4-unequal-title", "id=\"lag-n2-equal-title",
        "id=\"gap-n2-equal-title", "id=\"speedup-by-workers-unequal", "at least 0.9 of the best",
        "prefers-color-scheme: dark", "&lt;lwp&gt;", "one, alone, N = 1:"}) {
    EXPECT_THAT(report.html, HasSubstr(part));
  }
  for (const char* absent : {"<script", "http:", "https:", "<link", "nan", "inf ", "<lwp>",
                             "Not complete"}) {
    EXPECT_THAT(report.html, Not(HasSubstr(absent)));
  }
  EXPECT_THAT(report.charts, SizeIs(2 * 2 + 4 * 6));
  for (const auto& [name, svg] : report.charts) {
    EXPECT_THAT(svg, HasSubstr("xmlns=\"http://www.w3.org/2000/svg\"><style>")) << name;
  }
}

TEST_F(StudyResultsTest, AReportOfNothingAndOfHalfSaysSo) {
  const Study study = MustMake(kStudy);
  EXPECT_THAT(MakeStudyReport(study, {}, {}).html, HasSubstr("Not complete: 0 of "));
  RunResults results = RunAll(study);
  std::erase_if(results, [](const auto& item) { return item.first.ends_with("-s3"); });
  const std::string html = MakeStudyReport(study, results, {"x"}).html;
  EXPECT_THAT(html, HasSubstr("Not complete: "));
  EXPECT_THAT(html, HasSubstr("1 failed"));
}

TEST_F(StudyResultsTest, SpreadsAreOverTheSeeds) {
  const Study study = MustMake(kStudy);
  const RunResults results = RunAll(study);
  const auto entries = StudyEntries(study, results, {});
  const std::vector<CellSummary> summaries = SummariseCells(study, entries);
  ASSERT_EQ(summaries.size(), study.cells().size());
  // The formula gives 0.0001 a seed.
  EXPECT_NEAR(summaries[2].accuracy.deviation, 0.0001, 1e-12);
  EXPECT_NEAR(summaries[2].accuracy.high - summaries[2].accuracy.low, 0.0002, 1e-12);
  EXPECT_NEAR(summaries[2].points_lost.deviation, 0, 1e-9);
  EXPECT_EQ(summaries.back().diverged, 3u);
  EXPECT_TRUE(std::isnan(SpreadOf({}).mean));
  EXPECT_EQ(SpreadOf({3}).deviation, 0);
  EXPECT_DOUBLE_EQ(SpreadOf({1, 2, 3}).deviation, 1);
}

TEST_F(StudyResultsTest, WithANetworkThereIsNoSpeedUp) {
  const Study study = MustMake(std::string(kStudy) + "network { latency_seconds: 0.1 }");
  const RunResults results = RunAll(study);
  const auto entries = StudyEntries(study, results, {});
  for (const auto& run : StudyResultsJson(study, entries)) {
    EXPECT_TRUE(run["speedup_over_synchronous"].is_null());
    EXPECT_TRUE(run["ideal_speedup"].is_null());
    EXPECT_FALSE(run["virtual_seconds"].is_null());
  }
  for (const CellSummary& summary : SummariseCells(study, entries)) {
    EXPECT_EQ(summary.speedup.count, 0u);
  }
  const StudyReport report = MakeStudyReport(study, results, {});
  EXPECT_THAT(report.html, HasSubstr("Left out: messages take time in this study"));
  EXPECT_THAT(report.html, HasSubstr("<td class=\"number\">-</td></tr>"));
  EXPECT_THAT(report.html, Not(HasSubstr("nan")));
  for (const auto& [name, svg] : report.charts) {
    EXPECT_THAT(name, Not(HasSubstr("speedup")));
  }
  EXPECT_THAT(StudySummary(study, entries), AllOf(HasSubstr("       -\n"), Not(HasSubstr("nan"))));
}

TEST_F(StudyResultsTest, RunsThatDivergedAreNotInTheSpeedUp) {
  const Study study =
      MustMake(R"(rules { label: "dana_zero" } rules { label: "lwp" } seeds: [1, 2, 3])");
  RunResults results = RunAll(study);
  SimulationResult& diverged = results.at("full-dana_zero-n2-equal-s2");
  diverged.diverged = true;
  diverged.final_accuracy = 0.1;
  diverged.virtual_seconds = diverged.synchronous_seconds / 50;
  for (auto& [key, result] : results) {
    if (key.find("lwp") == std::string::npos) continue;
    result.diverged = true;
    result.final_accuracy = 0.1;
  }
  const auto entries = StudyEntries(study, results, {});
  const std::vector<CellSummary> summaries = SummariseCells(study, entries);
  EXPECT_EQ(summaries[0].speedup.count, 2u);
  EXPECT_DOUBLE_EQ(summaries[0].speedup.mean, 1.2);
  EXPECT_EQ(summaries[0].accuracy.count, 3u);
  EXPECT_EQ(summaries[1].speedup.count, 0u);
  EXPECT_THAT(MakeStudyReport(study, results, {}).html, Not(HasSubstr("nan")));
  EXPECT_THAT(StudySummary(study, entries), Not(HasSubstr("nan")));
}

TEST_F(StudyResultsTest, WhoDivergedStaysInTheCurve) {
  const Study study = MustMake(R"(rules { label: "dana_zero" } seeds: [1, 2])");
  RunResults results = RunAll(study);
  const auto curve = [&] {
    for (const auto& [name, svg] : MakeStudyReport(study, results, {}).charts) {
      if (name == "epochs-n2-equal") return svg;
    }
    return std::string();
  };
  // The other seed ends after its second epoch.
  SimulationResult& other = results.at("full-dana_zero-n2-equal-s2");
  other.diverged = true;
  other.final_accuracy = 0.1;
  other.curve.resize(2);
  const std::string kept = curve();
  // The very same chart as that of a run that guesses in the third and fourth epoch.
  for (double epoch : {3.0, 4.0}) other.curve.push_back({epoch, 10 * epoch, 0.5, 0.5, 0.1});
  EXPECT_EQ(kept, curve());
  // And of a run that never had a finite loss.
  other.curve.clear();
  const std::string none = curve();
  EXPECT_NE(none, kept);
  for (auto& [key, result] : results) {
    result.curve.clear();
    result.diverged = true;
    result.final_accuracy = 0.1;
  }
  EXPECT_THAT(curve(), Not(HasSubstr("no data")));
  EXPECT_THAT(MakeStudyReport(study, results, {}).html, HasSubstr("from there on"));
}

TEST_F(StudyResultsTest, AFolderHoldsOneStudy) {
  const Study study = MustMake(kStudy);
  std::filesystem::create_directories(Path("a"));
  ASSERT_TRUE(ClaimResultsFolder(study, Path("a")).ok());
  EXPECT_THAT(*ReadFile(Path("a/study.textproto")), HasSubstr("name: \"test\""));
  ASSERT_TRUE(WriteStudyResults(study, RunAll(study), {}, Path("a")).ok());
  EXPECT_TRUE(ClaimResultsFolder(study, Path("a")).ok());

  const Study other = MustMake(R"(name: "other" rules { label: "dana_zero" })");
  const absl::Status status = ClaimResultsFolder(other, Path("a"));
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("holds the study 'test', and this is 'other'; give"));
  EXPECT_THAT(*ReadFile(Path("a/study.textproto")), HasSubstr("name: \"test\""));

  std::filesystem::create_directories(Path("run"));
  ASSERT_TRUE(WriteFileAtomically(Path("run/results.json"), "{}").ok());
  EXPECT_THAT(ClaimResultsFolder(study, Path("run")).message(), HasSubstr("not of a study"));
  ASSERT_TRUE(WriteFileAtomically(Path("run/study.textproto"), "what").ok());
  EXPECT_THAT(ClaimResultsFolder(study, Path("run")).message(), HasSubstr("can't be read"));
}

TEST_F(StudyResultsTest, WhatAnEarlierFormOfTheStudyHadIsTakenAway) {
  const Study study = MustMake(kStudy);
  ASSERT_TRUE(WriteStudyResults(study, RunAll(study), {}, Path("a")).ok());
  EXPECT_TRUE(std::filesystem::exists(Path("a/search.json")));
  EXPECT_TRUE(std::filesystem::exists(Path("a/charts/accuracy-n4-unequal.svg")));
  const Study smaller = MustMake(R"(rules { label: "dana_zero" })");
  ASSERT_TRUE(WriteStudyResults(smaller, RunAll(smaller), {}, Path("a")).ok());
  EXPECT_FALSE(std::filesystem::exists(Path("a/search.json")));
  EXPECT_FALSE(std::filesystem::exists(Path("a/charts/accuracy-n4-unequal.svg")));
  EXPECT_TRUE(std::filesystem::exists(Path("a/charts/accuracy-n2-equal.svg")));
}

TEST_F(StudyResultsTest, TheSummaryHasTheBestFirst) {
  const Study study = MustMake(kStudy);
  const RunResults results = RunAll(study);
  const std::string text = StudySummary(study, StudyEntries(study, results, {}));
  EXPECT_THAT(text, HasSubstr("N = 2, equal machines"));
  EXPECT_THAT(text, HasSubstr("3 of 3 diverged"));
  EXPECT_LT(text.find("dana_zero"), text.find("wild"));
}

TEST_F(StudyResultsTest, TheListSaysWhatWouldRun) {
  const std::string text = StudyList(MustMake(kStudy));
  EXPECT_THAT(text, HasSubstr("searched  2, 4"));
  EXPECT_THAT(text, HasSubstr("seeds: 1, 2, 3"));
  EXPECT_THAT(text, HasSubstr("search: rates 0.01, 0.02, 0.04; runs of 1, 2 epochs"));
  EXPECT_THAT(text, HasSubstr("42 runs of full length, 168 epochs in all"));
}

TEST(StudyDisplay, ProgressHasWhatRunsAndWhatIsLeft) {
  StudyFigures figures = {.total_runs = 10, .done_runs = 4, .part = 0.45};
  figures.running.push_back({"dana_zero, 8 equal machines, seed 1", 0.5, 100, 65});
  figures.seconds_left = 125;
  EXPECT_EQ(StudyLine(figures, 61),
            "1:01  4 of 10 runs (45.0 %)  left 2:05  [dana_zero, 8 equal machines, seed 1: 50 %]");
  figures.running[0].accuracy = 0.8846;
  EXPECT_EQ(StudyLine(figures, 61),
            "1:01  4 of 10 runs (45.0 %)  left 2:05  [dana_zero, 8 equal machines, seed 1: 50 %, "
            "accuracy 88.46 %]");
  EXPECT_THAT(StudyBlock(figures, 61)[1], ::testing::EndsWith("seed 1   accuracy 88.46 %"));
  figures.left_is_bound = true;
  EXPECT_THAT(StudyLine(figures, 61), HasSubstr("left 2:05 or more"));
  EXPECT_THAT(StudyBlock(figures, 61), ElementsAre(HasSubstr("4 of 10 runs   1:01 gone, 2:05 or more left"),
                                                   HasSubstr("50 %  1:05   dana_zero")));
  figures.seconds_left.reset();
  EXPECT_THAT(StudyLine(figures, 61), HasSubstr("left -"));
  figures.done_runs = 10;
  EXPECT_THAT(StudyLine(figures, 61), HasSubstr("left 0:00"));
}

}  // namespace
}  // namespace foreshard
