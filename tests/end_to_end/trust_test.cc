// Who may talk to whom, with real daemons: mutual TLS, job tokens, plain text on loopback
// only, and no secret in anything that others can see.
#include <signal.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/net/admin_client.h"
#include "common/net/credentials.h"
#include "gmock/gmock.h"
#include "tests/common/net/test_certificates.h"
#include "tests/end_to_end/job_folder.h"
#include "tools/files.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Any so many characters of a secret, one after the other, are a leak.
constexpr size_t kLeak = 12;

class TrustTest : public EndToEndTest {
 protected:
  // The folders `fleet` and `strangers`, each with a server's and a worker's files.
  void SetUp() override {
    EndToEndTest::SetUp();
    for (const char* folder : {"fleet", "strangers"}) {
      const Ended made =
          Run(FORESHARD_SOURCE_DIR "/tools/make-certificates",
              {Path(folder), "--server", "alpha", "--worker", "gamma"}, "make-certificates.log");
      ASSERT_EQ(made.status, 0) << made.output;
    }
  }

  Ended Run(const std::string& program, const std::vector<std::string>& arguments,
            const std::string& log) {
    auto process =
        Process::Start({.program = program, .arguments = arguments, .log_path = Path(log)});
    EXPECT_TRUE(process.ok()) << process.status();
    return process.ok() ? Finish(**process, log) : Ended();
  }
  // A daemon that is expected to end by itself.
  Ended Daemon(const std::string& program, const std::vector<std::string>& arguments) {
    return Run(absl::StrCat(FORESHARD_BINARY_DIR, "/", program), arguments, "daemon.log");
  }

