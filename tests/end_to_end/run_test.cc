// `foreshard run` from the job to the results folder, with real daemons.
#include <signal.h>
#include <sys/mount.h>

#include <filesystem>
#include <ostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/end_to_end/job_folder.h"
#include "tools/files.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class RunTest : public EndToEndTest {
 protected:
  std::vector<std::string> RunArguments(const std::string& job) {
    return {"run", "--job", job, "--results", Path("results"), "--device", "cpu"};
  }
  // The log of a child of the run.
  std::string ChildLog(const std::string& name) {
    return ReadFile(Path("results/logs/" + name + ".log")).value_or("");
  }
  // The process id of a daemon of the run; 0 when it is not there.
  int64_t ChildPid(const std::string& name) {
    const std::string flag = absl::StartsWith(name, "server")
                                 ? absl::StrCat("--ready-file=", Path("results/logs/"), name, ".")
                                 : absl::StrCat("--name=", name);
    for (int64_t pid : ProcessesWith(flag)) {
      if (absl::StrContains(CommandLine(pid), folder_)) return pid;
    }
    return 0;
  }
  // Addresses of the run's two servers, as --servers takes them.
  std::string ServersOfTheRun() {
    std::string servers;
    for (const char* name : {"server-0", "server-1"}) {
      absl::StatusOr<ReadyFile> ready =
          ReadReadyFile(Path(absl::StrCat("results/logs/", name, ".ready.json")));
      EXPECT_TRUE(ready.ok()) << ready.status();
      absl::StrAppend(&servers, servers.empty() ? "" : ",", ready.ok() ? ready->address : "");
    }
    return servers;
  }
  // An endless job, whose run goes on until something ends it.
  std::string EndlessJob() {
    return WriteJob({"training.epochs=100000", "evaluation.interval_epochs=100000"});
  }
  // Waits until the run has trained a little.
  bool IsTraining() {
    return WaitUntil([&] {
      return absl::StrContains(ReadFile(Path("command.log")).value_or(""), "epoch ") &&
             absl::StrContains(ChildLog("worker-0"), "training as worker") &&
             absl::StrContains(ChildLog("worker-1"), "training as worker");
    });
  }
};

// A disk of little room, where we may mount one.
class SmallDisk {
 public:
  SmallDisk(std::string path, const char* size) : path_(std::move(path)) {
    std::filesystem::create_directories(path_);
    mounted_ = mount("tmpfs", path_.c_str(), "tmpfs", 0, size) == 0;
  }
  ~SmallDisk() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }

 private:
  std::string path_;
  bool mounted_;
};

TEST_F(RunTest, TrainsAndWritesResultsWithEveryField) {
  const Ended ended = RunForeshard(RunArguments(WriteJob()));
  ASSERT_EQ(ended.status, 0) << ended.output << ChildLog("worker-0") << ChildLog("server-0");
  EXPECT_THAT(ended.output, HasSubstr("quadrants is trained: 3 of 3 epochs"));

  const nlohmann::json results = Results("results");
  EXPECT_EQ(results["job"], "quadrants");
  EXPECT_EQ(results["completed"], true);
  EXPECT_GT(results["seconds"].get<double>(), 0);
  EXPECT_EQ(results["epochs"], 3);
  EXPECT_EQ(results["updates"], 3 * 512 / 16);
  EXPECT_EQ(results["skipped_batches"], 0);
  EXPECT_EQ(results["examples"], 3 * 512);
  // Four separable classes: far from the quarter that chance gives.
  EXPECT_GT(results["test_accuracy"].get<double>(), 0.9);
  EXPECT_LT(results["test_loss"].get<double>(), 1.0);
  EXPECT_GE(results["staleness"]["mean"].get<double>(), 0);
  EXPECT_TRUE(results["staleness"]["p50"].is_number());
  EXPECT_GE(results["staleness"]["max"], results["staleness"]["p99"]);
  EXPECT_GE(results["gap"]["mean"].get<double>(), 0);
  uint64_t segment_pushes = 0;
  for (const auto& segment : results["segments"]) {
    if (!segment["statistic"].get<bool>()) segment_pushes += segment["pushes"].get<uint64_t>();
  }
  EXPECT_EQ(segment_pushes, results["pushes"]["applied"].get<uint64_t>());
  // Blocks of 512 elements: 64 bytes of bits and 4 of scale for 2048, and headers.
  EXPECT_GT(results["push_uncompressed_bytes"].get<double>(),
            10 * results["push_bytes"].get<double>());
  EXPECT_GT(results["pull_bytes"].get<uint64_t>(), 0u);
  EXPECT_GT(results["pull_uncompressed_bytes"].get<uint64_t>(), 0u);
  // One of them may have been quick enough to do all of it.
  ASSERT_GE(results["workers"].size(), 1u);
  uint64_t examples = 0;
  for (const nlohmann::json& worker : results["workers"]) {
    EXPECT_TRUE(worker["id"].is_number_unsigned());
    EXPECT_THAT(worker["device"].get<std::string>(), HasSubstr("cpu"));
    examples += worker["examples"].get<uint64_t>();
  }
  EXPECT_EQ(examples, 3u * 512);

  EXPECT_THAT(ReadFile(Path("results/report.html")).value_or(""), HasSubstr("</html>"));
  EXPECT_THAT(ReadFile(Path("results/job.textproto")).value_or(""), HasSubstr("dana_slim"));
  EXPECT_THAT(ProcessesWith(folder_), IsEmpty());
}

