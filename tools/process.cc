#include "tools/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace foreshard {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(5);

// A vector of C strings that points into `strings`, ended by a null pointer.
std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& string : strings) pointers.push_back(const_cast<char*>(string.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Our environment with some variables replaced.
std::vector<std::string> Environment(const std::vector<std::string>& changes) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto same_name = [&](const std::string& change) {
      return absl::StartsWith(text, change.substr(0, change.find('=') + 1));
    };
    if (std::none_of(changes.begin(), changes.end(), same_name)) environment.push_back(text);
  }
  environment.insert(environment.end(), changes.begin(), changes.end());
  return environment;
}

absl::string_view Meaning(int status) {
  switch (status) {
    case 0: return "done";
    case 1: return "failed";
    case 2: return "bad configuration";
    case 3: return "device lost";
    case 4: return "fenced by a newer incarnation";
    case 130: return "interrupted";
  }
  return "";
}

// The child's side, between fork and exec: async-signal-safe calls only. Writes
// errno to `report` and ends when the program can't be executed.
[[noreturn]] void BecomeProgram(const char* program, char* const* arguments,
                                char* const* environment, int log, int report, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the parent died before the line above
  struct sigaction default_action = {};
  default_action.sa_handler = SIG_DFL;
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT}) {
    sigaction(signal, &default_action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int input = open("/dev/null", O_RDONLY);
  if (input >= 0) dup2(input, STDIN_FILENO);
  if (log >= 0) {
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
  }
  execve(program, arguments, environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(report, &error, sizeof error);
  _exit(127);
}

}  // namespace

std::string ProcessExit::Describe() const {
  if (signal != 0) {
    return absl::StrCat("was killed by signal ", signal, " (", strsignal(signal), ")");
  }
  const absl::string_view meaning = Meaning(status);
  return absl::StrCat("exited with status ", status, meaning.empty() ? "" : " (", meaning,
                      meaning.empty() ? "" : ")");
}

absl::StatusOr<std::unique_ptr<Process>> Process::Start(const ProcessOptions& options) {
  std::vector<std::string> arguments = options.arguments;
  arguments.insert(arguments.begin(), options.program);
  const std::vector<std::string> environment = Environment(options.environment);
  const std::vector<char*> argument_pointers = Pointers(arguments);
  const std::vector<char*> environment_pointers = Pointers(environment);

  int log = -1;
  if (!options.log_path.empty()) {
    log = open(options.log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    if (log < 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("can't write the log ", options.log_path));
    }
  }
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) {
    const int error = errno;
    if (log >= 0) close(log);
    return absl::ErrnoToStatus(error, "can't make a pipe to a child process");
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    BecomeProgram(options.program.c_str(), argument_pointers.data(), environment_pointers.data(),
                  log, report[1], parent);
  }
  const int fork_error = errno;
  if (log >= 0) close(log);
  close(report[1]);
  if (pid < 0) {
    close(report[0]);
    return absl::ErrnoToStatus(fork_error,
                               absl::StrCat("can't start a process for ", options.program));
  }
  // Ends with the pipe's close at exec, or brings errno.
  int error = 0;
  ssize_t got;
  do {
    got = read(report[0], &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  close(report[0]);
  auto process = std::unique_ptr<Process>(new Process(pid));
  if (got == sizeof error) {
    process->Wait(absl::InfiniteDuration());
    return absl::ErrnoToStatus(error, absl::StrCat("can't execute ", options.program));
  }
  return process;
}

Process::~Process() {
  if (Poll().has_value()) return;
  kill(-pid_, SIGKILL);
  Wait(absl::InfiniteDuration());
}

std::optional<ProcessExit> Process::Poll() {
  if (exit_.has_value()) return exit_;
  int status = 0;
  pid_t got;
  do {
    got = waitpid(pid_, &status, WNOHANG);
  } while (got < 0 && errno == EINTR);
  if (got == 0) return std::nullopt;
  ProcessExit exit;
  if (got < 0) {
    exit.status = 1;  // no such child: somebody else has waited for it
  } else if (WIFSIGNALED(status)) {
    exit.signal = WTERMSIG(status);
  } else {
    exit.status = WEXITSTATUS(status);
  }
  exit_ = exit;
  return exit_;
}

std::optional<ProcessExit> Process::Wait(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    std::optional<ProcessExit> exit = Poll();
    if (exit.has_value() || absl::Now() >= deadline) return exit;
    absl::SleepFor(kPollInterval);
  }
}

void Process::Signal(int signal) {
  if (!Poll().has_value()) kill(pid_, signal);
}

ProcessExit Process::Terminate(absl::Duration grace) {
  Signal(SIGTERM);
  std::optional<ProcessExit> exit = Wait(grace);
  if (!exit.has_value()) {
    kill(-pid_, SIGKILL);
    exit = Wait(absl::InfiniteDuration());
  }
  return *exit;
}

}  // namespace foreshard
