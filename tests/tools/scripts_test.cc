// The scripts, as far as they can be tried without installing or building.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/files.h"
#include "tools/process.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

class ScriptsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "scripts_test." + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Exit status of a script of the source tree; its output goes to `output_`.
  int Script(const std::string& name, const std::vector<std::string>& arguments,
             const std::vector<std::string>& environment = {}) {
    auto process = Process::Start({.program = FORESHARD_SOURCE_DIR "/" + name,
                                   .arguments = arguments,
                                   .environment = environment,
                                   .log_path = folder_ + "/output"});
    EXPECT_TRUE(process.ok()) << process.status();
    if (!process.ok()) return -1;
    const std::optional<ProcessExit> exit = (*process)->Wait(absl::Seconds(120));
    EXPECT_TRUE(exit.has_value());
    output_ = ReadFile(folder_ + "/output").value_or("");
    return exit.has_value() && exit->signal == 0 ? exit->status : -1;
  }

  std::string folder_;
  std::string output_;
};

TEST_F(ScriptsTest, EveryScriptSaysWhatItIsFor) {
  for (const char* script :
       {"tools/quickstart", "tools/test", "tools/build", "tools/install-dependencies",
        "tools/make-certificates", "tools/install-deploy-tools", "tools/make-dashboards"}) {
    EXPECT_EQ(Script(script, {"--help"}), 0) << script;
    EXPECT_THAT(output_, HasSubstr(script));
  }
}

TEST_F(ScriptsTest, UnknownArgumentsEndWithTwoAndARemedy) {
  EXPECT_EQ(Script("tools/test", {"--preset", "fast"}), 2);
  EXPECT_THAT(output_, HasSubstr("release, debug, asan, tsan"));
  EXPECT_EQ(Script("tools/build", {"fast"}), 2);
  EXPECT_THAT(output_, HasSubstr("release, debug, asan, tsan"));
  EXPECT_EQ(Script("tools/install-dependencies", {"--fast"}), 2);
  EXPECT_THAT(output_, HasSubstr("--dry-run"));
}

TEST_F(ScriptsTest, OnAMachineThatIsNoDebianItListsWhatToInstall) {
  // A folder with the shell's tools and nothing of Debian's.
  for (const char* program : {"bash", "id", "sed", "tr", "fold", "env", "cat"}) {
    for (const char* folder : {"/bin/", "/usr/bin/"}) {
      std::error_code error;
      if (!std::filesystem::exists(std::string(folder) + program)) continue;
      std::filesystem::create_symlink(std::string(folder) + program, folder_ + "/" + program,
                                      error);
    }
  }
  EXPECT_EQ(Script("tools/install-dependencies", {}, {"PATH=" + folder_}), 1);
  EXPECT_THAT(output_, HasSubstr("no Debian"));
  EXPECT_THAT(output_, HasSubstr("libgrpc++-dev"));
}

TEST_F(ScriptsTest, ADryRunInstallsNothingAndNamesWhatIsMissing) {
  // dpkg-query that knows of one package only, and an apt-get that must not be called.
  const auto program = [&](const std::string& name, const std::string& body) {
    const std::string path = folder_ + "/" + name;
    ASSERT_TRUE(WriteFileAtomically(path, "#!/bin/sh\n" + body + "\n").ok());
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  };
  program("dpkg-query", "echo 'ii  cmake'; exit 1");
  program("apt-get", "touch " + folder_ + "/called");
  EXPECT_EQ(Script("tools/install-dependencies", {"--dry-run"},
                   {"PATH=" + folder_ + ":" + getenv("PATH")}),
            1);
  int missing = 0, all = 0;
  ASSERT_EQ(sscanf(output_.c_str(), "Dependencies: %d of %d Debian packages are missing", &missing, &all), 2) << output_;
  EXPECT_EQ(missing, all - 1);
  EXPECT_GT(all, 30);
  EXPECT_THAT(output_, HasSubstr("libgrpc++-dev"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/called"));
}

}  // namespace
}  // namespace foreshard
