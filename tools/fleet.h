// Real daemons on this machine: the processes of one job, started on loopback,
// watched and ended. What `foreshard run` and the end-to-end tests are made of.
//
//   Fleet fleet({.programs = ExecutableFolder(), .folder = "results/logs",
//                .job = {"--job=results/job.textproto"}});
//   for (uint32_t shard = 0; shard < 2; ++shard) RETURN_IF_ERROR(fleet.StartServer(shard));
//   RETURN_IF_ERROR(fleet.WaitForServers(absl::Seconds(60)));
//   RETURN_IF_ERROR(fleet.StartWorker(0));
//   for (const ChildExit& exit : fleet.TakeExits()) LOG(WARNING) << exit.Describe();
//   fleet.End(absl::Seconds(5));
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/process.h"

namespace foreshard {

enum class Role : uint8_t { kServer, kWorker, kEvaluator };

struct Child {
  Role role = Role::kServer;
  uint32_t index = 0;      // shard, or number of the worker
  std::string name;        // "server-0", "worker-3", "evaluator"
  std::string log_path;
  std::string ready_path;  // of a server: appears when it is up
  std::unique_ptr<Process> process;
  // How it ended, once Poll saw it; TakeExits has reported it when `reported`.
  std::optional<ProcessExit> exit;
  bool reported = false;
};

// The news that a child has ended.
struct ChildExit {
  Role role = Role::kServer;
  uint32_t index = 0;
  std::string name;
  ProcessExit exit;
  std::string log_path;

  // "server-1 was killed by signal 9 (Killed); log: PATH", and, where it did not
  // end well, the last lines of its log, indented.
  std::string Describe() const;
};

struct FleetOptions {
  std::string programs;  // folder of foreshard-server and foreshard-worker
  std::string folder;    // of logs and ready files; exists
  std::vector<std::string> job;  // arguments that name the job: --job, --set
};

// What a daemon writes to its --ready-file.
struct ReadyFile {
  std::string address;
  std::string metrics_address;
  int64_t pid = 0;
};

// Thread-compatible; children may only be started on the main thread (process.h).
// The destructor kills what still runs.
class Fleet {
 public:
  explicit Fleet(FleetOptions options) : options_(std::move(options)) {}

  // Starts one process; it need not be up yet. `arguments` ("--flag=value") replace
  // those of the same flag that are given by default.
  // NOT_FOUND names a program that is not there.
  absl::Status StartServer(uint32_t shard, std::vector<std::string> arguments = {});
  absl::Status StartWorker(uint32_t index, std::vector<std::string> arguments = {});
  absl::Status StartEvaluator(std::vector<std::string> arguments = {});

  // Waits until every server has written its ready file. DEADLINE_EXCEEDED names
  // the servers that have not; a server that ended is an error that describes it
  // (code INVALID_ARGUMENT where it ended with status 2). `give_up`, asked between,
  // ends the wait with CANCELLED.
  absl::Status WaitForServers(absl::Duration timeout,
                              const std::function<bool()>& give_up = nullptr);

  // Of the servers, in order of shard; after WaitForServers.
  std::vector<std::string> addresses() const;
  // For --servers.
  std::string address_list() const;

  // nullptr where there is no child of that name. A later start of the same name
  // replaces the child.
  Child* Find(const std::string& name);
  const std::vector<Child>& children() const { return children_; }

  // Looks at every child; returns those that have ended since the last call.
  std::vector<ChildExit> TakeExits();
  // Those that have not ended, as of now.
  size_t Running(Role role);
  // Waits until no child of the role runs; false when some still do.
  bool WaitForExits(Role role, absl::Duration timeout,
                    const std::function<bool()>& give_up = nullptr);

  // Ends all children of a role: SIGTERM to all at once, SIGKILL after `grace`.
  void Terminate(Role role, absl::Duration grace);
  // Ends all: evaluator and workers, then servers.
  void End(absl::Duration grace);

 private:
  absl::Status Start(Role role, uint32_t index, const std::string& name,
                     const std::string& program, std::vector<std::string> arguments);

  FleetOptions options_;
  std::vector<Child> children_;
};

// INVALID_ARGUMENT where the content is no ready file.
absl::StatusOr<ReadyFile> ReadReadyFile(const std::string& path);

}  // namespace foreshard
