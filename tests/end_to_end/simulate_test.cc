// `foreshard simulate` as a user types it, with real gradients on a tiny data set.
#include <signal.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/end_to_end/job_folder.h"
#include "tools/files.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class SimulateTest : public EndToEndTest {
 protected:
  // A study beside the job; its variants are added to.
  std::string WriteStudy(const std::string& text, const std::vector<std::string>& overrides = {}) {
    WriteJob(overrides);
    const std::string path = Path("study.textproto");
    EXPECT_TRUE(WriteFileAtomically(path, absl::StrCat("name: \"tiny\" job: \"job.textproto\"\n", text)).ok());
    return path;
  }
  Ended Simulate(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "simulate");
    return RunForeshard(arguments);
  }
  std::string Content(const std::string& name) { return ReadFile(Path(name)).value_or("missing " + name); }
};

constexpr char kStudy[] = R"(
rules { label: "one" set: "update.rule=nag_asgd" workers: 1 }
rules { label: "dana_slim" }
rules { label: "dana_ga + ramp" set: "update.rule=dana_ga" set: "schedule.ramp_epochs=1" }
rules { label: "plain" set: "update.rule=asgd" set: "update.momentum=" learning_rates: [0.1] }
rules { label: "ssgd" reference: true }
workers: [4]
machines: ["equal", "unequal"]
seeds: [1, 2]
baseline: "one"
search { learning_rates: [0.01, 0.04] epochs: [1, 2] }
finalists: 2
)";

TEST_F(SimulateTest, AStudyLeavesAllOfItsFilesAndTheSameOnesEveryTime) {
  const std::string study = WriteStudy(kStudy);
  const Ended list = Simulate({study, "--list"});
  EXPECT_EQ(list.status, 0) << list.output;
  EXPECT_THAT(list.output, HasSubstr("dana_ga + ramp"));
  EXPECT_THAT(list.output, HasSubstr("16 runs of full length"));

  const Ended ended = Simulate({study, "--results", Path("a"), "--jobs", "2"});
  ASSERT_EQ(ended.status, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("N = 4, unequal machines"));
  const nlohmann::json results = Results("a");
  ASSERT_EQ(results.size(), 16u);
  for (const nlohmann::json& run : results) {
    EXPECT_FALSE(run["diverged"].get<bool>()) << run;
    // Four separable classes.
    EXPECT_GT(run["final_accuracy"].get<double>(), 0.5) << run;
    EXPECT_GE(run["best_accuracy"], run["final_accuracy"]);
    const double workers = run["workers"].get<double>();
    const bool waits = run["rule"] == "ssgd" || workers == 1;
    EXPECT_EQ(run["lag_mean"].get<double>() > 0.5, !waits) << run;
    EXPECT_GT(run["virtual_seconds"].get<double>(), 3 * 512 / 16 / workers * 0.2);
    EXPECT_FALSE(run["points_lost"].is_null());
    if (run["rule"] == "ssgd") {
      EXPECT_NEAR(run["speedup_over_synchronous"].get<double>(), 1, 0.02);
    }
  }
  EXPECT_THAT(Content("a/report.html"), HasSubstr("</html>"));
  EXPECT_THAT(Content("a/charts/accuracy-n4-equal.svg"), HasSubstr("</svg>"));
  EXPECT_THAT(Content("a/search.json"), HasSubstr("\"largest_stable_rate\": 0.04"));
  EXPECT_THAT(Content("a/timing.json"), HasSubstr("\"overhead\""));
  EXPECT_THAT(Content("a/study.textproto"), HasSubstr("finalists: 2"));

  // In another folder, one run after another.
  ASSERT_EQ(Simulate({study, "--results", Path("b"), "--jobs", "1"}).status, 0);
  // And where all is done already.
  const Ended again = Simulate({study, "--results", Path("a")});
  EXPECT_EQ(again.status, 0) << again.output;
  EXPECT_THAT(again.output, HasSubstr("of them earlier"));
  for (const char* name : {"results.json", "results.csv", "curves.csv", "search.json", "report.html",
                           "study.textproto"}) {
    EXPECT_EQ(Content(absl::StrCat("a/", name)), Content(absl::StrCat("b/", name))) << name;
  }
}