  CredentialFiles Files(const std::string& folder, const std::string& host) const {
    const std::string at = Path(absl::StrCat(folder, "/", host, "/"));
    return {.pem = {.certificate = at + "certificate.pem", .key = at + "key.pem", .ca = at + "ca.pem"},
            .token = at + "token"};
  }
  static std::vector<std::string> Flags(const CredentialFiles& files) {
    std::vector<std::string> flags;
    const auto add = [&](const std::string& flag, const std::string& path) {
      if (!path.empty()) flags.push_back(absl::StrCat(flag, "=", path));
    };
    add("--tls-certificate", files.pem.certificate);
    add("--tls-key", files.pem.key);
    add("--tls-ca", files.pem.ca);
    add("--token-file", files.token);
    return flags;
  }
  static std::vector<std::string> With(std::vector<std::string> arguments,
                                       const std::vector<std::string>& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  // Two servers with these files.
  std::unique_ptr<Fleet> SecureServers(const std::string& job, const CredentialFiles& files) {
    std::unique_ptr<Fleet> fleet = MakeFleet(job);
    for (uint32_t shard = 0; shard < 2; ++shard) {
      EXPECT_TRUE(fleet->StartServer(shard, Flags(files)).ok());
    }
    const absl::Status up = fleet->WaitForServers(kPatience);
    EXPECT_TRUE(up.ok()) << up;
    return fleet;
  }
  // What the lead has seen completed.
  static uint64_t Completed(AdminClient& admin) {
    for (const auto& reply : admin.GetStatus(absl::Seconds(10))) {
      if (reply.ok() && reply->lead()) return reply->completed_tickets();
    }
    return 0;
  }
  // A worker that should not get in, within the two seconds of the job.
  Ended Intruder(const Fleet& fleet, const std::vector<std::string>& flags) {
    return Daemon("foreshard-worker",
                  With({"--job", Path("job.textproto"), "--device=cpu", "--servers",
                        fleet.address_list()},
                       flags));
  }

  // Every run of kLeak characters of the fleet's secrets.
  std::vector<std::string> Secrets() const {
    std::vector<std::string> secrets;
    for (const char* file : {"fleet/token", "fleet/ca.key", "fleet/alpha/key.pem",
                             "fleet/gamma/key.pem", "strangers/token"}) {
      for (const absl::string_view line :
           absl::StrSplit(ReadFile(Path(file)).value_or(""), '\n')) {
        if (absl::StartsWith(line, "-----")) continue;
        for (size_t k = 0; k + kLeak <= line.size(); ++k) {
          secrets.emplace_back(line.substr(k, kLeak));
        }
      }
    }
    EXPECT_GT(secrets.size(), 400u);
    return secrets;
  }
  void ExpectNoSecretIn(const std::string& text, const std::string& where) {
    for (const std::string& secret : Secrets()) {
      ASSERT_FALSE(absl::StrContains(text, secret)) << where << " has a part of a secret";
    }
  }
};

TEST_F(TrustTest, AJobRunsToItsEndAndNobodySeesASecret) {
  const std::string job = WriteJob();
  const CredentialFiles server = Files("fleet", "alpha"), client = Files("fleet", "gamma");
  std::unique_ptr<Fleet> fleet = SecureServers(job, server);
  AdminClient admin(fleet->addresses(), Credentials::Load(client, TlsSide::kClient).value());
  ASSERT_TRUE(fleet->StartWorker(0, With({"--slowdown=3"}, Flags(client))).ok());
  ASSERT_TRUE(fleet->StartWorker(1, Flags(client)).ok());
  ASSERT_TRUE(fleet->StartEvaluator(Flags(client)).ok());
  ASSERT_TRUE(WaitUntil([&] { return Completed(admin) > 0; })) << LogOf(*fleet, "worker-0");

  // While it runs: arguments, environment and metrics, and what status says.
  for (const Child& child : fleet->children()) {
    const int64_t pid = child.process->pid();
    ExpectNoSecretIn(CommandLine(pid), child.name + "'s arguments");
    ExpectNoSecretIn(ReadFile(absl::StrCat("/proc/", pid, "/environ")).value_or(""),
                     child.name + "'s environment");
  }
  for (const char* name : {"server-0", "server-1"}) {
    const std::string page =
        HttpGet(ReadReadyFile(fleet->Find(name)->ready_path)->metrics_address, "/metrics");
    EXPECT_THAT(page, HasSubstr("foreshard_build_info"));
    ExpectNoSecretIn(page, "metrics");
  }
  const Ended status = RunForeshard(
      With({"status", "--json", "--servers", fleet->address_list()}, Flags(client)));
  EXPECT_EQ(status.status, 0) << status.output;
  EXPECT_THAT(status.output, HasSubstr("quadrants"));
  ExpectNoSecretIn(status.output, "status");

  ASSERT_TRUE(fleet->WaitForExits(Role::kWorker, kPatience)) << LogOf(*fleet, "worker-0");
  ASSERT_TRUE(fleet->WaitForExits(Role::kEvaluator, kPatience)) << LogOf(*fleet, "evaluator");
  for (const ChildExit& exit : fleet->TakeExits()) EXPECT_TRUE(exit.exit.ok()) << exit.Describe();
  const auto replies = admin.GetStatus(absl::Seconds(10));
  ASSERT_TRUE(replies[0].ok()) << replies[0].status();
  EXPECT_TRUE(replies[0]->finished());
  EXPECT_EQ(replies[0]->completed_epochs(), 3u);

  const Ended stop =
      RunForeshard(With({"stop", "--servers", fleet->address_list()}, Flags(client)));
  EXPECT_EQ(stop.status, 0) << stop.output;
  ASSERT_TRUE(fleet->WaitForExits(Role::kServer, kPatience));
  EXPECT_THAT(LogOf(*fleet, "server-0"), HasSubstr("mutual TLS, job token required"));
  for (const Child& child : fleet->children()) {
    ExpectNoSecretIn(LogOf(*fleet, child.name), child.log_path);
  }
}

TEST_F(TrustTest, RunTakesTheSameFlags) {
  const Ended run = RunForeshard(With({"run", "--job", WriteJob(), "--device=cpu", "--results",
                                       Path("results")},
                                      Flags(Files("fleet", "alpha"))));
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_TRUE(Results("results")["completed"].get<bool>());
  for (const auto& entry : std::filesystem::recursive_directory_iterator(Path("results"))) {
    if (!entry.is_regular_file()) continue;
    ExpectNoSecretIn(ReadFile(entry.path().string()).value_or(""), entry.path().string());
  }
  ExpectNoSecretIn(run.output, "the terminal");
  // A worker's certificate makes no server, which is said before anything is started.
  const Ended refused = RunForeshard(With({"run", "--job", Path("job.textproto"), "--results",
                                           Path("refused")},
                                          Flags(Files("fleet", "gamma"))));
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.output, HasSubstr("not for servers"));
  EXPECT_FALSE(std::filesystem::exists(Path("refused")));
}

TEST_F(TrustTest, BenchMeasuresExchangesOverTlsToo) {
  const Ended ended = RunForeshard(With({"bench", "exchange", "--quick", "--seconds", "0.01"},
                                        Flags(Files("fleet", "alpha"))));
  EXPECT_EQ(ended.status, 0) << ended.output;
  for (const char* line : {"exchange/roundtrip/1KiB/tls", "exchange/fp32/4MiB/tls",
                           "exchange/one_bit_both_ways/4MiB/tls"}) {
    EXPECT_THAT(ended.output, HasSubstr(line));
  }
}

