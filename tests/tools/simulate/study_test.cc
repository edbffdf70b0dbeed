#include "tools/simulate/study.h"

#include <set>

#include "absl/strings/match.h"
#include "absl/algorithm/container.h"
#include "gmock/gmock.h"
#include "tests/tools/simulate/study_harness.h"
#include "tools/simulate/study_plan.h"
#include "tools/simulate/study_validation.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(StudyTest, EveryVariantOnEveryFleetIsACell) {
  const Study study = MustMake(R"(rules { label: "dana_zero" } rules { label: "multi_asgd" }
                                  workers: [1, 4] machines: ["equal", "unequal"] seeds: [3, 1])");
  ASSERT_EQ(study.cells().size(), 8u);
  EXPECT_EQ(study.label(0), "dana_zero");
  EXPECT_EQ(study.cells()[0].workers, 1u);
  EXPECT_EQ(study.cells()[1].workers, 4u);
  EXPECT_EQ(study.cells()[2].machines, "unequal");
  EXPECT_EQ(study.label(4), "multi_asgd");
  EXPECT_EQ(study.Groups().size(), 4u);
  EXPECT_THAT(study.Groups()[1], ElementsAre(1, 5));

  const StudyRun run = study.FinalRun(5, 3, 0);
  EXPECT_EQ(run.job.update().rule(), "multi_asgd");
  EXPECT_EQ(run.job.training().workers(), 4u);
  EXPECT_EQ(run.job.seed(), 3u);
  EXPECT_EQ(run.job.schedule().learning_rate(), 0.05f);
  EXPECT_EQ(run.key, "full-multi_asgd-n4-equal-s3");
}

TEST_F(StudyTest, KeysAreUniqueAndFitForFiles) {
  const Study study = MustMake(R"(
      rules { label: "dana_ga + ramp 1/2" set: "update.rule=dana_ga" set: "schedule.ramp_epochs=0.5" }
      rules { label: "dana_ga" } workers: [2, 4] seeds: [1, 11]
      search { learning_rates: [0.1, 0.01] epochs: [1, 2] })");
  std::set<std::string> keys;
  for (size_t cell = 0; cell < study.cells().size(); ++cell) {
    for (uint64_t seed : {1, 11}) keys.insert(study.FinalRun(cell, seed, 0.1f).key);
    for (size_t rung : {0, 1}) {
      for (float rate : study.LearningRates(cell)) keys.insert(study.SearchRun(cell, rung, rate).key);
    }
  }
  EXPECT_EQ(keys.size(), 4u * (2 + 4));
  for (const std::string& key : keys) {
    EXPECT_EQ(key.find_first_of(" /+:\\"), std::string::npos) << key;
  }
}

TEST_F(StudyTest, OverridesComeInOrder) {
  const Study study = MustMake(R"(
      set: "training.epochs=8" set: "update.momentum=0.5"
      rules { label: "zero" set: "update.rule=dana_zero" set: "update.momentum=0.6" }
      rules { label: "plain" set: "update.rule=asgd" set: "update.momentum=" })",
                               {.set = {"training.epochs=6"}});
  EXPECT_EQ(study.FinalRun(0, 1, 0).job.training().epochs(), 6u);
  EXPECT_FLOAT_EQ(study.FinalRun(0, 1, 0).job.update().momentum(), 0.6f);
  EXPECT_FALSE(study.FinalRun(1, 1, 0).job.update().has_momentum());
  // The spec as it was run says so, too.
  EXPECT_THAT(study.spec().rules(0).set(), ::testing::Contains("training.epochs=6"));
}

TEST_F(StudyTest, NumbersOfWorkersAreFilledIn) {
  const Study study = MustMake(R"(rules { label: "r" set: "update.rule=asgd" set: "update.momentum="
      set: "update.delay_threshold={2.5N}" } rules { label: "t" set: "update.rule=asgd"
      set: "update.momentum=" set: "update.delay_threshold={N}" } workers: [4])");
  EXPECT_EQ(study.FinalRun(0, 1, 0).job.update().delay_threshold(), 10u);
  EXPECT_EQ(study.FinalRun(1, 1, 0).job.update().delay_threshold(), 4u);
  for (const char* text : {"{M}", "{", "{-2N}", "{}"}) {
    EXPECT_THAT(Make(absl::StrCat(R"(rules { label: "dana_zero" set: "update.delay_threshold=)",
                                  text, R"(" })"))
                    .status()
                    .message(),
                HasSubstr("in braces write N"))
        << text;
  }
}