TEST_F(RunTest, FlagsOverrideTheJob) {
  std::vector<std::string> arguments = RunArguments(WriteJob());
  for (const char* argument : {"--servers", "1", "--workers", "3", "--set", "training.epochs=1",
                               "--slowdown", "2=1.5", "--no-evaluator"}) {
    arguments.push_back(argument);
  }
  const Ended ended = RunForeshard(arguments);
  ASSERT_EQ(ended.status, 0) << ended.output;
  const nlohmann::json results = Results("results");
  EXPECT_EQ(results["epochs"], 1);
  EXPECT_EQ(results["workers_started"], 3);
  EXPECT_EQ(results["servers"], 1);
  EXPECT_TRUE(results["test_accuracy"].is_null());
  EXPECT_TRUE(std::filesystem::exists(Path("results/logs/worker-2.log")));
  EXPECT_FALSE(std::filesystem::exists(Path("results/logs/server-1.log")));
  EXPECT_FALSE(std::filesystem::exists(Path("results/logs/evaluator.log")));
}

TEST_F(RunTest, BadJobsEndWithTwoAndNameTheField) {
  const std::string job = WriteJob();
  struct Case {
    const char* override;
    const char* field;
  };
  for (const Case& bad : {Case{"update.rule=dana", "update.rule"},
                          Case{"update.momentum=", "update.momentum"},
                          Case{"training.epochs=-1", "training.epochs"},
                          Case{"training.epoch=1", "training.epoch"},
                          Case{"compression.push=two_bit", "compression.push"}}) {
    std::vector<std::string> arguments = RunArguments(job);
    arguments.insert(arguments.end(), {"--set", bad.override});
    const Ended ended = RunForeshard(arguments);
    EXPECT_EQ(ended.status, 2) << bad.override << "\n" << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(bad.field));
  }
  EXPECT_FALSE(std::filesystem::exists(Path("results")));
}

TEST_F(RunTest, BadCommandLinesEndWithTwo) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {},
           {"train"},
           {"run", "--worker", "3"},
           {"run", "--job", Path("missing.textproto")},
           {"run", "--job", WriteJob(), "--slowdown", "5=2"},
           {"run", "--job", WriteJob(), "--workers", "0"},
           {"run", "--job", WriteJob(), "--workers", "-3"},
           {"status"},
           {"status", "--servers", "nowhere"},
           {"bench", "everything"}}) {
    const Ended ended = RunForeshard(arguments);
    EXPECT_EQ(ended.status, 2) << ended.output;
    EXPECT_THAT(ended.output, Not(IsEmpty()));
  }
}

TEST_F(RunTest, CountsOfNothingAreRefusedInAShortSentence) {
  for (const char* flag : {"--workers", "--servers"}) {
    const Ended ended = RunForeshard({"run", "--job", WriteJob(), flag, "0"});
    EXPECT_EQ(ended.status, 2) << ended.output;
    EXPECT_THAT(ended.output,
                HasSubstr(absl::StrCat(flag, ": '0': give a whole number of 1 or more")));
    EXPECT_LT(ended.output.size(), 200u);
  }
}

