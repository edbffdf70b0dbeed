// A child process that can't outlive us: its own process group, output to a log
// file, killed by the kernel when the parent dies, even of kill -9.
//
//   auto child = Process::Start({.program = "/bin/foreshard-server", .arguments = {"--shard=0"},
//                                .log_path = "server-0.log"});
//   (*child)->Poll();                                  // nullopt while it runs
//   (*child)->Terminate(absl::Seconds(5));             // SIGTERM, then SIGKILL
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace foreshard {

// How a process ended.
struct ProcessExit {
  int status = 0;  // exit status; meaningless when `signal` is not 0
  int signal = 0;  // the signal that killed it, or 0

  bool ok() const { return signal == 0 && status == 0; }
  // "exited with status 1 (failed)", "was killed by signal 9 (Killed)".
  std::string Describe() const;
};

struct ProcessOptions {
  std::string program;                 // path; not searched for in PATH
  std::vector<std::string> arguments;  // without the program's name
  std::vector<std::string> environment;  // "NAME=value", beside what we have ourselves
  std::string log_path;                // stdout and stderr are written here; "" = ours
};

// Thread-compatible. The destructor kills what still runs.
class Process {
 public:
  // NOT_FOUND / PERMISSION_DENIED when the program can't be executed, INTERNAL or
  // RESOURCE_EXHAUSTED when the log can't be opened or no process be made. Must be
  // called from a thread that lives as long as the child shall (the main thread):
  // the kernel kills the child when the thread that made it ends.
  static absl::StatusOr<std::unique_ptr<Process>> Start(const ProcessOptions& options);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }

  // How it ended; nullopt while it runs.
  std::optional<ProcessExit> Poll();
  // The same, waiting for the end at most so long.
  std::optional<ProcessExit> Wait(absl::Duration timeout);
  // Sends a signal to it (not to its group); nothing once it has ended.
  void Signal(int signal);
  // SIGTERM, and SIGKILL to its whole group where it still runs after `grace`.
  ProcessExit Terminate(absl::Duration grace);

 private:
  explicit Process(pid_t pid) : pid_(pid) {}

  pid_t pid_;
  std::optional<ProcessExit> exit_;
};

}  // namespace foreshard
