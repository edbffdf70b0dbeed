#include <algorithm>
#include <filesystem>

#include "CLI/CLI.hpp"
#include "common/core/exit_code.h"
#include "gmock/gmock.h"
#include "tests/tools/state/stored_run.h"
#include "tools/commands.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

class ImportCommand : public StoredRunTest {
 protected:
  // The status, and what it has said on stderr.
  std::pair<int, std::string> Import(const std::vector<std::string>& flags = {}) {
    CLI::App app;
    int status = -1;
    AddImportCommand(app, &status);
    ::testing::internal::CaptureStderr();
    std::vector<std::string> arguments = {"import", "--from-state", state(), "--output", folder_ + "/made"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    std::reverse(arguments.begin(), arguments.end());
    app.parse(arguments);
    return {status, ::testing::internal::GetCapturedStderr()};
  }
};

TEST_F(ImportCommand, RefusesRoundsThatLackSomething) {
  Make(StoredJob({"update.rule=ssgd"}));
  for (auto& shard : shards_) shard->Push(6);
  End();
  Describe(1, [](v1::RunDescription* description) { description->set_unjournaled(true); });
  const auto refused = Import();
  EXPECT_EQ(refused.first, kExitBadConfiguration);
  EXPECT_THAT(refused.second, HasSubstr("shard-1: what came after its newest checkpoint is lost"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/made/shard-0"));
  const auto forced = Import({"--force"});
  EXPECT_EQ(forced.first, kExitDone) << forced.second;
  EXPECT_THAT(forced.second, HasSubstr("warning"));
}

TEST_F(ImportCommand, WarnsOfWhatAsynchronousJobsLack) {
  Make(StoredJob());
  for (auto& shard : shards_) shard->Push(6);
  End();
  Describe(1, [](v1::RunDescription* description) { description->set_boot_id("another"); });
  const auto warned = Import();
  EXPECT_EQ(warned.first, kExitDone) << warned.second;
  EXPECT_THAT(warned.second, HasSubstr("may be lost"));
}

}  // namespace
}  // namespace foreshard
