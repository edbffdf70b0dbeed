#include "tools/simulate/study_plan.h"

#include <limits>

#include "gmock/gmock.h"
#include "tests/tools/simulate/study_harness.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::vector<std::string> Keys(const std::vector<StudyRun>& runs) {
  std::vector<std::string> keys;
  for (const StudyRun& run : runs) keys.push_back(run.key);
  return keys;
}

std::vector<float> Rates(const std::vector<SearchCandidate>& rung) {
  std::vector<float> rates;
  for (const SearchCandidate& candidate : rung) rates.push_back(candidate.learning_rate);
  return rates;
}

class StudyPlanTest : public StudyTest {
 protected:
  void Done(const StudyRun& run, double accuracy, bool diverged = false, double loss = 1) {
    results_[run.key] = {.final_loss = loss, .final_accuracy = accuracy, .diverged = diverged};
  }
  RunResults results_;
};

TEST_F(StudyPlanTest, WithoutASearchEveryRunIsReadyFirstSeedsFirst) {
  const Study study = MustMake(R"(rules { label: "dana_zero" } rules { label: "lwp" }
      rules { label: "long" set: "update.rule=lwp" set: "training.epochs=9" } seeds: [5, 2])");
  const StudyPlan plan(study);
  EXPECT_THAT(Keys(plan.Ready({}, {})),
              ElementsAre("full-long-n2-equal-s5", "full-long-n2-equal-s2",
                          "full-dana_zero-n2-equal-s5", "full-lwp-n2-equal-s5",
                          "full-dana_zero-n2-equal-s2", "full-lwp-n2-equal-s2"));
  Done(study.FinalRun(0, 5, 0), 0.5);
  EXPECT_EQ(plan.Ready(results_, {"full-lwp-n2-equal-s2"}).size(), 4u);
  EXPECT_EQ(plan.Totals().full_runs, 6u);
  EXPECT_EQ(plan.Totals().full_epochs, 2u * (4 + 4 + 9));
  EXPECT_EQ(plan.Totals().search_runs, 0u);
}

TEST_F(StudyPlanTest, HalvesTheCandidatesUntilTheBestIsLeft) {
  const Study study = MustMake(R"(rules { label: "dana_zero" }
      search { learning_rates: [0.4, 0.1, 0.2, 0.05, 0.8] epochs: [1, 2, 4] })");
  const StudyPlan plan(study);
  EXPECT_EQ(plan.Totals().search_runs, 5u + 3 + 2);
  EXPECT_EQ(plan.Totals().search_epochs, 5u + 3 * 2 + 2 * 4);
  std::vector<StudyRun> ready = plan.Ready(results_, {});
  ASSERT_EQ(ready.size(), 5u);
  EXPECT_EQ(ready[0].rung, 0);
  EXPECT_EQ(ready[0].job.training().epochs(), 1u);

  Done(study.SearchRun(0, 0, 0.05f), 0.60);
  Done(study.SearchRun(0, 0, 0.1f), 0.80);
  Done(study.SearchRun(0, 0, 0.2f), 0.79);
  Done(study.SearchRun(0, 0, 0.4f), 0.73);
  // Nothing is decided before the whole rung is there.
  EXPECT_EQ(plan.Ready(results_, {}).size(), 1u);
  EXPECT_FALSE(plan.Search(0, results_).largest_stable.has_value());
  Done(study.SearchRun(0, 0, 0.8f), 0.95, true);  // diverged: what it reached counts for nothing
  SearchOutcome search = plan.Search(0, results_);
  ASSERT_EQ(search.rungs.size(), 2u);
  EXPECT_THAT(Rates(search.rungs[1]), ElementsAre(0.1f, 0.2f, 0.4f));
  EXPECT_EQ(search.largest_stable, 0.4f);  // 0.73 is more than 0.9 of 0.80
  EXPECT_FALSE(search.complete);

  Done(study.SearchRun(0, 1, 0.1f), 0.81);
  Done(study.SearchRun(0, 1, 0.2f), 0.84);
  Done(study.SearchRun(0, 1, 0.4f), 0.82);
  Done(study.SearchRun(0, 2, 0.2f), 0.85);
  Done(study.SearchRun(0, 2, 0.4f), 0.87);
  search = plan.Search(0, results_);
  EXPECT_TRUE(search.complete);
  EXPECT_EQ(search.learning_rate, 0.4f);
  EXPECT_EQ(search.accuracy, 0.87);
  ready = plan.Ready(results_, {});
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].key, "full-dana_zero-n2-equal-s1");
  EXPECT_EQ(ready[0].job.schedule().learning_rate(), 0.4f);
}

