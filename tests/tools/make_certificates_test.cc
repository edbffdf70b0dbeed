// tools/make-certificates, judged by what programs say of its files.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "common/net/pem_files.h"
#include "common/net/secret_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/files.h"
#include "tools/process.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class MakeCertificatesTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string Read(const std::string& name) const { return ReadFile(Path(name)).value_or(""); }

  // Exit status; what it says goes to output_.
  int Run(const std::string& program, const std::vector<std::string>& arguments,
          const std::vector<std::string>& environment = {}) {
    auto process = Process::Start({.program = program,
                                   .arguments = arguments,
                                   .environment = environment,
                                   .log_path = Path("output")});
    EXPECT_TRUE(process.ok()) << process.status();
    if (!process.ok()) return -1;
    const std::optional<ProcessExit> exit = (*process)->Wait(absl::Seconds(120));
    output_ = Read("output");
    return exit.has_value() && exit->signal == 0 ? exit->status : -1;
  }
  int Tool(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), Path("fleet"));
    return Run(FORESHARD_SOURCE_DIR "/tools/make-certificates", arguments);
  }
  PemFiles Files(const std::string& host) const {
    return {.certificate = Path("fleet/" + host + "/certificate.pem"),
            .key = Path("fleet/" + host + "/key.pem"),
            .ca = Path("fleet/" + host + "/ca.pem")};
  }
  // Whether the host's authority has signed its certificate.
  bool Signed(const std::string& host) {
    return Run("/usr/bin/openssl", {"verify", "-CAfile", Files(host).ca, Files(host).certificate}) == 0;
  }
  std::string Names(const std::string& host) {
    Run("/usr/bin/openssl", {"x509", "-in", Files(host).certificate, "-noout", "-ext", "subjectAltName"});
    return output_;
  }

  const std::string folder_ =
      ::testing::TempDir() + "make_certificates_test." + std::to_string(getpid());
  std::string output_;
};

TEST_F(MakeCertificatesTest, AFleetsFilesAreWhatProgramsTake) {
  ASSERT_EQ(Tool({"--server", "alpha,alpha.example.org,10.0.0.7,fd00::1", "--server", "beta",
                  "--worker", "gamma"}),
            0)
      << output_;
  for (const char* server : {"alpha", "beta"}) {
    const auto end = CheckPemFiles(Files(server), TlsSide::kBoth);
    ASSERT_TRUE(end.ok()) << end.status();
    EXPECT_GT(*end, absl::Now() + absl::Hours(24 * 364));
    EXPECT_LT(*end, absl::Now() + absl::Hours(24 * 366));
    // Clocks of other machines may be behind.
    EXPECT_TRUE(CheckPemFiles(Files(server), TlsSide::kBoth, absl::Now() - absl::Minutes(50)).ok());
    EXPECT_TRUE(Signed(server)) << output_;
    EXPECT_THAT(Names(server), AllOf(HasSubstr("DNS:localhost"), HasSubstr("IP Address:127.0.0.1")));
  }
  EXPECT_THAT(Names("alpha"), AllOf(HasSubstr("DNS:alpha,"), HasSubstr("DNS:alpha.example.org"),
                                    HasSubstr("IP Address:10.0.0.7"), HasSubstr("IP Address:FD00:")));
  EXPECT_TRUE(CheckPemFiles(Files("gamma"), TlsSide::kClient).ok());
  EXPECT_FALSE(CheckPemFiles(Files("gamma"), TlsSide::kServer).ok());
  EXPECT_TRUE(Signed("gamma")) << output_;

  const auto token = LoadJobToken(Path("fleet/token"));
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_GE(token->size(), 32u);
  for (const char* host : {"alpha", "beta", "gamma"}) {
    EXPECT_EQ(Read(std::string("fleet/") + host + "/token"), Read("fleet/token"));
  }
}

TEST_F(MakeCertificatesTest, EverythingIsForItsOwnerAlone) {
  ASSERT_EQ(Tool({"--server", "alpha"}), 0) << output_;
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(Path("fleet"))) {
    struct stat state;
    ASSERT_EQ(stat(entry.path().c_str(), &state), 0);
    EXPECT_EQ(state.st_mode & 077, 0u) << entry.path();
    files += entry.is_regular_file();
  }
  EXPECT_EQ(files, 7);
  EXPECT_THAT(output_, Not(HasSubstr(*LoadJobToken(Path("fleet/token")))));
}

TEST_F(MakeCertificatesTest, NothingIsOverwrittenUnasked) {
  ASSERT_EQ(Tool({"--server", "alpha"}), 0) << output_;
  const std::string key = Read("fleet/alpha/key.pem"), ca = Read("fleet/ca.pem"),
                    token = Read("fleet/token");
  EXPECT_EQ(Tool({"--server", "alpha", "--worker", "gamma"}), 2);
  EXPECT_THAT(output_, AllOf(HasSubstr("fleet/alpha"), HasSubstr("--force")));
  EXPECT_FALSE(std::filesystem::exists(Path("fleet/gamma")));
  EXPECT_EQ(Read("fleet/alpha/key.pem"), key);
  // Another host, later, of the same authority and job.
  ASSERT_EQ(Tool({"--worker", "gamma"}), 0) << output_;
  EXPECT_TRUE(Signed("gamma")) << output_;
  ASSERT_EQ(Tool({"--server", "alpha,omega", "--force"}), 0) << output_;
  EXPECT_NE(Read("fleet/alpha/key.pem"), key);
  EXPECT_THAT(Names("alpha"), HasSubstr("DNS:omega"));
  EXPECT_TRUE(CheckPemFiles(Files("alpha"), TlsSide::kBoth).ok());
  EXPECT_EQ(Read("fleet/ca.pem"), ca);
  EXPECT_EQ(Read("fleet/token"), token);
}

