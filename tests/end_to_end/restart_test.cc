// Servers that are killed and started again on what they have kept.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "server/checkpoint_files.h"
#include "server/run_description.h"
#include "tests/end_to_end/job_folder.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

constexpr uint32_t kShards = 2;

class RestartTest : public EndToEndTest {
 protected:
  std::string StateOf(const std::string& run, uint32_t shard) const {
    return Path(absl::StrCat(run, "/shard-", shard));
  }

  // Servers that keep their state below `run`.
  void Begin(const std::string& job, const std::string& run) {
    run_ = run;
    fs::create_directories(Path(run));
    fleet_ = MakeFleet(job);
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      ASSERT_TRUE(
          fleet_->StartServer(shard, {absl::StrCat("--state-directory=", StateOf(run, shard))}).ok());
    }
    const absl::Status up = fleet_->WaitForServers(kPatience);
    ASSERT_TRUE(up.ok()) << up;
    addresses_ = fleet_->addresses();
  }

  // The same process again, at the same address.
  void StartAgain(uint32_t shard) {
    ASSERT_TRUE(fleet_
                    ->StartServer(shard, {absl::StrCat("--state-directory=", StateOf(run_, shard)),
                                          absl::StrCat("--listen=", addresses_[shard])})
                    .ok());
    const absl::Status up = fleet_->WaitForServers(kPatience);
    ASSERT_TRUE(up.ok()) << up;
  }

  void Kill(uint32_t shard) {
    Child* child = fleet_->Find(absl::StrCat("server-", shard));
    child->process->Signal(SIGKILL);
    ASSERT_TRUE(WaitUntil([&] { return fleet_->Running(Role::kServer) == kShards - 1; }));
  }

  // Kills a server whenever so many more batches are complete, the lead every second time.
  void KillAndRestart(int times, uint64_t batches) {
    for (int k = 0; k < times; ++k) {
      const uint64_t wanted = Completed(*fleet_) + batches;
      ASSERT_TRUE(WaitUntil([&] { return Completed(*fleet_) >= wanted; })) << LogOf(*fleet_, "server-0");
      const uint32_t shard = k % 2 == 0 ? 1 : 0;
      Kill(shard);
      StartAgain(shard);
      EXPECT_THAT(LogOf(*fleet_, absl::StrCat("server-", shard)), HasSubstr("goes on from"));
    }
  }

  void ExpectWorkersDone() {
    ASSERT_TRUE(fleet_->WaitForExits(Role::kWorker, kPatience));
    for (const Child& child : fleet_->children()) {
      if (child.role != Role::kWorker) continue;
      EXPECT_TRUE(child.exit.has_value() && child.exit->ok()) << LogOf(*fleet_, child.name);
    }
  }

  // The newest checkpoints' parameters, all shards, as they lie in their files.
  std::string FinalParameters(const std::string& run) const {
    std::string all;
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      const auto storage = OpenStorageToRead(StateOf(run, shard));
      EXPECT_TRUE(storage.ok()) << storage.status();
      const auto list = Checkpoint::List(**storage);
      EXPECT_TRUE(list.ok() && !list->empty()) << StateOf(run, shard);
      const auto bytes = (*storage)->Read(list->back() + "/" + ParametersFileName(shard, kShards));
      EXPECT_TRUE(bytes.ok()) << bytes.status();
      // Behind the header, which says the step.
      uint64_t header = 0;
      std::copy_n(bytes->data(), 8, reinterpret_cast<char*>(&header));
      all += bytes->substr(8 + header);
    }
    return all;
  }

  std::string run_;
  std::unique_ptr<Fleet> fleet_;
  std::vector<std::string> addresses_;
};