TEST_F(TrustTest, StrangersAreRefusedWithTheReason) {
  const std::string job = WriteJob({"training.epochs=100000", "timeouts.connect_seconds=2"});
  const CredentialFiles ours = Files("fleet", "gamma"), theirs = Files("strangers", "gamma");
  std::unique_ptr<Fleet> fleet = SecureServers(job, Files("fleet", "alpha"));
  ASSERT_TRUE(fleet->StartWorker(0, Flags(ours)).ok());
  AdminClient admin(fleet->addresses(), Credentials::Load(ours, TlsSide::kClient).value());
  ASSERT_TRUE(WaitUntil([&] { return Completed(admin) > 0; })) << LogOf(*fleet, "worker-0");

  struct Case {
    const char* what;
    CredentialFiles files;
    int status;
    const char* says;
  };
  CredentialFiles wrong_token = ours, no_token = ours, foreign_certificate = theirs;
  wrong_token.token = theirs.token;
  no_token.token.clear();
  foreign_certificate.pem.ca = ours.pem.ca;
  for (const Case& c : {
           Case{"the token of another job", wrong_token, 2, "job token is another one"},
           Case{"no token", no_token, 2, "came without one: give --token-file"},
           Case{"another authority", theirs, 1, "not signed by an authority in --tls-ca"},
           Case{"another authority's certificate", foreign_certificate, 1,
                "once it has seen this program's certificate"},
           Case{"plain text", {}, 1, "it speaks TLS and this program does not"},
           Case{"plain text, with the token", {.token = ours.token}, 1, "it speaks TLS"},
       }) {
    const Ended ended = Intruder(*fleet, Flags(c.files));
    EXPECT_EQ(ended.status, c.status) << c.what << "\n" << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(c.says)) << c.what;
    ExpectNoSecretIn(ended.output, c.what);
    const Ended status = RunForeshard(With(
        {"status", "--timeout=2", "--servers", fleet->address_list()}, Flags(c.files)));
    EXPECT_EQ(status.status, 1) << c.what;
    EXPECT_THAT(status.output, HasSubstr(c.says)) << c.what;
  }
  // And nobody else was disturbed by it.
  const uint64_t before = Completed(admin);
  EXPECT_TRUE(WaitUntil([&] { return Completed(admin) > before; }));
  for (const char* server : {"server-0", "server-1"}) {
    ExpectNoSecretIn(LogOf(*fleet, server), server);
  }
}

TEST_F(TrustTest, AServerOfAnotherNameIsNotTaken) {
  const std::string job = WriteJob({"timeouts.connect_seconds=2"});
  TestAuthority authority(Path("ca.pem"));
  const PemFiles server = authority.Issue(Path("server"), {.names = {"DNS:beta", "IP:10.0.0.7"}});
  const PemFiles client = authority.Issue(Path("client"), {.use = "clientAuth"});
  std::unique_ptr<Fleet> fleet = SecureServers(job, {.pem = server});
  const Ended ended = Intruder(*fleet, Flags({.pem = client}));
  EXPECT_EQ(ended.status, 1) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("its certificate is for beta, 10.0.0.7, not for 127.0.0.1"));
}

TEST_F(TrustTest, FilesThatCannotWorkEndAProgramAtItsStart) {
  const std::string job = WriteJob({"timeouts.connect_seconds=2"});
  TestAuthority authority(Path("ca.pem"));
  const PemFiles expired =
      authority.Issue(Path("expired"), {.until = absl::Now() - absl::Minutes(5)});
  CredentialFiles loose = Files("fleet", "alpha");
  std::filesystem::permissions(loose.token, std::filesystem::perms(0644));
  CredentialFiles crossed = Files("fleet", "alpha");
  crossed.token.clear();
  crossed.pem.key = Files("fleet", "gamma").pem.key;
  CredentialFiles missing = crossed;
  missing.pem.certificate = Path("missing.pem");
  CredentialFiles incomplete = crossed;
  incomplete.pem.ca.clear();
  const std::vector<std::pair<CredentialFiles, std::string>> cases = {
      {{.pem = expired}, "expired on"},
      {loose, "chmod 600"},
      {crossed, "is not the key of the certificate"},
      {missing, Path("missing.pem")},
      {incomplete, "--tls-ca missing"},
  };
  for (const auto& [files, says] : cases) {
    const Ended server = Daemon("foreshard-server", With({"--job", job, "--listen=127.0.0.1:0"}, Flags(files)));
    EXPECT_EQ(server.status, 2) << server.output;
    EXPECT_THAT(server.output, HasSubstr(says));
    const Ended worker = Daemon(
        "foreshard-worker", With({"--job", job, "--device=cpu", "--servers=127.0.0.1:1,127.0.0.1:2"}, Flags(files)));
    EXPECT_EQ(worker.status, 2) << worker.output;
    EXPECT_THAT(worker.output, HasSubstr(says));
    const Ended status = RunForeshard(With({"status", "--servers=127.0.0.1:1"}, Flags(files)));
    EXPECT_EQ(status.status, 2) << status.output;
    EXPECT_THAT(status.output, HasSubstr(says));
  }
}