TEST_F(SimulateTest, AnInterruptedStudyKeepsWhatItHasAndGoesOn) {
  const std::string study = WriteStudy(R"(
      rules { label: "endless" set: "update.rule=asgd" set: "update.momentum="
              set: "training.epochs=100000" set: "evaluation.interval_epochs=100000" }
      rules { label: "dana_slim" } workers: 4 seeds: [1, 2])");
  std::unique_ptr<Process> process =
      Foreshard({"simulate", study, "--results", Path("results"), "--jobs", "3"});
  ASSERT_NE(process, nullptr);
  ASSERT_TRUE(WaitUntil([&] {
    const std::string log = Content("command.log");
    return absl::StrContains(log, "dana_slim, 4 equal machines, seed 1: accuracy") &&
           absl::StrContains(log, "dana_slim, 4 equal machines, seed 2: accuracy");
  })) << Content("command.log");
  // Somebody else's try meanwhile.
  const Ended other = Simulate({study, "--results", Path("results")});
  EXPECT_EQ(other.status, 1);
  EXPECT_THAT(other.output, HasSubstr("in use by another run"));

  process->Signal(SIGINT);
  const Ended ended = Finish(*process);
  EXPECT_EQ(ended.status, 130) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("the same command goes on from here"));
  EXPECT_EQ(Results("results").size(), 2u);
  EXPECT_THAT(Content("results/report.html"), HasSubstr("Not complete: 2 of 4 runs"));

  const Ended rest = Simulate({study, "--results", Path("results"), "--rule", "dana_slim"});
  EXPECT_EQ(rest.status, 0) << rest.output;
  EXPECT_THAT(rest.output, HasSubstr("2 of 2 runs done, 2 of them earlier"));
}

TEST_F(SimulateTest, ARunThatDivergesIsAResult) {
  const std::string study = WriteStudy(R"(
      rules { label: "dana_slim" set: "schedule.learning_rate=1e30" } workers: 2 seeds: 1)");
  const Ended ended = Simulate({study, "--results", Path("results")});
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("diverged in epoch"));
  const nlohmann::json run = Results("results")[0];
  EXPECT_EQ(run["diverged"], true);
  EXPECT_LT(run["diverged_epoch"].get<double>(), 3);
  EXPECT_DOUBLE_EQ(run["final_accuracy"].get<double>(), 0.25);
}

TEST_F(SimulateTest, OneJobNeedsNoStudy) {
  const std::string job = WriteJob({"seed=5"});
  const Ended ended = Simulate({"--job", job, "--workers", "3", "--machines", "unequal", "--set",
                                "update.rule=dana_zero", "--set", "seed=6", "--results",
                                Path("results")});
  ASSERT_EQ(ended.status, 0) << ended.output;
  const nlohmann::json results = Results("results");
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0]["rule"], "dana_zero");
  EXPECT_EQ(results[0]["workers"], 3);
  EXPECT_EQ(results[0]["machines"], "unequal");
  EXPECT_EQ(results[0]["seed"], 6);
  EXPECT_GT(results[0]["final_accuracy"].get<double>(), 0.5);

  ASSERT_TRUE(WriteFileAtomically(Path("t.csv"), "worker,step,seconds\n0,0,1\n1,0,4\n").ok());
  const Ended traced = Simulate({"--job", job, "--trace", Path("t.csv"), "--results", Path("traced")});
  ASSERT_EQ(traced.status, 0) << traced.output;
  const nlohmann::json run = Results("traced")[0];
  EXPECT_EQ(run["machines"], "trace");
  // Worker 1 takes four times as long, so it does a fifth of the 96 batches.
  EXPECT_NEAR(run["worker_batches"][1].get<double>(), 96 / 5.0, 1.5);
}

TEST_F(SimulateTest, BadInputIsNamedWithStatus2) {
  const std::string good = R"(rules { label: "dana_slim" } workers: 2 seeds: 1 )";
  const std::string study = WriteStudy(good);
  const auto expect = [&](const std::vector<std::string>& arguments, const std::string& message) {
    const Ended ended = Simulate(arguments);
    EXPECT_EQ(ended.status, 2) << message << "\n" << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(message));
    EXPECT_THAT(ended.output, Not(HasSubstr("terminate")));
  };
  expect({}, "give a study");
  expect({study, "--job", Path("job.textproto")}, "give either a study or --job");
  expect({study, "--machines", "unequal"}, "--machines and --trace belong to --job");
  expect({study, "--rule", "x"}, "--rule: 'x'");
  expect({study, "--workers", "3"}, "--workers: 3");
  expect({study, "--workers", "x"}, "x");
  expect({study, "--jobs", "0"}, "--jobs");
  expect({study, "--set", "training.epochs=0"}, "training.epochs: 0");
  expect({"--job", Path("job.textproto"), "--workers", "0"}, "workers: 0");
  expect({"--job", Path("none.textproto")}, "none.textproto");
  expect({Path("none.textproto")}, "cannot read the study file");
  WriteStudy(good + R"(rules { label: "x" set: "update.rule=unheard_of" })");
  expect({study}, "update.rule: 'unheard_of'");
  WriteStudy(R"(rules { label: "dana_slim" } workers: 0 seeds: 1)");
  expect({study}, "workers: 0: give whole numbers");
  WriteStudy(good + R"(machines: "trace" trace: "t.csv")");
  ASSERT_TRUE(WriteFileAtomically(Path("t.csv"), "worker,step,seconds\n0,0,1\n0,2,2\n1,0,4\n").ok());
  expect({study}, "t.csv");
  WriteStudy("rule { label: 3 }");
  expect({study}, "Known fields: name, job, set, rules");
  EXPECT_FALSE(std::filesystem::exists("results/tiny"));  // nothing was begun
}

}  // namespace
}  // namespace foreshard