TEST_F(RestartTest, WorkersWaitAndTheJobIsDone) {
  const std::string job = WriteJob({"training.epochs=240", "training.workers=2", "update.rule=dana_zero",
                                    "timeouts.connect_seconds=60", "durability.checkpoint_seconds=0.3"});
  Begin(job, "state");
  for (uint32_t k = 0; k < 2; ++k) ASSERT_TRUE(fleet_->StartWorker(k).ok());
  KillAndRestart(4, 30);
  ExpectWorkersDone();
  const std::vector<v1::StatusReply> statuses = Statuses(*fleet_);
  ASSERT_EQ(statuses.size(), kShards);
  EXPECT_TRUE(statuses[0].finished());
  EXPECT_EQ(statuses[0].completed_tickets(), statuses[0].total_tickets());
  // Each batch once on every segment; a worker whose answer was lost was told DUPLICATE.
  for (const v1::StatusReply& status : statuses) {
    EXPECT_FALSE(status.restored().empty());
    for (const v1::SegmentStatus& segment : status.segments()) {
      if (segment.statistic()) continue;
      EXPECT_EQ(segment.version(), statuses[0].total_tickets() + statuses[0].redealt_tickets());
    }
  }
  EXPECT_THAT(LogOf(*fleet_, "worker-0"), HasSubstr("was started again and has its state"));
  fleet_->Terminate(Role::kServer, kPatience);
  for (const Child& child : fleet_->children()) {
    if (child.role != Role::kServer) continue;
    EXPECT_TRUE(child.exit->ok()) << LogOf(*fleet_, child.name);
  }
}

// Servers that keep checkpoints only lose what came after them; the job goes on all the same.
TEST_F(RestartTest, WithoutAJournalWorkersGoOnFromCheckpoints) {
  const std::string job = WriteJob({"training.epochs=240", "training.workers=2", "timeouts.connect_seconds=60",
                                    "durability.journal=off", "durability.checkpoint_seconds=0.3"});
  Begin(job, "state");
  for (uint32_t k = 0; k < 2; ++k) ASSERT_TRUE(fleet_->StartWorker(k).ok());
  for (uint32_t shard = 0; shard < kShards; ++shard) {
    ASSERT_TRUE(WaitUntil([&] {
      const auto storage = OpenStorageToRead(StateOf("state", shard));
      const auto list = storage.ok() ? Checkpoint::List(**storage) : storage.status();
      return list.ok() && !list->empty();
    }));
  }
  KillAndRestart(4, 30);
  ExpectWorkersDone();
  const std::vector<v1::StatusReply> statuses = Statuses(*fleet_);
  ASSERT_EQ(statuses.size(), kShards);
  EXPECT_TRUE(statuses[0].finished());
  EXPECT_EQ(statuses[0].completed_tickets(), statuses[0].total_tickets());
  EXPECT_THAT(LogOf(*fleet_, "worker-0"), HasSubstr("has lost what came after its last checkpoint"));
  EXPECT_THAT(LogOf(*fleet_, "server-1"), HasSubstr("is lost, since there was no journal"));
}

// A machine that was lost takes the end of a buffered journal with it: the next start knows it by the boot id,
// and workers go on with what there is.
TEST_F(RestartTest, WorkersGoOnAfterAMachineWasLost) {
  const std::string job = WriteJob({"training.epochs=240", "training.workers=2", "timeouts.connect_seconds=60",
                                    "durability.checkpoint_seconds=0.3"});
  Begin(job, "state");
  for (uint32_t k = 0; k < 2; ++k) ASSERT_TRUE(fleet_->StartWorker(k).ok());
  for (const uint32_t shard : {1u, 0u}) {
    const uint64_t wanted = Completed(*fleet_) + 40;
    ASSERT_TRUE(WaitUntil([&] { return Completed(*fleet_) >= wanted; })) << LogOf(*fleet_, "server-0");
    Kill(shard);
    const std::string folder = StateOf("state", shard);
    {
      const auto storage = OpenStorage(folder).value();
      v1::RunDescription description = *ReadRunDescription(*storage).value();
      ASSERT_FALSE(description.boot_id().empty());
      description.set_boot_id("another");
      ASSERT_TRUE(WriteRunDescription(storage.get(), description).ok());
    }
    StartAgain(shard);
    EXPECT_THAT(LogOf(*fleet_, absl::StrCat("server-", shard)), HasSubstr("may be lost, since the machine"));
  }
  ExpectWorkersDone();
  const std::vector<v1::StatusReply> statuses = Statuses(*fleet_);
  ASSERT_EQ(statuses.size(), kShards);
  EXPECT_TRUE(statuses[0].finished());
  EXPECT_EQ(statuses[0].completed_tickets(), statuses[0].total_tickets());
}

