// The daemons as started by hand: what they say and how they end when the world around
// them is not as it should be.
#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/core/exit_code.h"
#include "common/net/admin_client.h"
#include "gmock/gmock.h"
#include "tests/end_to_end/job_folder.h"
#include "tools/files.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class DaemonsTest : public EndToEndTest {
 protected:
  // An endless job; ends with the fleet.
  std::string EndlessJob(const std::vector<std::string>& overrides = {}) {
    std::vector<std::string> all = {"training.epochs=100000"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return WriteJob(all);
  }
  // Starts a daemon that is expected to end by itself.
  Ended Daemon(const std::string& program, const std::vector<std::string>& arguments) {
    auto process = Process::Start({.program = absl::StrCat(FORESHARD_BINARY_DIR, "/", program),
                                   .arguments = arguments,
                                   .log_path = Path("daemon.log")});
    EXPECT_TRUE(process.ok()) << process.status();
    return process.ok() ? Finish(**process, "daemon.log") : Ended();
  }
};

TEST_F(DaemonsTest, EveryProgramHasHelpAndAVersion) {
  for (const char* program : {"foreshard", "foreshard-server", "foreshard-worker"}) {
    const Ended help = Daemon(program, {"--help"});
    EXPECT_EQ(help.status, 0);
    EXPECT_THAT(help.output, HasSubstr("--help"));
    EXPECT_EQ(Daemon(program, {"--version"}).status, 0);
    EXPECT_EQ(Daemon(program, {"--no-such-flag"}).status, 2);
  }
  for (const char* command : {"run", "status", "stop", "bench"}) {
    const Ended help = Daemon("foreshard", {command, "--help"});
    EXPECT_EQ(help.status, 0);
    EXPECT_THAT(help.output, HasSubstr("Exit status"));
  }
}

TEST_F(DaemonsTest, WorkersMayComeBeforeTheServers) {
  const std::string job = WriteJob({"training.epochs=2"});
  // A loopback address of this process's own, and ports that the system gives to nobody.
  const std::string host = absl::StrCat("127.77.", getpid() / 250 % 250 + 1, ".", getpid() % 250 + 1);
  const std::vector<std::string> addresses = {host + ":20001", host + ":20002"};
  const std::string servers = absl::StrCat("--servers=", addresses[0], ",", addresses[1]);
  std::unique_ptr<Fleet> fleet = MakeFleet(job);
  ASSERT_TRUE(fleet->StartWorker(0, {servers}).ok());
  ASSERT_TRUE(fleet->StartEvaluator({servers}).ok());
  ASSERT_TRUE(fleet->StartServer(1, {"--listen=" + addresses[1]}).ok());
  ASSERT_TRUE(fleet->StartServer(0, {"--listen=" + addresses[0]}).ok());
  EXPECT_TRUE(fleet->WaitForExits(Role::kWorker, kPatience)) << LogOf(*fleet, "worker-0");
  EXPECT_TRUE(fleet->WaitForExits(Role::kEvaluator, kPatience)) << LogOf(*fleet, "evaluator");
  for (const ChildExit& exit : fleet->TakeExits()) EXPECT_TRUE(exit.exit.ok()) << exit.Describe();
  const std::vector<v1::StatusReply> statuses = Statuses(*fleet);
  ASSERT_THAT(statuses, SizeIs(2));
  EXPECT_TRUE(statuses[0].finished());
  EXPECT_EQ(statuses[0].completed_epochs(), 2u);
  ASSERT_THAT(statuses[0].evaluations(), Not(IsEmpty()));
  EXPECT_GT(statuses[0].evaluations().rbegin()->accuracy(), 0.5);
}

TEST_F(DaemonsTest, AKilledWorkersBatchesAreDealtAgainAndEveryOneIsAppliedOnce) {
  constexpr uint64_t kExamples = 600;
  const std::string job = WriteSyntheticJob(8192, kExamples, {"training.workers=3", "timeouts.lease_seconds=3"});
  std::unique_ptr<Fleet> fleet = Servers(job);
  // The slow one holds tickets for long, so it dies with some in hand.
  ASSERT_TRUE(fleet->StartWorker(0, {"--slowdown=10000"}).ok());
  ASSERT_TRUE(WaitUntil([&] {
    const std::vector<v1::StatusReply> statuses = Statuses(*fleet);
    return !statuses.empty() && statuses[0].workers_size() == 1 &&
           statuses[0].workers(0).pushes() > 0;
  })) << LogOf(*fleet, "worker-0");
  fleet->Find("worker-0")->process->Signal(SIGKILL);
  ASSERT_TRUE(fleet->StartWorker(1).ok());
  ASSERT_TRUE(fleet->StartWorker(2).ok());
  ASSERT_TRUE(fleet->WaitForExits(Role::kWorker, kPatience))
      << LogOf(*fleet, "worker-1") << LogOf(*fleet, "server-0");
  const std::vector<v1::StatusReply> statuses = Statuses(*fleet);
  ASSERT_THAT(statuses, SizeIs(2));
  EXPECT_TRUE(statuses[0].finished());
  EXPECT_EQ(statuses[0].completed_tickets(), kExamples);
  EXPECT_GT(statuses[0].redealt_tickets(), 0u);
}