TEST_F(RunTest, ARunWhoseGradientsAreNotFiniteEndsWithOne) {
  const Ended ended = RunForeshard(RunArguments(WriteJob({"schedule.learning_rate=1e30"})));
  EXPECT_EQ(ended.status, 1) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("quadrants has diverged"));
  const nlohmann::json results = Results("results");
  EXPECT_EQ(results["completed"], true);
  const uint64_t skipped = results["skipped_batches"];
  EXPECT_GT(skipped, 48u);
  EXPECT_EQ(results["updates"].get<uint64_t>() + skipped, 96u);
  EXPECT_EQ(results["examples"], 3 * 512);
  const std::string diverged =
      absl::StrCat("training diverged: ", skipped, " of 96 gradients were not finite");
  EXPECT_EQ(results["ended"], diverged);
  EXPECT_THAT(ended.output,
              HasSubstr(diverged +
                        "; lower schedule.learning_rate or clip (training.clip_norm)\n"));
  EXPECT_THAT(ProcessesWith(folder_), IsEmpty());
}

TEST_F(RunTest, ASecondRunIntoTheSameFolderEndsWithOneAndDisturbsNothing) {
  std::unique_ptr<Process> run = Foreshard(RunArguments(EndlessJob()));
  ASSERT_NE(run, nullptr);
  ASSERT_TRUE(IsTraining());
  std::unique_ptr<Process> second =
      Foreshard(RunArguments(Path("job.textproto")), "second.log");
  ASSERT_NE(second, nullptr);
  const Ended refused = Finish(*second, "second.log");
  EXPECT_EQ(refused.status, 1) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("results folder " + Path("results") + " is in use"));
  EXPECT_EQ(ProcessesWith(Path("results/logs")).size(), 2u);  // the servers of the first
  run->Signal(SIGINT);
  EXPECT_EQ(Finish(*run).status, 130);
  EXPECT_EQ(Results("results")["ended"], "interrupted");
}

TEST_F(RunTest, MissingAndDamagedDataEndWithTwoAndNameTheFile) {
  const std::string job = EndlessJob();
  for (const char* name : {"train-images", "test-labels"}) {
    WriteDataSet();
    std::filesystem::remove(Path(name));
    Ended ended = RunForeshard(RunArguments(job));
    EXPECT_EQ(ended.status, 2) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(Path(name)));
    EXPECT_EQ(Results("results")["completed"], false);

    WriteDataSet();
    const std::string whole = ReadFile(Path(name)).value();
    ASSERT_TRUE(WriteFileAtomically(Path(name), "no IDX file" + whole.substr(11)).ok());
    ended = RunForeshard(RunArguments(job));
    EXPECT_EQ(ended.status, 2) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(Path(name)));
  }
  EXPECT_THAT(ProcessesWith(folder_), IsEmpty());
}

TEST_F(RunTest, AResultsFolderThatCannotBeUsedEndsWithOne) {
  std::vector<std::string> arguments = RunArguments(WriteJob());
  arguments[4] = Path("job.textproto") + "/results";  // below a file
  const Ended ended = RunForeshard(arguments);
  EXPECT_EQ(ended.status, 1) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr(arguments[4]));
  EXPECT_THAT(ended.output, HasSubstr("--results"));
}

TEST_F(RunTest, AFullDiskAtTheStartEndsWithOne) {
  const SmallDisk small(Path("disk"), "size=64k");
  if (!small.mounted()) GTEST_SKIP() << "needs the right to mount a small tmpfs";
  std::vector<std::string> arguments = RunArguments(WriteJob());
  arguments[4] = Path("disk/results");
  const Ended ended = RunForeshard(arguments);
  EXPECT_EQ(ended.status, 1) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("No space left on device"));
  EXPECT_THAT(ended.output, HasSubstr("--results"));
}

