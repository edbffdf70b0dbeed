#include "tools/simulate/runner.h"

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include "gmock/gmock.h"
#include "tests/tools/simulate/study_harness.h"
#include "tools/simulate/study_results.h"

namespace foreshard {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kSearched[] = R"(
    rules { label: "dana_zero" } rules { label: "lwp" } rules { label: "multi_asgd" }
    workers: [2, 4] machines: ["equal", "unequal"] seeds: [1, 2] finalists: 2
    search { learning_rates: [0.01, 0.02, 0.04, 0.3] epochs: [1, 2] })";

class Observer : public StudyObserver {
 public:
  void Finished(const StudyRun& run, const SimulationResult&) override { finished.push_back(run.key); }
  void Failed(const StudyRun& run, const absl::Status&) override { failed.push_back(run.key); }
  void Searched(const Study&, size_t cell, const SearchOutcome& search) override {
    rates[cell] = search.learning_rate;
  }
  void Stale(const StudyRun& run, const std::string& why) override { stale.push_back(run.key); }
  void Show(const StudyFigures& figures) override { last = figures; }

  std::vector<std::string> finished, failed, stale;
  std::map<size_t, float> rates;
  StudyFigures last;
};

class RunnerTest : public StudyTest {
 protected:
  RunnerOptions Options(uint32_t jobs, const std::string& results = "results") {
    calls_ = 0;
    observer_ = Observer();
    return {.folder = Path(results),
            .jobs = jobs,
            .observer = &observer_,
            .simulate = [this](const SimulationOptions& options) -> absl::StatusOr<SimulationResult> {
              ++calls_;
              return FormulaResult(options);
            }};
  }
  std::string Results(const Study& study, const StudyOutcome& outcome) {
    const auto entries = StudyEntries(study, outcome.results, outcome.failed);
    return StudyResultsJson(study, entries).dump() + StudyCurvesCsv(study, entries) +
           StudySearchJson(study, outcome.results, outcome.failed).dump();
  }

  std::atomic<int> calls_ = 0;
  Observer observer_;
};

TEST_F(RunnerTest, RunsSearchAndFinalistsOnSeveralThreads) {
  const Study study = MustMake(kSearched);
  const auto outcome = RunStudy(study, Options(3));
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const StudyTotals totals = StudyPlan(study).Totals();
  EXPECT_EQ(outcome->results.size(), totals.search_runs + totals.full_runs);
  EXPECT_EQ(calls_, static_cast<int>(outcome->results.size()));
  EXPECT_EQ(outcome->figures.done_runs, outcome->figures.total_runs);
  EXPECT_DOUBLE_EQ(outcome->figures.part, 1);
  EXPECT_EQ(observer_.rates.size(), 12u);
  EXPECT_EQ(observer_.rates[0], 0.04f);  // the formula's best for dana_zero
  EXPECT_EQ(observer_.rates[4], 0.02f);
  EXPECT_FALSE(outcome->interrupted);
  EXPECT_THAT(outcome->failures, IsEmpty());
}

TEST_F(RunnerTest, ASecondTimeFindsAllDone) {
  const Study study = MustMake(kSearched);
  const auto first = RunStudy(study, Options(2));
  const auto second = RunStudy(study, Options(2));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(calls_, 0);
  EXPECT_EQ(second->figures.resumed_runs, second->figures.total_runs);
  EXPECT_EQ(Results(study, *first), Results(study, *second));
}

TEST_F(RunnerTest, ResultsAreTheSameForAnyNumberOfThreads) {
  const Study study = MustMake(kSearched);
  const auto one = RunStudy(study, Options(1, "one"));
  const auto four = RunStudy(study, Options(4, "four"));
  EXPECT_EQ(Results(study, *one), Results(study, *four));
}