TEST_F(StudyPlanTest, TheLargestStableRateNeedsNineTenthsOfTheBest) {
  const Study study = MustMake(R"(rules { label: "dana_zero" }
      search { learning_rates: [0.1, 0.2, 0.4] epochs: 1 })");
  const StudyPlan plan(study);
  Done(study.SearchRun(0, 0, 0.1f), 0.80);
  Done(study.SearchRun(0, 0, 0.2f), 0.72);
  Done(study.SearchRun(0, 0, 0.4f), 0.71);
  EXPECT_EQ(plan.Search(0, results_).largest_stable, 0.2f);
}

TEST_F(StudyPlanTest, EqualAccuracyIsDecidedByLossThenByTheSmallerRate) {
  const Study study = MustMake(R"(rules { label: "dana_zero" }
      search { learning_rates: [0.1, 0.2, 0.4] epochs: 1 })");
  const StudyPlan plan(study);
  Done(study.SearchRun(0, 0, 0.1f), 0.8, false, 0.5);
  Done(study.SearchRun(0, 0, 0.2f), 0.8, false, 0.4);
  Done(study.SearchRun(0, 0, 0.4f), 0.8, false, 0.4);
  EXPECT_EQ(plan.Search(0, results_).learning_rate, 0.2f);
}

TEST_F(StudyPlanTest, WhereAllDivergeThereIsNoStableRateAndTheSmallestIsTaken) {
  const Study study = MustMake(R"(rules { label: "dana_zero" }
      search { learning_rates: [0.1, 0.2] epochs: 1 })");
  const StudyPlan plan(study);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Done(study.SearchRun(0, 0, 0.1f), 0.1, true, nan);
  Done(study.SearchRun(0, 0, 0.2f), 0.1, true, nan);
  const SearchOutcome search = plan.Search(0, results_);
  EXPECT_TRUE(search.complete);
  EXPECT_TRUE(search.diverged);
  EXPECT_FALSE(search.largest_stable.has_value());
  EXPECT_EQ(search.learning_rate, 0.1f);
}

TEST_F(StudyPlanTest, OnlyFinalistsAndReferencesGetFullLength) {
  const Study study = MustMake(R"(
      rules { label: "dana_zero" } rules { label: "lwp" } rules { label: "nag_asgd" }
      rules { label: "ssgd" reference: true }
      search { learning_rates: [0.1] epochs: 1 } finalists: 1 seeds: [1, 2])");
  const StudyPlan plan(study);
  EXPECT_EQ(plan.Totals().full_runs, 4u);
  Done(study.SearchRun(0, 0, 0.1f), 0.7);
  Done(study.SearchRun(1, 0, 0.1f), 0.8);
  EXPECT_THAT(plan.Finalists(results_, {}), IsEmpty());
  Done(study.SearchRun(3, 0, 0.1f), 0.1);
  // A reference does not wait for the others.
  EXPECT_THAT(plan.Finalists(results_, {}), ElementsAre(3));
  Done(study.SearchRun(2, 0, 0.1f), 0.9, true);
  EXPECT_THAT(plan.Finalists(results_, {}), ElementsAre(1, 3));
  EXPECT_EQ(plan.FullRuns(results_, {}).size(), 4u);
}

TEST_F(StudyPlanTest, NobodyWaitsForACellWhoseSearchFailed) {
  const Study study = MustMake(R"(
      rules { label: "dana_zero" } rules { label: "lwp" } rules { label: "nag_asgd" }
      search { learning_rates: [0.1, 0.2] epochs: [1, 2] keep: 1 } finalists: 1)");
  const StudyPlan plan(study);
  for (size_t cell : {0, 1}) {
    for (size_t rung : {0, 1}) {
      for (float rate : {0.1f, 0.2f}) Done(study.SearchRun(cell, rung, rate), 0.5 + 0.1 * cell);
    }
  }
  Done(study.SearchRun(2, 0, 0.1f), 0.9);
  const std::set<std::string> failed = {study.SearchKey(2, 0, 0.2f)};
  EXPECT_THAT(Keys(plan.Ready(results_, failed)), ElementsAre("full-lwp-n2-equal-s1"));
}

TEST_F(StudyPlanTest, VariantsMayHaveTheirOwnCandidates) {
  const Study study = MustMake(R"(rules { label: "dana_zero" learning_rates: [3, 2] }
      rules { label: "lwp" } search { learning_rates: [0.1] epochs: 1 })");
  EXPECT_THAT(study.LearningRates(0), ElementsAre(2.0f, 3.0f));
  EXPECT_THAT(study.LearningRates(1), ElementsAre(0.1f));
  EXPECT_EQ(StudyPlan(study).Totals().search_runs, 3u);
}

}  // namespace
}  // namespace foreshard