TEST_F(StudyTest, ShortRunsHaveTheScheduleInProportion) {
  const Study study = MustMake(R"(rules { label: "dana_zero" set: "schedule.ramp_epochs=2" }
      search { learning_rates: [0.1, 0.01] epochs: [1, 2] set: "update.momentum=0.8" seed: 77 })");
  EXPECT_THAT(study.LearningRates(0), ElementsAre(0.01f, 0.1f));
  const StudyRun run = study.SearchRun(0, 1, 0.1f);
  EXPECT_EQ(run.job.training().epochs(), 2u);
  EXPECT_FLOAT_EQ(run.job.schedule().warmup_epochs(), 0.5f);
  EXPECT_THAT(run.job.schedule().decay_epochs(), ElementsAre(1.0f, 1.5f));
  EXPECT_FLOAT_EQ(run.job.schedule().ramp_epochs(), 1.0f);
  EXPECT_FLOAT_EQ(run.job.schedule().learning_rate(), 0.1f);
  EXPECT_FLOAT_EQ(run.job.update().momentum(), 0.8f);
  EXPECT_EQ(run.job.seed(), 77u);
  EXPECT_EQ(run.evaluation_interval_epochs, 0u);
  EXPECT_FLOAT_EQ(study.FinalRun(0, 1, 0.02f).job.schedule().learning_rate(), 0.02f);
}

TEST_F(StudyTest, VariantsOfOneSeedSeeTheSameMachines) {
  const Study study = MustMake(R"(rules { label: "dana_zero" } rules { label: "multi_asgd" }
                                  workers: 4 machines: "unequal" seeds: [1, 2])");
  const BatchClock a = study.MakeClock(study.FinalRun(0, 1, 0));
  const BatchClock b = study.MakeClock(study.FinalRun(1, 1, 0));
  const BatchClock other = study.MakeClock(study.FinalRun(0, 2, 0));
  for (uint32_t worker = 0; worker < 4; ++worker) {
    EXPECT_EQ(a.BatchSeconds(worker, 7), b.BatchSeconds(worker, 7));
    EXPECT_NE(a.BatchSeconds(worker, 7), other.BatchSeconds(worker, 7));
  }
}

TEST_F(StudyTest, AVariantMayHaveItsOwnFleets) {
  const Study study = MustMake(R"(rules { label: "one" set: "update.rule=nag_asgd" workers: 1 }
      rules { label: "dana_zero" } workers: [4, 8] baseline: "one")");
  ASSERT_EQ(study.cells().size(), 3u);
  EXPECT_TRUE(study.is_baseline(0));
  EXPECT_FALSE(study.is_baseline(1));
}

TEST_F(StudyTest, DescribesAllThatCounts) {
  const std::string text = R"(rules { label: "dana_zero" } )";
  const auto describe = [&](const Study& study) { return study.Describe(study.FinalRun(0, 1, 0)); };
  const std::string base = describe(MustMake(text));
  EXPECT_EQ(base, describe(MustMake(text + "name: \"other\" seeds: [1, 2] workers: [2, 4]")));
  for (const char* change :
       {"clock { variation: 0.2 }", "clock { batch_seconds: 2 }", "machines: \"unequal\"",
        "network { latency_seconds: 0.1 }", "set: \"training.epochs=5\"", "workers: 4",
        "set: \"evaluation.interval_epochs=2\"", "set: \"schedule.learning_rate=0.06\""}) {
    EXPECT_NE(base, describe(MustMake(text + change))) << change;
  }
  // On equal machines their variation changes nothing.
  EXPECT_EQ(base, describe(MustMake(text + "clock { machine_variation: 0.3 }")));
}

TEST_F(StudyTest, TheCommandLineNarrowsAStudy) {
  const std::string text = R"(rules { label: "one" set: "update.rule=nag_asgd" workers: [1, 8] }
      rules { label: "dana_zero" } rules { label: "lwp" } workers: [4, 8] baseline: "one")";
  const Study by_rule = MustMake(text, {.rules = {"lwp"}});
  ASSERT_EQ(by_rule.spec().rules_size(), 2);
  EXPECT_EQ(by_rule.spec().rules(1).label(), "lwp");
  const Study by_workers = MustMake(text, {.workers = {4}});
  ASSERT_EQ(by_workers.cells().size(), 3u);  // the baseline keeps its one worker
  EXPECT_EQ(by_workers.cells()[0].workers, 1u);
  EXPECT_EQ(by_workers.cells()[1].workers, 4u);
  EXPECT_THAT(Make(text, {.rules = {"x"}}).status().message(),
              HasSubstr("--rule: 'x': choose labels of the study: one, dana_zero, lwp"));
  EXPECT_THAT(Make(text, {.workers = {5}}).status().message(), HasSubstr("--workers: 5"));
  EXPECT_THAT(Make(text, {.set = {"seed=3"}}).status().message(), HasSubstr("'seed=3'"));
}