// An unmounted volume, a new claim, a slip in a path.
TEST_F(RestartTest, AServerThatComesBackWithoutItsStateIsNotBegunAnew) {
  const std::string job = WriteJob({"training.epochs=20000", "training.workers=2", "timeouts.connect_seconds=60"});
  Begin(job, "state");
  ASSERT_TRUE(fleet_->StartWorker(0).ok());
  ASSERT_TRUE(WaitUntil([&] { return Completed(*fleet_) >= 40; })) << LogOf(*fleet_, "server-0");
  fleet_->Terminate(Role::kWorker, kPatience);
  fleet_->Terminate(Role::kServer, kPatience);
  const auto refused = [&](const std::string& what) {
    Begin(job, "state");
    ASSERT_TRUE(fleet_->StartWorker(0).ok());
    ASSERT_TRUE(fleet_->WaitForExits(Role::kWorker, kPatience));
    EXPECT_EQ(fleet_->Find("worker-0")->exit->status, 2) << LogOf(*fleet_, "worker-0");
    EXPECT_THAT(LogOf(*fleet_, "worker-0"), AllOf(HasSubstr("server 1 at"), HasSubstr(StateOf("state", 1)), HasSubstr(what)));
    fleet_->Terminate(Role::kServer, kPatience);
  };
  fs::rename(StateOf("state", 1), Path("away"));
  refused("a volume that is not mounted");
  // That of another run of the job.
  fs::remove_all(StateOf("state", 1));
  fs::rename(Path("state"), Path("first"));
  Begin(job, "state");
  ASSERT_TRUE(fleet_->StartWorker(0).ok());
  ASSERT_TRUE(WaitUntil([&] { return Completed(*fleet_) >= 10; })) << LogOf(*fleet_, "server-0");
  fleet_->Terminate(Role::kWorker, kPatience);
  fleet_->Terminate(Role::kServer, kPatience);
  fs::remove_all(StateOf("state", 0));
  fs::rename(Path("first/shard-0"), StateOf("state", 0));
  refused("holds the state of run");
  for (const char* command : {"verify", "export"}) {
    std::vector<std::string> arguments = {command, Path("state")};
    if (std::string(command) == "export") arguments.push_back("--output=" + Path("model.safetensors"));
    const Ended ended = RunForeshard(arguments);
    EXPECT_EQ(ended.status, 2) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("two runs of the same job"));
  }
  // With its own it goes on.
  fs::remove_all(StateOf("state", 1));
  fs::rename(Path("away"), StateOf("state", 1));
  Begin(job, "state");
  ASSERT_TRUE(fleet_->StartWorker(0).ok());
  const uint64_t before = Completed(*fleet_);
  EXPECT_GE(before, 40u);
  EXPECT_TRUE(WaitUntil([&] { return Completed(*fleet_) > before; })) << LogOf(*fleet_, "worker-0");
}

// systemd starts a server again that ends with 1, and not one that ends with 2.
TEST_F(RestartTest, AStateDirectoryThatIsInUseIsWorthAnotherTry) {
  const std::string job = WriteJob();
  Begin(job, "state");
  const auto status_of = [&](const std::string& state) {
    std::unique_ptr<Fleet> other = MakeFleet(job);
    EXPECT_TRUE(other->StartServer(0, {"--state-directory=" + state}).ok());
    EXPECT_TRUE(other->WaitForExits(Role::kServer, kPatience));
    return other->Find("server-0")->exit->status;
  };
  EXPECT_EQ(status_of(StateOf("state", 0)), 1);
  EXPECT_EQ(status_of(""), 2);
}

class RestartOfRounds : public RestartTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Rules, RestartOfRounds, ::testing::Values("ssgd", "apmsqueeze"),
                         [](const auto& info) { return info.param; });