TEST_F(TrustTest, PlainTextStaysOnThisMachineUnlessItIsSaidAloud) {
  const std::string job = WriteJob({"servers.shards=1", "timeouts.connect_seconds=2"});
  // 192.0.2.1 is in the range for documentation: nobody is there.
  const Ended worker =
      Daemon("foreshard-worker", {"--job", job, "--device=cpu", "--servers=192.0.2.1:7000"});
  EXPECT_EQ(worker.status, 2) << worker.output;
  EXPECT_THAT(worker.output, AllOf(HasSubstr("refusing to call 192.0.2.1:7000"), HasSubstr("--tls-ca"),
                                   HasSubstr("--insecure")));
  for (const char* command : {"status", "stop"}) {
    const Ended refused = RunForeshard({command, "--servers=192.0.2.1:7000"});
    EXPECT_EQ(refused.status, 2) << refused.output;
    EXPECT_THAT(refused.output, HasSubstr("refusing to call"));
  }
  const Ended status =
      RunForeshard({"status", "--insecure", "--timeout=1", "--servers=192.0.2.1:7000"});
  EXPECT_EQ(status.status, 1) << status.output;
  EXPECT_THAT(status.output, HasSubstr("INSECURE: calling 192.0.2.1:7000"));

  std::unique_ptr<Fleet> fleet = MakeFleet(job);
  ASSERT_TRUE(fleet->StartServer(0, {"--listen=0.0.0.0:0", "--insecure"}).ok());
  ASSERT_TRUE(fleet->WaitForServers(kPatience).ok());
  EXPECT_THAT(LogOf(*fleet, "server-0"), HasSubstr("INSECURE: listening on 0.0.0.0:0"));
  fleet->End(absl::Seconds(10));
  // With TLS there is nothing to say aloud; metrics have none.
  ASSERT_TRUE(
      fleet->StartServer(0, With({"--listen=0.0.0.0:0"}, Flags(Files("fleet", "alpha")))).ok());
  ASSERT_TRUE(fleet->WaitForServers(kPatience).ok());
  EXPECT_THAT(LogOf(*fleet, "server-0"), Not(HasSubstr("INSECURE")));
  const Ended metrics =
      Daemon("foreshard-server", With({"--job", job, "--metrics-listen=0.0.0.0:0"},
                                      Flags(Files("fleet", "alpha"))));
  EXPECT_EQ(metrics.status, 2) << metrics.output;
  EXPECT_THAT(metrics.output, HasSubstr("refusing to serve metrics on 0.0.0.0:0"));
}

TEST_F(TrustTest, FilesAreReplacedUnderRunningDaemons) {
  const std::string job = WriteJob({"training.epochs=100000"});
  const CredentialFiles server = Files("fleet", "alpha"), client = Files("fleet", "gamma");
  std::unique_ptr<Fleet> fleet = SecureServers(job, server);
  ASSERT_TRUE(fleet->StartWorker(0, Flags(client)).ok());
  AdminClient admin(fleet->addresses(), Credentials::Load(client, TlsSide::kClient).value());
  ASSERT_TRUE(WaitUntil([&] { return Completed(admin) > 0; })) << LogOf(*fleet, "worker-0");

  // The servers change to the other authority; the token is the job's still.
  CredentialFiles next = Files("strangers", "gamma");
  next.token = client.token;
  const auto status = [&] {
    return RunForeshard(With({"status", "--timeout=2", "--servers", fleet->address_list()}, Flags(next)));
  };
  EXPECT_EQ(status().status, 1);
  for (const char* file : {"key.pem", "certificate.pem", "ca.pem"}) {
    std::filesystem::rename(Path(absl::StrCat("strangers/alpha/", file)),
                            Path(absl::StrCat("fleet/alpha/", file)));
  }
  Ended answered;
  EXPECT_TRUE(WaitUntil([&] {
    answered = status();
    return answered.status == 0;
  })) << answered.output;
  // What is connected goes on.
  const uint64_t before = Completed(admin);
  EXPECT_TRUE(WaitUntil([&] { return Completed(admin) > before + 10; }));
  for (const ChildExit& exit : fleet->TakeExits()) ADD_FAILURE() << exit.Describe();
  // Whoever comes now with files of before is a stranger.
  EXPECT_EQ(RunForeshard(With({"status", "--timeout=2", "--servers", fleet->address_list()},
                              Flags(client)))
                .status,
            1);
}

}  // namespace
}  // namespace foreshard