TEST_F(StudyTest, RefusalsNameFieldValueAndRemedy) {
  const std::string zero = R"(rules { label: "dana_zero" } )";
  const std::string search = R"(search { learning_rates: [0.1] epochs: [1] } )";
  const std::vector<std::pair<std::string, std::string>> refusals = {
      {"", "rules: missing"},
      {zero + "name: \"a b\"", "name: 'a b'"},
      {zero + "workers: [0, 2]", "workers: 0: give whole numbers from 1 to 256"},
      {zero + "workers: 257", "workers: 257: give whole numbers from 1 to 256"},
      {R"(rules { label: "dana_zeroo" })",
       "rules[0].label: 'dana_zeroo': is no update rule, and none is named in `set`; say set: "
       "\"update.rule=NAME\" with one of: "},
      {R"(rules { label: "dana_zeroo" set: "update.momentum=0.8" })", "dana_zero,"},
      {zero + "workers: [2, 2]", "workers: 2: is there twice"},
      {zero + "seeds: [2, 2]", "seeds: 2: is there twice"},
      {zero + "machines: \"fast\"", "machines: 'fast': choose among: equal, unequal, trace"},
      {zero + "machines: \"trace\"", "trace: missing"},
      {zero + "trace: \"t.csv\"", "trace: 't.csv': only machines: \"trace\" uses it"},
      {zero + "set: \"training.workers=4\"", "set: 'training.workers=4': the study's workers"},
      {zero + "set: \"seed=4\"", "set: 'seed=4': the study's seeds decides that; take it out"},
      {zero + zero, "rules[1].label: 'dana_zero': is there twice"},
      {R"(rules { label: "a b" set: "update.rule=lwp" } rules { label: "a-b" set: "update.rule=lwp" })",
       "rules[1].label: 'a-b': makes the same file names as 'a b'"},
      {R"(rules { set: "update.rule=lwp" })", "rules[0].label: ''"},
      {zero + "baseline: \"x\"", "baseline: 'x': choose the label of a variant: dana_zero"},
      {zero + "baseline: \"dana_zero\"", "does not run with 1 worker"},
      {zero + "clock { batch_seconds: 0 }", "clock.batch_seconds: 0: give a number above 0"},
      {zero + "clock { variation: -1 }", "clock.variation: -1"},
      {zero + "clock { variation: nan }", "clock.variation: nan"},
      {zero + "clock { batch_seconds: 1e7 }",
       "clock.batch_seconds: 1e+07: give a number above 0, at most"},
      {zero + "clock { variation: 3.5 }", "clock.variation: 3.5: give a number from 0 to 3"},
      {zero + "clock { machine_variation: 4 }",
       "clock.machine_variation: 4: give a number from 0 to 3"},
      {zero + "network { latency_seconds: 1e7 }", "network.latency_seconds: 1e+07"},
      {zero + "network { latency_seconds: -1 }", "network.latency_seconds: -1"},
      {zero + "finalists: 2", "finalists: 2: only a search"},
      {zero + "search { epochs: [1] }", "search.learning_rates: missing"},
      {zero + "search { learning_rates: [0.1] }", "search.epochs: missing"},
      {zero + "search { learning_rates: [0.1, -1] epochs: [1] }", "search.learning_rates: -1"},
      {zero + "search { learning_rates: [nan, 0.1, nan] epochs: [1] }",
       "search.learning_rates: nan: give numbers above 0"},
      {zero + "search { learning_rates: [inf, 0.1, inf] epochs: [1] }",
       "search.learning_rates: inf: give numbers above 0"},
      {R"(rules { label: "dana_zero" learning_rates: [nan, nan] } )" + search,
       "rules[0].learning_rates: nan: give numbers above 0"},
      {zero + "search { learning_rates: [0.1] epochs: [2, 1] }", "search.epochs: 1: give rising"},
      {zero + "search { learning_rates: [0.1] epochs: [1] keep: 0 }", "search.keep: 0"},
      {zero + search + "set: \"schedule.learning_rate=1\"", "the search decides that"},
      {zero + "search { learning_rates: [0.1] epochs: [1] set: \"training.epochs=4\" }",
       "search.epochs decides that"},
      {R"(rules { label: "dana_zero" learning_rates: [0.1] })", "rules[0].learning_rates: set"},
      // What only the job's check sees, with the variant's name; of all variants.
      {zero + R"(rules { label: "nobody" set: "update.rule=nesterov" })",
       "variant 'nobody' with 2 workers:"},
      {zero + R"(rules { label: "nobody" set: "update.rule=nesterov" })", "update.rule: 'nesterov'"},
      {R"(rules { label: "asgd" } rules { label: "lwp" set: "update.lag=never" })", "variant 'asgd'"},
      {R"(rules { label: "asgd" } rules { label: "lwp" set: "update.lag=never" })", "variant 'lwp'"},
      {zero + "set: \"training.epoch=3\"", "there is no field 'epoch'"},
      {zero + "search { learning_rates: [0.1] epochs: [1] set: \"model.name=vgg\" }",
       "in the search, runs of 1 epochs"},
      {zero + "job: \"missing.textproto\"", "cannot read the job file"},
  };
  for (const auto& [text, message] : refusals) {
    const absl::Status status = Make(text).status();
    EXPECT_FALSE(status.ok()) << text;
    EXPECT_TRUE(absl::IsInvalidArgument(status) || absl::IsNotFound(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(message)) << text;
  }
  EXPECT_THAT(Make(zero + "search { learning_rates: [nan, nan] epochs: [1] }").status().message(),
              Not(HasSubstr("twice")));
}

TEST_F(StudyTest, ATraceMustHaveItsWorkersAndNoHoles) {
  const std::string text =
      R"(rules { label: "dana_zero" } machines: "trace" trace: "t.csv" workers: 2 )";
  EXPECT_TRUE(absl::IsNotFound(Make(text).status())) << Make(text).status();
  ASSERT_TRUE(WriteFileAtomically(Path("t.csv"), "worker,step,seconds\n0,0,1\n0,1,2\n1,0,3\n").ok());
  const Study study = MustMake(text);
  const BatchClock clock = study.MakeClock(study.FinalRun(0, 1, 0));
  EXPECT_EQ(clock.BatchSeconds(0, 1), 2);
  EXPECT_EQ(clock.BatchSeconds(1, 0), 3);
  EXPECT_THAT(Make(text + "workers: 3").status().message(), HasSubstr("variant 'dana_zero' with 3"));
  ASSERT_TRUE(WriteFileAtomically(Path("t.csv"), "worker,step,seconds\n0,0,1\n0,2,2\n1,0,3\n").ok());
  EXPECT_THAT(Make(text).status().message(), HasSubstr("t.csv"));
}

TEST_F(StudyTest, FilesThatDoNotParseAreNamedWithTheLine) {
  ASSERT_TRUE(WriteFileAtomically(Path("s.textproto"), "name: \"s\"\nworker: 3\n").ok());
  const absl::Status status = Study::Load(Path("s.textproto"), {}).status();
  EXPECT_THAT(status.message(), AllOf(HasSubstr("s.textproto:2:"), HasSubstr("Known fields: name, job")));
  EXPECT_TRUE(absl::IsNotFound(Study::Load(Path("none.textproto"), {}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Study::Load(folder_, {}).status()));
}

TEST(ReadyStudies, AllExpand) {
  size_t studies = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(FORESHARD_SOURCE_DIR "/deploy/jobs/studies")) {
    if (!entry.is_regular_file() || entry.path().filename() == "base.textproto") continue;
    ++studies;
    const absl::StatusOr<Study> study = Study::Load(entry.path().string(), {});
    ASSERT_TRUE(study.ok()) << study.status();
    EXPECT_EQ(study->spec().name(), entry.path().stem().string());
    EXPECT_FALSE(study->cells().empty());
    EXPECT_FALSE(study->spec().baseline().empty());
    // An hour of a core makes about 190 epochs of the cnn and 2,500 of the mlp (measured).
    const StudyTotals totals = StudyPlan(*study).Totals();
    const bool on_mlp = absl::c_linear_search(study->spec().set(), "model.name=mlp");
    EXPECT_LE(totals.full_epochs, on_mlp ? 5000u : 800u) << entry.path();
  }
  EXPECT_GE(studies, 4u);
}

TEST(FormatRateSetting, IsShortAndExact) {
  EXPECT_EQ(FormatRateSetting(0.05f), "0.05");
  EXPECT_EQ(FormatRateSetting(0.00125f), "0.00125");
  EXPECT_EQ(FormatRateSetting(1.0f), "1");
  EXPECT_EQ(FormatRateSetting(1.0f / 3), "0.33333334");
}

TEST(Slug, KeepsWhatAFileNameTakes) {
  EXPECT_EQ(Slug("dana_ga + ramp"), "dana_ga_plus_ramp");
  EXPECT_EQ(Slug("lag <= 2N"), "lag_2N");
  EXPECT_EQ(Slug("///"), "_");
  EXPECT_EQ(Slug("a.b"), "a.b");
}

}  // namespace
}  // namespace foreshard