TEST_F(RunTest, ADiskThatFillsUpDuringTheRunEndsWithOneAndNoHalfFile) {
  const std::string job = EndlessJob();
  const std::string disk = Path("disk");
  const SmallDisk small(disk, "size=2m");
  if (!small.mounted()) GTEST_SKIP() << "needs the right to mount a small tmpfs";
  std::vector<std::string> arguments = RunArguments(job);
  arguments[4] = disk + "/results";
  // What an earlier run has left must not be taken for the results of this one.
  std::filesystem::create_directories(disk + "/results");
  ASSERT_TRUE(WriteFileAtomically(disk + "/results/results.json", "{}").ok());
  std::unique_ptr<Process> run = Foreshard(arguments);
  ASSERT_NE(run, nullptr);
  // Once a worker has begun, something else takes all that is left.
  EXPECT_TRUE(WaitUntil([&] {
    return absl::StrContains(ReadFile(disk + "/results/logs/worker-0.log").value_or(""), "] ");
  }));
  EXPECT_FALSE(WriteFileAtomically(disk + "/ballast", std::string(4 << 20, 'x')).ok());
  for (size_t bytes : {1 << 20, 1 << 16, 1 << 12}) {
    for (int i = 0; i < 32; ++i) {
      if (!WriteFileAtomically(absl::StrCat(disk, "/ballast", bytes, ".", i),
                               std::string(bytes, 'x'))
               .ok()) {
        break;
      }
    }
  }
  run->Signal(SIGINT);
  const Ended ended = Finish(*run);
  EXPECT_EQ(ended.status, 1) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("the results could not be written"));
  EXPECT_THAT(ended.output, HasSubstr("No space left on device"));
  EXPECT_THAT(ended.output, HasSubstr("quadrants was not completed"));  // the summary is there
  EXPECT_FALSE(std::filesystem::exists(disk + "/results/results.json"));
  EXPECT_FALSE(std::filesystem::exists(disk + "/results/results.json.part"));
}

TEST_F(RunTest, CtrlCEndsEverythingWith130AndStillWritesResults) {
  std::unique_ptr<Process> run = Foreshard(RunArguments(EndlessJob()));
  ASSERT_NE(run, nullptr);
  ASSERT_TRUE(IsTraining()) << Finish(*run).output;
  EXPECT_GE(ProcessesWith(Path("results")).size(), 6u);  // the run, 2 servers, 2 workers, evaluator
  run->Signal(SIGINT);
  const Ended ended = Finish(*run);
  EXPECT_EQ(ended.status, 130) << ended.output;
  EXPECT_THAT(ProcessesWith(Path("results")), IsEmpty());
  const nlohmann::json results = Results("results");
  EXPECT_EQ(results["completed"], false);
  EXPECT_EQ(results["ended"], "interrupted");
  EXPECT_EQ(results["workers"].size(), 2u);
}

TEST_F(RunTest, CtrlCWhileServersStartEndsEverythingToo) {
  std::unique_ptr<Process> run = Foreshard(RunArguments(EndlessJob()));
  ASSERT_NE(run, nullptr);
  ASSERT_TRUE(WaitUntil([&] { return ChildPid("server-0") != 0; }));
  run->Signal(SIGTERM);
  EXPECT_EQ(Finish(*run).status, 130);
  EXPECT_THAT(ProcessesWith(Path("results")), IsEmpty());
}

TEST_F(RunTest, NothingIsLeftRunningWhenTheLauncherIsKilled) {
  std::unique_ptr<Process> run = Foreshard(RunArguments(EndlessJob()));
  ASSERT_NE(run, nullptr);
  ASSERT_TRUE(IsTraining());
  kill(run->pid(), SIGKILL);
  EXPECT_EQ(Finish(*run).status, -1);
  EXPECT_TRUE(WaitUntil([&] { return ProcessesWith(Path("results")).empty(); }));
}

TEST_F(RunTest, AKilledWorkerIsNamedAndTrainingGoesOn) {
  // Enough steps that the kill falls into them.
  std::unique_ptr<Process> run = Foreshard(RunArguments(WriteJob({"training.epochs=200", "timeouts.lease_seconds=3"})));
  ASSERT_NE(run, nullptr);
  ASSERT_TRUE(IsTraining());
  const int64_t pid = ChildPid("worker-1");
  ASSERT_NE(pid, 0);
  kill(pid, SIGKILL);
  const Ended ended = Finish(*run);
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("worker-1 was killed by signal 9 (Killed); log: " +
                                      Path("results/logs/worker-1.log")));
  EXPECT_THAT(ended.output, HasSubstr("training goes on with 1 worker"));
  const nlohmann::json results = Results("results");
  EXPECT_EQ(results["completed"], true);
  EXPECT_EQ(results["epochs"], 200);
  EXPECT_EQ(results["updates"], 200 * 512 / 16);
  // The killed one's work is counted to its last completed batch.
  ASSERT_EQ(results["workers"].size(), 2u);
  uint64_t examples = 0;
  for (const nlohmann::json& worker : results["workers"]) {
    examples += worker["examples"].get<uint64_t>();
  }
  EXPECT_EQ(examples, 200u * 512);
}