TEST_F(MakeCertificatesTest, RenewingKeepsKeysAndNames) {
  ASSERT_EQ(Tool({"--server", "alpha,fd00::1", "--worker", "gamma", "--days", "10"}), 0) << output_;
  const std::string key = Read("fleet/alpha/key.pem"), names = Names("alpha"),
                    gamma = Read("fleet/gamma/certificate.pem"), token = Read("fleet/token");
  const absl::Time before = *CheckPemFiles(Files("alpha"), TlsSide::kBoth);
  ASSERT_EQ(Tool({"--renew", "--server", "alpha"}), 0) << output_;
  EXPECT_EQ(Read("fleet/alpha/key.pem"), key);
  EXPECT_EQ(Names("alpha"), names);
  EXPECT_GT(*CheckPemFiles(Files("alpha"), TlsSide::kBoth), before + absl::Hours(24 * 300));
  EXPECT_EQ(Read("fleet/gamma/certificate.pem"), gamma);

  ASSERT_EQ(Tool({"--renew"}), 0) << output_;
  EXPECT_NE(Read("fleet/gamma/certificate.pem"), gamma);
  EXPECT_TRUE(CheckPemFiles(Files("gamma"), TlsSide::kClient).ok());
  EXPECT_FALSE(CheckPemFiles(Files("gamma"), TlsSide::kServer).ok());
  EXPECT_EQ(Read("fleet/token"), token);
  EXPECT_EQ(Tool({"--renew", "--server", "delta"}), 2);
  EXPECT_THAT(output_, HasSubstr("delta"));
}

TEST_F(MakeCertificatesTest, AnAuthorityThatWouldEndFirstIsRenewed) {
  ASSERT_EQ(Tool({"--server", "alpha", "--days", "10", "--ca-days", "20"}), 0) << output_;
  const std::string ca = Read("fleet/ca.pem"), old = Read("fleet/alpha/certificate.pem");
  ASSERT_EQ(Tool({"--renew", "--days", "15"}), 0) << output_;
  EXPECT_EQ(Read("fleet/ca.pem"), ca);
  ASSERT_EQ(Tool({"--renew", "--days", "100"}), 0) << output_;
  EXPECT_NE(Read("fleet/ca.pem"), ca);
  EXPECT_EQ(Read("fleet/alpha/ca.pem"), Read("fleet/ca.pem"));
  EXPECT_TRUE(Signed("alpha")) << output_;
  // The old one and the new one are good for each other's hosts, so that they may be mixed.
  ASSERT_TRUE(WriteFileAtomically(Path("old.pem"), old).ok());
  EXPECT_EQ(Run("/usr/bin/openssl", {"verify", "-CAfile", Path("fleet/ca.pem"), Path("old.pem")}), 0);
  ASSERT_TRUE(WriteFileAtomically(Path("old-ca.pem"), ca).ok());
  EXPECT_EQ(Run("/usr/bin/openssl",
                {"verify", "-CAfile", Path("old-ca.pem"), Files("alpha").certificate}),
            0);
}

TEST_F(MakeCertificatesTest, ANewTokenGoesToEveryHost) {
  ASSERT_EQ(Tool({"--server", "alpha", "--worker", "gamma"}), 0) << output_;
  const std::string before = Read("fleet/token"), certificate = Read("fleet/alpha/certificate.pem");
  ASSERT_EQ(Tool({"--new-token"}), 0) << output_;
  EXPECT_NE(Read("fleet/token"), before);
  for (const char* host : {"alpha", "gamma"}) {
    EXPECT_EQ(Read(std::string("fleet/") + host + "/token"), Read("fleet/token"));
  }
  EXPECT_EQ(Read("fleet/alpha/certificate.pem"), certificate);
}

TEST_F(MakeCertificatesTest, BadArgumentsChangeNothing) {
  const std::vector<std::vector<std::string>> bad = {
      {},
      {"--server", ""},
      {"--server", "a b"},
      {"--server", "alpha,,beta"},
      {"--server", "-alpha"},
      {"--server", "al/pha"},
      {"--server", "*.alpha"},
      {"--server", "alpha", "--worker", "alpha"},
      {"--worker", "gamma,delta"},
      {"--server", "alpha", "--days", "0"},
      {"--server", "alpha", "--days", "x"},
      {"--server", "alpha", "--days", "3650"},
      {"--server", std::string(65, 'a')},
      {"--renew"},
      {"--new-token"},
      {"--server", "../alpha"},
      {"--worker", "token"},
      {"--server", "alpha", "--worker", "ca.pem"},
  };
  for (const std::vector<std::string>& arguments : bad) {
    EXPECT_EQ(Tool(arguments), 2) << (arguments.empty() ? "" : arguments.back()) << output_;
    EXPECT_FALSE(std::filesystem::exists(Path("fleet")));
  }
}

TEST_F(MakeCertificatesTest, WithoutOpensslItSaysWhatToInstall) {
  EXPECT_EQ(Run(FORESHARD_SOURCE_DIR "/tools/make-certificates",
                {Path("fleet"), "--server", "alpha"}, {"PATH=" + folder_}),
            1);
  EXPECT_THAT(output_, HasSubstr("apt-get install openssl"));
}

}  // namespace
}  // namespace foreshard