TEST_F(DaemonsTest, AKilledServerEndsItsWorkersWithAReason) {
  std::unique_ptr<Fleet> fleet = Servers(EndlessJob({"timeouts.connect_seconds=5"}));
  ASSERT_TRUE(fleet->StartWorker(0).ok());
  ASSERT_TRUE(WaitUntil([&] { return Completed(*fleet) > 10; })) << LogOf(*fleet, "worker-0");
  const std::string address = fleet->addresses()[1];
  fleet->Find("server-1")->process->Signal(SIGKILL);
  ASSERT_TRUE(fleet->WaitForExits(Role::kWorker, kPatience)) << LogOf(*fleet, "worker-0");
  EXPECT_EQ(fleet->Find("worker-0")->exit->status, 1);
  EXPECT_THAT(LogOf(*fleet, "worker-0"), AllOf(HasSubstr("server 1"), HasSubstr(address)));
}

TEST_F(DaemonsTest, AKilledLeadEndsItsWorkersWithAReason) {
  std::unique_ptr<Fleet> fleet = Servers(EndlessJob({"timeouts.connect_seconds=5"}));
  ASSERT_TRUE(fleet->StartWorker(0).ok());
  ASSERT_TRUE(WaitUntil([&] { return Completed(*fleet) > 10; })) << LogOf(*fleet, "worker-0");
  fleet->Find("server-0")->process->Signal(SIGKILL);
  ASSERT_TRUE(fleet->WaitForExits(Role::kWorker, kPatience)) << LogOf(*fleet, "worker-0");
  EXPECT_EQ(fleet->Find("worker-0")->exit->status, 1);
  EXPECT_THAT(LogOf(*fleet, "worker-0"), HasSubstr("server 0"));
}

TEST_F(DaemonsTest, AServerThatIsNotThereIsNamedWithinTheBound) {
  const std::string job = EndlessJob({"timeouts.connect_seconds=4"});
  std::unique_ptr<Fleet> fleet = MakeFleet(job);
  ASSERT_TRUE(fleet->StartServer(0).ok());
  ASSERT_TRUE(fleet->WaitForServers(kPatience).ok());
  // Port 1 of loopback: nobody listens there.
  const Ended ended = Daemon("foreshard-worker", {"--job", job, "--device=cpu", "--servers",
                                                  fleet->addresses()[0] + ",127.0.0.1:1"});
  EXPECT_EQ(ended.status, 1) << ended.output;
  EXPECT_THAT(ended.output, AllOf(HasSubstr("server 1"), HasSubstr("127.0.0.1:1")));
}

TEST_F(DaemonsTest, APortInUseIsNamed) {
  const std::string job = WriteJob();
  std::unique_ptr<Fleet> fleet = MakeFleet(job);
  ASSERT_TRUE(fleet->StartServer(0).ok());
  ASSERT_TRUE(fleet->WaitForServers(kPatience).ok());
  const std::string address = fleet->addresses()[0];
  const Ended ended =
      Daemon("foreshard-server", {"--job", job, "--shard=1", "--listen", address});
  EXPECT_EQ(ended.status, 1) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr(address.substr(address.rfind(':'))));
  const std::string metrics =
      ReadReadyFile(fleet->Find("server-0")->ready_path)->metrics_address;
  const Ended second = Daemon("foreshard-server", {"--job", job, "--shard=1", "--listen",
                                                   "127.0.0.1:0", "--metrics-listen", metrics});
  EXPECT_EQ(second.status, 1) << second.output;
  EXPECT_THAT(second.output, HasSubstr(metrics.substr(metrics.rfind(':'))));
}

TEST_F(DaemonsTest, OtherAddressesThanLoopbackNeedInsecureSaidAloud) {
  const Ended ended =
      Daemon("foreshard-server", {"--job", WriteJob(), "--listen", "0.0.0.0:0"});
  EXPECT_EQ(ended.status, 2) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("--insecure"));
}