TEST_F(RunTest, AWorkerWhoseSlotIsTakenAndItsSuccessorAreBothInTheResults) {
  std::unique_ptr<Process> run = Foreshard(RunArguments(EndlessJob()));
  ASSERT_NE(run, nullptr);
  ASSERT_TRUE(IsTraining());
  auto successor = Process::Start({.program = FORESHARD_BINARY_DIR "/foreshard-worker",
                                   .arguments = {"--job", Path("results/job.textproto"),
                                                 "--servers", ServersOfTheRun(), "--slot=1",
                                                 "--name=successor", "--device=cpu"},
                                   .log_path = Path("successor.log")});
  ASSERT_TRUE(successor.ok()) << successor.status();
  EXPECT_TRUE(WaitUntil([&] {
    return absl::StrContains(ReadFile(Path("successor.log")).value_or(""), "training as worker 1 ");
  })) << ReadFile(Path("successor.log")).value_or("");
  EXPECT_TRUE(WaitUntil([&] {
    return absl::StrContains(ReadFile(Path("command.log")).value_or(""),
                             "training goes on with 1 worker");
  })) << ReadFile(Path("command.log")).value_or("");
  run->Signal(SIGINT);
  const Ended ended = Finish(*run);
  EXPECT_EQ(ended.status, 130) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("exited with status 4"));
  const nlohmann::json results = Results("results");
  uint64_t examples = 0;
  std::vector<uint32_t> slots;
  for (const nlohmann::json& worker : results["workers"]) {
    examples += worker["examples"].get<uint64_t>();
    slots.push_back(worker["id"]);
  }
  ASSERT_THAT(slots, ElementsAre(0, 1, 1));
  EXPECT_NE(results["workers"][1]["name"], "successor");
  EXPECT_EQ(results["workers"][2]["name"], "successor");
  EXPECT_EQ(examples, results["examples"].get<uint64_t>());
}

TEST_F(RunTest, WithNoWorkerLeftTheRunEndsWithOne) {
  std::unique_ptr<Process> run = Foreshard(RunArguments(EndlessJob()));
  ASSERT_NE(run, nullptr);
  ASSERT_TRUE(IsTraining());
  for (const char* name : {"worker-0", "worker-1"}) kill(ChildPid(name), SIGKILL);
  const Ended ended = Finish(*run);
  EXPECT_EQ(ended.status, 1) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("no worker is left"));
  EXPECT_EQ(Results("results")["completed"], false);
  EXPECT_THAT(ProcessesWith(Path("results")), IsEmpty());
}

TEST_F(RunTest, AKilledServerIsNamedAndEndsTheRunWithOne) {
  std::unique_ptr<Process> run = Foreshard(RunArguments(EndlessJob()));
  ASSERT_NE(run, nullptr);
  ASSERT_TRUE(IsTraining());
  kill(ChildPid("server-1"), SIGKILL);
  const Ended ended = Finish(*run);
  EXPECT_EQ(ended.status, 1) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("server-1 was killed by signal 9 (Killed); log: " +
                                      Path("results/logs/server-1.log")));
  EXPECT_EQ(Results("results")["completed"], false);
  EXPECT_THAT(ProcessesWith(Path("results")), IsEmpty());
}