TEST_F(RunnerTest, AnInterruptedStudyGoesOn) {
  const Study study = MustMake(kSearched);
  const auto whole = RunStudy(study, Options(2, "whole"));
  RunnerOptions options = Options(2);
  const auto plain = options.simulate;
  std::atomic<int> done = 0;
  // The runs under way when it is asked to end obey the stop flag.
  options.simulate = [&](const SimulationOptions& simulation) -> absl::StatusOr<SimulationResult> {
    if (done >= 20) {
      while (!simulation.stop->load()) std::this_thread::yield();
      return absl::CancelledError("interrupted");
    }
    ++done;
    return plain(simulation);
  };
  options.interrupted = [&] { return done >= 20; };
  const auto interrupted = RunStudy(study, options);
  ASSERT_TRUE(interrupted.ok()) << interrupted.status();
  EXPECT_TRUE(interrupted->interrupted);
  EXPECT_THAT(interrupted->failures, IsEmpty());
  const int before = static_cast<int>(interrupted->results.size());
  EXPECT_LT(before, static_cast<int>(whole->results.size()));

  const auto rest = RunStudy(study, Options(2));
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_EQ(rest->figures.resumed_runs, static_cast<uint64_t>(before));
  EXPECT_EQ(calls_, static_cast<int>(whole->results.size()) - before);
  EXPECT_EQ(Results(study, *rest), Results(study, *whole));
}

TEST_F(RunnerTest, AStaleOrDamagedFileIsRunAgain) {
  const std::string text = R"(rules { label: "dana_zero" } rules { label: "lwp" } seeds: [1, 2] )";
  ASSERT_TRUE(RunStudy(MustMake(text), Options(2)).ok());
  ASSERT_TRUE(
      WriteFileAtomically(Path("results/runs/full-lwp-n2-equal-s2.json"), "not JSON").ok());
  ASSERT_TRUE(RunStudy(MustMake(text), Options(2)).ok());
  EXPECT_EQ(calls_, 1);
  EXPECT_THAT(observer_.stale, ElementsAre("full-lwp-n2-equal-s2"));
  // Another setting for one variant: its runs alone.
  const Study changed = MustMake(R"(rules { label: "dana_zero" set: "update.momentum=0.8" }
                                    rules { label: "lwp" } seeds: [1, 2] )");
  ASSERT_TRUE(RunStudy(changed, Options(2)).ok());
  EXPECT_EQ(calls_, 2);
  EXPECT_THAT(observer_.stale, ElementsAre("full-dana_zero-n2-equal-s1", "full-dana_zero-n2-equal-s2"));
  // More seeds: only those.
  ASSERT_TRUE(RunStudy(MustMake(text + "seeds: 3"), Options(2)).ok());
  EXPECT_THAT(observer_.finished, Contains("full-lwp-n2-equal-s3"));
}

TEST_F(RunnerTest, AFailureIsNamedAndTheOthersRun) {
  const Study study = MustMake(R"(rules { label: "dana_zero" } rules { label: "lwp" } seeds: [1, 2])");
  RunnerOptions options = Options(2);
  const auto plain = options.simulate;
  options.simulate = [&](const SimulationOptions& simulation) -> absl::StatusOr<SimulationResult> {
    if (simulation.job.update().rule() == "lwp" && simulation.job.seed() == 2) {
      return absl::InternalError("the engine broke");
    }
    return plain(simulation);
  };
  const auto outcome = RunStudy(study, options);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->results.size(), 3u);
  EXPECT_THAT(outcome->failures,
              ElementsAre("lwp, 2 equal machines, seed 2: the engine broke"));
  EXPECT_TRUE(absl::IsInternal(outcome->first_failure));
  EXPECT_THAT(observer_.failed, ElementsAre("full-lwp-n2-equal-s2"));
  // It is tried again the next time.
  ASSERT_TRUE(RunStudy(study, Options(2)).ok());
  EXPECT_EQ(calls_, 1);
}

TEST_F(RunnerTest, ADivergedRunIsAResult) {
  const Study study =
      MustMake(R"(rules { label: "dana_zero" set: "schedule.learning_rate=0.5" })");
  const auto outcome = RunStudy(study, Options(1));
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(outcome->failures, IsEmpty());
  EXPECT_TRUE(outcome->results.at("full-dana_zero-n2-equal-s1").diverged);
}

