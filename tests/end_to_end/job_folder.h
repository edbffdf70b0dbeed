// What end-to-end tests share: a temporary folder with a tiny data set and a job on
// it, the `foreshard` command run on that, and waiting for conditions with a bound.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "foreshard/v1/admin.pb.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/fleet.h"
#include "tools/process.h"

namespace foreshard {

// No condition here takes nearly as long, even with sanitizers on a busy machine.
inline constexpr absl::Duration kPatience = absl::Seconds(120);

// Polls until `condition` holds; false when it did not within the bound.
bool WaitUntil(const std::function<bool()>& condition, absl::Duration bound = kPatience);

// Whether a process of this id exists and is no zombie.
bool IsRunning(int64_t pid);

// Its arguments, each followed by a zero byte; empty when it is gone.
std::string CommandLine(int64_t pid);

// Ids of live processes with `text` in their command line.
std::vector<int64_t> ProcessesWith(const std::string& text);

// The answer to a plain GET, head and body; empty where nobody answered.
std::string HttpGet(const std::string& address, const std::string& path);

// What a finished command left.
struct Ended {
  int status = -1;    // exit status, or -1 where a signal ended it
  std::string output;  // stdout and stderr
};

class EndToEndTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // A file below the test's folder.
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  // Writes job.textproto: a small mlp on 16x16 pictures of four classes (512 to train
  // with, 128 to test), two shards. Later settings of the same field
  // win, so tests give differences as "field=value".
  std::string WriteJob(const std::vector<std::string>& overrides = {});
  // The same with a synthetic model of `elements` and as many examples.
  std::string WriteSyntheticJob(uint64_t elements, uint64_t examples,
                                const std::vector<std::string>& overrides = {});
  void WriteDataSet();

  // Starts `foreshard` with its output in `log`; Finish waits for it.
  std::unique_ptr<Process> Foreshard(const std::vector<std::string>& arguments,
                                     const std::string& log = "command.log");
  Ended Finish(Process& process, const std::string& log = "command.log");
  Ended RunForeshard(const std::vector<std::string>& arguments);

  // results.json of a results folder below the test's.
  nlohmann::json Results(const std::string& folder);

  // Daemons of `job`, started directly.
  std::unique_ptr<Fleet> MakeFleet(const std::string& job);
  // A fleet whose two servers are up.
  std::unique_ptr<Fleet> Servers(const std::string& job);
  // The statuses of the fleet's servers; empty where one did not answer.
  std::vector<v1::StatusReply> Statuses(const Fleet& fleet);
  // Completed tickets, as the lead says.
  uint64_t Completed(const Fleet& fleet);
  // The whole log of a child, for messages and expectations.
  std::string LogOf(Fleet& fleet, const std::string& name);

  std::string folder_;
};

}  // namespace foreshard