TEST_F(RunTest, AServerKilledDuringTheLastEvaluationEndsTheRunWithOne) {
  std::unique_ptr<Process> run = Foreshard(RunArguments(WriteJob({"training.epochs=200"})));
  ASSERT_NE(run, nullptr);
  ASSERT_TRUE(IsTraining());
  ASSERT_TRUE(WaitUntil([&] { return ChildPid("evaluator") != 0; }));
  // An evaluation that does not end by itself.
  ASSERT_EQ(kill(ChildPid("evaluator"), SIGSTOP), 0);
  ASSERT_TRUE(WaitUntil([&] {
    return absl::StrContains(ReadFile(Path("command.log")).value_or(""),
                             "waiting for the evaluation");
  })) << ReadFile(Path("command.log")).value_or("");
  kill(ChildPid("server-1"), SIGKILL);
  const Ended ended = Finish(*run);
  EXPECT_EQ(ended.status, 1) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("server-1 was killed by signal 9 (Killed); log: " +
                                      Path("results/logs/server-1.log")));
  EXPECT_THAT(ended.output, HasSubstr("the last evaluation can't be finished"));
  const nlohmann::json results = Results("results");
  EXPECT_EQ(results["completed"], true);
  EXPECT_EQ(results["ended"], "server-1 was killed by signal 9 (Killed)");
  EXPECT_THAT(ProcessesWith(Path("results")), IsEmpty());
}

TEST_F(RunTest, StopFromOutsideEndsTheRun) {
  std::unique_ptr<Process> run = Foreshard(RunArguments(EndlessJob()));
  ASSERT_NE(run, nullptr);
  ASSERT_TRUE(IsTraining());
  std::unique_ptr<Process> stop =
      Foreshard({"stop", "--servers", ServersOfTheRun(), "--reason", "enough for today"},
                "stop.log");
  const Ended stopped = Finish(*stop, "stop.log");
  EXPECT_EQ(stopped.status, 0) << stopped.output;
  const Ended ended = Finish(*run);
  EXPECT_EQ(ended.status, 130) << ended.output;
  EXPECT_EQ(Results("results")["completed"], false);
  EXPECT_THAT(Results("results")["ended"].get<std::string>(), HasSubstr("enough for today"));
  EXPECT_THAT(ProcessesWith(Path("results")), IsEmpty());
}

// Every rule and every codec, end to end.
struct RuleAndSettings {
  std::string name;
  std::string rule;
  std::vector<std::string> settings;
};
void PrintTo(const RuleAndSettings& run, std::ostream* out) { *out << run.name; }

class RuleAndCodecTest : public RunTest, public ::testing::WithParamInterface<RuleAndSettings> {};

TEST_P(RuleAndCodecTest, Trains) {
  std::vector<std::string> arguments = RunArguments(WriteJob());
  arguments.insert(arguments.end(), {"--set", absl::StrCat("update.rule=", GetParam().rule)});
  for (const std::string& setting : GetParam().settings) {
    arguments.insert(arguments.end(), {"--set", setting});
  }
  const Ended ended = RunForeshard(arguments);
  ASSERT_EQ(ended.status, 0) << ended.output << ChildLog("worker-0");
  const nlohmann::json results = Results("results");
  EXPECT_EQ(results["completed"], true);
  EXPECT_EQ(results["updates"], 3 * 512 / 16);
  EXPECT_GT(results["test_accuracy"].get<double>(), 0.8);
}

INSTANTIATE_TEST_SUITE_P(
    All, RuleAndCodecTest,
    ::testing::Values(
        RuleAndSettings{"asgd", "asgd",
                        {"update.momentum=", "compression.push=none", "schedule.learning_rate=0.1"}},
        RuleAndSettings{"nag_asgd", "nag_asgd", {"compression.push=fp16"}},
        RuleAndSettings{"multi_asgd", "multi_asgd", {"compression.push=bf16", "compression.reply=bf16"}},
        RuleAndSettings{"dana_zero", "dana_zero", {"compression.push=one_bit", "compression.reply=fp16"}},
        RuleAndSettings{"dana_slim", "dana_slim", {"compression.push=one_bit_mean"}},
        RuleAndSettings{"ssgd", "ssgd", {"compression.push=none", "training.max_workers=2"}},
        RuleAndSettings{"top_k", "dana_slim", {"compression.push=top_k"}},
        RuleAndSettings{"quantized", "dana_zero",
                        {"compression.push=quantized", "compression.full_precision=*bias"}},
        RuleAndSettings{"two_bits", "dana_slim",
                        {"compression.push=quantized", "compression.bits=2",
                         "compression.block_elements=256"}},
        RuleAndSettings{"random_k", "dana_zero",
                        {"compression.push=random_k", "compression.fraction=0.125"}},
        RuleAndSettings{"random_k_in_rounds", "ssgd",
                        {"compression.push=random_k", "compression.fraction=0.125",
                         "compression.full_precision_below=100", "training.max_workers=2"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace foreshard