TEST_F(DaemonsTest, WorkersOfAnotherJobOrModelAreRefusedByName) {
  std::unique_ptr<Fleet> fleet = Servers(EndlessJob());
  ASSERT_TRUE(fleet->StartWorker(0).ok());
  ASSERT_TRUE(WaitUntil([&] { return Completed(*fleet) > 0; })) << LogOf(*fleet, "worker-0");
  // Another name, another setting, another model.
  for (const char* change : {"name=other", "update.momentum=0.5", "model.widths=48"}) {
    const Ended ended =
        Daemon("foreshard-worker", {"--job", Path("job.textproto"), "--set", change,
                                    "--device=cpu", "--servers", fleet->address_list()});
    EXPECT_EQ(ended.status, 2) << change << "\n" << ended.output;
    EXPECT_THAT(ended.output, AnyOf(HasSubstr("job"), HasSubstr("schema")));
  }
  // And nobody else was disturbed by it.
  const uint64_t before = Completed(*fleet);
  EXPECT_TRUE(WaitUntil([&] { return Completed(*fleet) > before; }));
}

TEST_F(DaemonsTest, ServersInTheWrongOrderAreRefused) {
  std::unique_ptr<Fleet> fleet = Servers(EndlessJob({"timeouts.connect_seconds=5"}));
  const std::vector<std::string> addresses = fleet->addresses();
  const Ended ended =
      Daemon("foreshard-worker", {"--job", Path("job.textproto"), "--device=cpu", "--servers",
                                  addresses[1] + "," + addresses[0]});
  EXPECT_EQ(ended.status, 2) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("shard"));
}

TEST_F(DaemonsTest, StatusAnswersWhatIsWaitedFor) {
  const std::string job = EndlessJob();
  std::unique_ptr<Fleet> fleet = Servers(job);
  const std::string servers = fleet->address_list();
  Ended status = RunForeshard({"status", "--servers", servers});
  EXPECT_EQ(status.status, 0) << status.output;
  EXPECT_THAT(status.output, HasSubstr("waiting for: "));
  EXPECT_THAT(status.output, Not(HasSubstr("waiting for: nothing")));

  ASSERT_TRUE(fleet->StartWorker(0).ok());
  ASSERT_TRUE(WaitUntil([&] { return Completed(*fleet) > 0; })) << LogOf(*fleet, "worker-0");
  status = RunForeshard({"status", "--servers", servers});
  EXPECT_EQ(status.status, 0) << status.output;
  EXPECT_THAT(status.output, AllOf(HasSubstr("quadrants"), HasSubstr("worker-0")));

  status = RunForeshard({"status", "--json", "--servers", servers});
  EXPECT_EQ(status.status, 0);
  const nlohmann::json json = nlohmann::json::parse(status.output, nullptr, false);
  ASSERT_TRUE(json.is_object()) << status.output;
  ASSERT_EQ(json["servers"].size(), 2u);
  EXPECT_EQ(json["servers"][0]["lead"], true);
  EXPECT_TRUE(json["servers"][0]["completed_tickets"].is_number());

  status = RunForeshard({"status", "--servers", servers + ",127.0.0.1:1", "--timeout", "2"});
  EXPECT_EQ(status.status, 1);
  EXPECT_THAT(status.output, HasSubstr("127.0.0.1:1"));
}

TEST_F(DaemonsTest, StopEndsWorkersThenServersPolitely) {
  std::unique_ptr<Fleet> fleet = Servers(EndlessJob());
  ASSERT_TRUE(fleet->StartWorker(0).ok());
  ASSERT_TRUE(fleet->StartWorker(1).ok());
  ASSERT_TRUE(WaitUntil([&] { return Completed(*fleet) > 5; }));
  const Ended stop = RunForeshard(
      {"stop", "--servers", fleet->address_list(), "--reason", "lunch"});
  EXPECT_EQ(stop.status, 0) << stop.output;
  EXPECT_TRUE(fleet->WaitForExits(Role::kWorker, kPatience));
  EXPECT_TRUE(fleet->WaitForExits(Role::kServer, kPatience));
  for (const ChildExit& exit : fleet->TakeExits()) EXPECT_TRUE(exit.exit.ok()) << exit.Describe();
  EXPECT_THAT(LogOf(*fleet, "worker-0"), HasSubstr("lunch"));
}

TEST_F(DaemonsTest, StopNamesAServerThatDoesNotAnswer) {
  const Ended stop = RunForeshard({"stop", "--servers", "127.0.0.1:1", "--timeout", "2"});
  EXPECT_EQ(stop.status, 1);
  EXPECT_THAT(stop.output, HasSubstr("127.0.0.1:1"));
}