TEST_F(RunnerTest, GivesTheEngineWhatTheStudySays) {
  const Study study = MustMake(R"(rules { label: "dana_zero" set: "evaluation.interval_epochs=2" }
      workers: 3 seeds: 8 network { latency_seconds: 0.25 worker_bytes_per_second: 100 }
      clock { batch_seconds: 3 variation: 0 })");
  RunnerOptions options = Options(1);
  std::mutex mutex;
  bool checked = false;
  options.simulate = [&](const SimulationOptions& simulation) -> absl::StatusOr<SimulationResult> {
    std::lock_guard lock(mutex);
    EXPECT_EQ(simulation.network.latency_seconds, 0.25);
    EXPECT_EQ(simulation.network.worker_bytes_per_second, 100);
    EXPECT_EQ(simulation.clock.workers(), 3u);
    EXPECT_EQ(simulation.clock.BatchSeconds(2, 5), 3);
    EXPECT_EQ(simulation.evaluation_interval_epochs, 2u);
    EXPECT_EQ(simulation.job.seed(), 8u);
    EXPECT_EQ(simulation.train->examples(), 40u);
    EXPECT_NE(simulation.test, nullptr);
    simulation.progress({20, 40, 12.5, 0.5});
    checked = true;
    return FormulaResult(simulation);
  };
  ASSERT_TRUE(RunStudy(study, options).ok());
  EXPECT_TRUE(checked);
}

TEST_F(RunnerTest, ShowsWhatRunsAndHowLongItTakes) {
  const Study study = MustMake(R"(rules { label: "dana_zero" } seeds: [1, 2])");
  RunnerOptions options = Options(1);
  const auto plain = options.simulate;
  std::atomic<bool> seen = false;
  class Watch : public Observer {
   public:
    explicit Watch(std::atomic<bool>* seen) : seen_(seen) {}
    void Show(const StudyFigures& figures) override {
      Observer::Show(figures);
      if (figures.running.empty() || figures.running[0].part != 0.25) return;
      // Its parts are set one by one.
      if (!(figures.running[0].accuracy == 0.75)) return;
      EXPECT_EQ(figures.running[0].name, "dana_zero, 2 equal machines, seed 1");
      EXPECT_DOUBLE_EQ(figures.part, 0.125);
      EXPECT_TRUE(figures.seconds_left.has_value());
      EXPECT_FALSE(figures.left_is_bound);
      *seen_ = true;
    }

   private:
    std::atomic<bool>* seen_;
  } watch(&seen);
  options.observer = &watch;
  options.simulate = [&](const SimulationOptions& simulation) -> absl::StatusOr<SimulationResult> {
    if (simulation.job.seed() == 1) {
      simulation.progress({10, 40, 1, 0.75});
      while (!seen) std::this_thread::yield();
    }
    return plain(simulation);
  };
  ASSERT_TRUE(RunStudy(study, options).ok());
  EXPECT_EQ(watch.last.done_runs, 2u);
}

TEST_F(RunnerTest, AFolderThatTakesNoFilesIsAnError) {
  ASSERT_TRUE(WriteFileAtomically(Path("file"), "x").ok());
  const Study study = MustMake(R"(rules { label: "dana_zero" })");
  EXPECT_FALSE(RunStudy(study, Options(1, "file")).ok());
  EXPECT_EQ(calls_, 0);
}

TEST_F(RunnerTest, AResultThatCannotBeKeptEndsTheStudy) {
  const Study study = MustMake(R"(rules { label: "dana_zero" } seeds: [1, 2, 3, 4, 5])");
  RunnerOptions options = Options(1);
  const auto plain = options.simulate;
  options.simulate = [&](const SimulationOptions& simulation) {
    if (calls_ == 1) std::filesystem::remove_all(Path("results/runs"));
    return plain(simulation);
  };
  const absl::Status status = RunStudy(study, options).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("results/runs/full-dana_zero"));
  EXPECT_LT(calls_, 5);
}