TEST_P(RestartOfRounds, AreResumedBitForBit) {
  std::vector<std::string> overrides = {"training.epochs=2", "training.workers=2", "timeouts.connect_seconds=60",
                                        absl::StrCat("update.rule=", GetParam()),
                                        "durability.checkpoint_seconds=0.3"};
  if (std::string(GetParam()) == "apmsqueeze") {
    overrides.insert(overrides.end(), {"update.momentum=", "schedule.learning_rate=0.001"});
  }
  // Without running statistics, which are averages in the order of arrival.
  const std::string job = WriteSyntheticJob(20'000, 600, overrides);
  std::map<std::string, std::string> parameters;
  for (const std::string run : {"undisturbed", "killed"}) {
    Begin(job, run);
    for (uint32_t k = 0; k < 2; ++k) {
      ASSERT_TRUE(fleet_->StartWorker(k, {absl::StrCat("--slot=", k)}).ok());
    }
    if (run == "killed") KillAndRestart(5, 40);
    ExpectWorkersDone();
    fleet_->Terminate(Role::kServer, kPatience);
    parameters[run] = FinalParameters(run);
  }
  EXPECT_EQ(parameters["undisturbed"] == parameters["killed"], true);
  EXPECT_GT(parameters["killed"].size(), 1000u);
}

TEST_F(RestartTest, ARunGoesOnWhereAnEarlierOneWasEnded) {
  const std::string job = WriteJob({"training.epochs=600", "training.workers=2", "timeouts.lease_seconds=2"});
  const auto arguments = [&](const std::string& results, uint32_t epochs) {
    return std::vector<std::string>{"run", "--job=" + job, absl::StrCat("--set=training.epochs=", epochs),
                                    "--no-evaluator", "--results=" + Path(results),
                                    "--state-directory=" + Path("state")};
  };
  auto first = Foreshard(arguments("first", 600));
  ASSERT_TRUE(WaitUntil([&] {
    std::ifstream ready(Path("first/logs/server-0.ready.json"));
    return fs::exists(Path("state/shard-0/run.textproto")) && fs::exists(Path("state/shard-1/run.textproto"));
  }));
  absl::SleepFor(absl::Seconds(1));
  first->Signal(SIGKILL);
  // Its children end with it or are ended here: what matters is what they have written.
  ASSERT_TRUE(WaitUntil([&] {
    for (const int64_t pid : ProcessesWith(Path("first"))) kill(static_cast<pid_t>(pid), SIGKILL);
    return ProcessesWith(Path("first")).empty();
  }));
  Finish(*first);
  // The next one is interrupted, which ends the run but not the job.
  auto second = Foreshard(arguments("second", 600), "second.log");
  ASSERT_TRUE(WaitUntil([&] { return fs::exists(Path("second/logs/worker-1.log")); }));
  absl::SleepFor(absl::Milliseconds(500));
  second->Signal(SIGINT);
  const Ended interrupted = Finish(*second, "second.log");
  EXPECT_EQ(interrupted.status, 130) << interrupted.output;
  EXPECT_THAT(interrupted.output, HasSubstr("is kept in " + Path("state")));
  const Ended third = RunForeshard(arguments("third", 600));
  EXPECT_EQ(third.status, 0) << third.output;
  EXPECT_TRUE(Results("third")["completed"].get<bool>()) << third.output;
}

// Nothing is left to train: it says so, evaluates, and all is well.
TEST_F(RestartTest, ARunOfACompleteJobEvaluatesAndEnds) {
  // As many slots as workers, which those of the first run hold at first.
  const std::string job = WriteJob({"training.epochs=2", "training.workers=2", "training.max_workers=2"});
  const auto run = [&](const std::string& results) {
    return RunForeshard({"run", "--job=" + job, "--results=" + Path(results), "--state-directory=" + Path("state")});
  };
  const Ended first = run("first");
  ASSERT_EQ(first.status, 0) << first.output;
  const Ended second = run("second");
  EXPECT_EQ(second.status, 0) << second.output;
  // Both workers by name, or the one that came when the other had done all, and took its slot.
  EXPECT_THAT(second.output, AllOf(HasSubstr("the job is complete already"), HasSubstr("is trained"),
                                   Not(HasSubstr("did not leave")), Not(HasSubstr("worker in slot")),
                                   ContainsRegex("\n  worker-[01] ")));
  EXPECT_FALSE(fs::exists(Path("second/logs/worker-0.log")));
  const auto results = Results("second");
  EXPECT_TRUE(results["completed"].get<bool>());
  EXPECT_EQ(results["test_accuracy"], Results("first")["test_accuracy"]);
  EXPECT_EQ(results["examples"], Results("first")["examples"]);
}

}  // namespace
}  // namespace foreshard