TEST_F(DaemonsTest, ASigtermEndsAServerCleanlyUnderLoad) {
  std::unique_ptr<Fleet> fleet = Servers(EndlessJob({"timeouts.connect_seconds=5"}));
  ASSERT_TRUE(fleet->StartWorker(0).ok());
  ASSERT_TRUE(WaitUntil([&] { return Completed(*fleet) > 5; }));
  const std::optional<ProcessExit> exit = [&] {
    fleet->Find("server-1")->process->Signal(SIGTERM);
    return fleet->Find("server-1")->process->Wait(kPatience);
  }();
  ASSERT_TRUE(exit.has_value());
  EXPECT_TRUE(exit->ok()) << exit->Describe() << LogOf(*fleet, "server-1");
  // Its worker waits for it, then says so.
  ASSERT_TRUE(fleet->WaitForExits(Role::kWorker, kPatience));
  EXPECT_THAT(LogOf(*fleet, "worker-0"), HasSubstr("server 1"));
}

TEST_F(DaemonsTest, ASigtermedWorkerLeavesAndOthersGoOn) {
  std::unique_ptr<Fleet> fleet = Servers(EndlessJob());
  ASSERT_TRUE(fleet->StartWorker(0).ok());
  ASSERT_TRUE(fleet->StartWorker(1).ok());
  const auto training = [&] {
    int count = 0;
    for (const v1::StatusReply& status : Statuses(*fleet)) {
      for (const v1::WorkerStatus& worker : status.workers()) {
        count += status.lead() && worker.state() == "training" && worker.pushes() > 0;
      }
    }
    return count;
  };
  ASSERT_TRUE(WaitUntil([&] { return training() == 2; }));
  fleet->Find("worker-0")->process->Signal(SIGTERM);
  const std::optional<ProcessExit> exit = fleet->Find("worker-0")->process->Wait(kPatience);
  ASSERT_TRUE(exit.has_value());
  // Not 0: its job is not complete.
  EXPECT_EQ(exit->signal, 0) << exit->Describe();
  EXPECT_EQ(exit->status, kExitTerminated) << exit->Describe();
  EXPECT_TRUE(WaitUntil([&] { return training() == 1; }));
  const uint64_t before = Completed(*fleet);
  EXPECT_TRUE(WaitUntil([&] { return Completed(*fleet) > before + 5; }));
}

TEST_F(DaemonsTest, AShardFromAHostNameWithoutANumberIsRefused) {
  // This machine's name may end in a number or not; both are right answers.
  char host[256] = {};
  ASSERT_EQ(gethostname(host, sizeof host - 1), 0);
  const std::string name = std::vector<std::string>(absl::StrSplit(std::string(host), '.'))[0];
  const size_t dash = name.rfind('-');
  if (dash != std::string::npos && dash + 1 < name.size() &&
      name.find_first_not_of("0123456789", dash + 1) == std::string::npos) {
    GTEST_SKIP() << "the host " << name << " has a number at its end";
  }
  const Ended ended = Daemon("foreshard-server", {"--job", WriteJob(), "--shard=ordinal"});
  EXPECT_EQ(ended.status, 2);
  EXPECT_THAT(ended.output, AllOf(HasSubstr("--shard"), HasSubstr(name)));
}

TEST_F(DaemonsTest, AShardBeyondTheJobIsRefused) {
  for (const char* shard : {"--shard=2", "--shard=-1", "--shard=x"}) {
    const Ended ended = Daemon("foreshard-server", {"--job", WriteJob(), shard});
    EXPECT_EQ(ended.status, 2) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("shard"));
  }
}

TEST_F(DaemonsTest, BothDaemonsServeMetrics) {
  std::unique_ptr<Fleet> fleet = Servers(EndlessJob());
  ASSERT_TRUE(fleet->StartWorker(0).ok());
  ASSERT_TRUE(WaitUntil([&] { return Completed(*fleet) > 5; }));
  const std::string address =
      ReadReadyFile(fleet->Find("server-0")->ready_path)->metrics_address;
  EXPECT_THAT(address, HasSubstr("127.0.0.1:"));
  const std::string page = HttpGet(address, "/metrics");
  EXPECT_THAT(page, AllOf(HasSubstr("foreshard_push_staleness_updates_bucket"),
                          HasSubstr("foreshard_pushes_total{"), HasSubstr("foreshard_workers{"),
                          HasSubstr("foreshard_build_info")));
  std::string worker;
  for (const v1::StatusReply& status : Statuses(*fleet)) {
    if (status.lead() && status.workers_size() > 0) {
      worker = status.workers(0).figures().metrics_address();
    }
  }
  ASSERT_THAT(worker, HasSubstr(":"));
  EXPECT_THAT(HttpGet(worker, "/metrics"),
              AllOf(HasSubstr("foreshard_step_duration_seconds"), HasSubstr("foreshard_loss")));
}

}  // namespace
}  // namespace foreshard