TEST_F(RunnerTest, AFolderInARunsPlaceFailsThatRunAlone) {
  const Study study = MustMake(R"(rules { label: "dana_zero" } seeds: [1, 2, 3])");
  const std::string path = Path("results/runs/full-dana_zero-n2-equal-s2.json");
  std::filesystem::create_directories(path);
  const auto outcome = RunStudy(study, Options(1));
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->results.size(), 2u);
  EXPECT_EQ(calls_, 2);  // nothing is computed that can't be kept
  ASSERT_EQ(outcome->failures.size(), 1u);
  EXPECT_THAT(outcome->failures[0], HasSubstr("s2.json is a folder"));
  EXPECT_EQ(outcome->figures.done_runs, 3u);
  std::filesystem::remove(path);
  EXPECT_EQ(RunStudy(study, Options(1))->results.size(), 3u);
}

TEST_F(RunnerTest, AChangedFileIsRunAgainThoughItParses) {
  const Study study = MustMake(R"(rules { label: "dana_zero" })");
  const auto first = RunStudy(study, Options(1));
  const std::string path = Path("results/runs/full-dana_zero-n2-equal-s1.json");
  std::string text = *ReadFile(path);
  const size_t at = text.find("\"final_accuracy\": 0.") + 20;
  text[at] = text[at] == '1' ? '2' : '1';
  ASSERT_TRUE(WriteFileAtomically(path, text).ok());
  const auto second = RunStudy(study, Options(1));
  EXPECT_EQ(calls_, 1);
  EXPECT_THAT(observer_.stale, ElementsAre("full-dana_zero-n2-equal-s1"));
  EXPECT_EQ(Results(study, *first), Results(study, *second));
}

TEST_F(RunnerTest, NoMoreThreadsThanRunsAndNoneThatCannotBe) {
  const Study study = MustMake(R"(rules { label: "dana_zero" } seeds: [1, 2, 3])");
  EXPECT_EQ(JobsOf(study, 0), 1u);
  EXPECT_EQ(JobsOf(study, 2), 2u);
  EXPECT_EQ(JobsOf(study, 4'000'000'000), 3u);
  const Study large = MustMake(R"(rules { label: "dana_zero" } rules { label: "lwp" }
      workers: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13] machines: ["equal", "unequal"]
      seeds: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])");
  EXPECT_EQ(JobsOf(large, 4'000'000'000), 256u);

  // With only one thread to be had, it goes on with one.
  RunnerOptions options = Options(3, "one");
  int asked = 0;
  options.start_thread = [&](std::function<void()> body) {
    if (++asked == 2) throw std::system_error(EAGAIN, std::generic_category());
    return std::thread(std::move(body));
  };
  const auto outcome = RunStudy(study, options);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->results.size(), 3u);
  EXPECT_EQ(asked, 2);
  // With none, it says so.
  options = Options(3, "none");
  options.start_thread = [&](std::function<void()>) -> std::thread {
    throw std::system_error(EAGAIN, std::generic_category());
  };
  const absl::Status status = RunStudy(study, options).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(calls_, 0);
}

TEST_F(RunnerTest, RoundsOfMoreWorkersThanBatchesAreRefusedBeforeAnythingRuns) {
  // 40 examples, one a batch.
  const Study study = MustMake(R"(rules { label: "dana_zero" }
      rules { label: "ssgd" workers: [2, 41] machines: "unequal" })");
  const absl::Status status = RunStudy(study, Options(2)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("variant 'ssgd', N = 41, unequal machines: "));
  EXPECT_THAT(status.message(), HasSubstr("an epoch has 40 batches, too few for 41"));
  EXPECT_EQ(calls_, 0);
}

TEST_F(RunnerTest, MissingDataAreSaidBeforeAnythingRuns) {
  const Study study = MustMake(R"(rules { label: "dana_zero" } rules { label: "files"
      set: "update.rule=lwp" set: "model.name=mlp" set: "model.elements=" set: "data.examples="
      set: "data.format=idx" set: "data.classes=4" set: "data.train_images=a"
      set: "data.train_labels=b" set: "data.test_images=c" set: "data.test_labels=d" })");
  const auto outcome = RunStudy(study, Options(1));
  EXPECT_TRUE(absl::IsNotFound(outcome.status())) << outcome.status();
  EXPECT_EQ(calls_, 0);
}

}  // namespace
}  // namespace foreshard
