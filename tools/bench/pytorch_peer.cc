#include "tools/bench/pytorch_peer.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

extern char** environ;

namespace foreshard::bench {
namespace {

constexpr char kPython[] = "/usr/bin/python3";
constexpr char kScript[] = FORESHARD_PYTORCH_STEPS;
constexpr int kWaitMilliseconds = 300'000;  // for one answer

}  // namespace

absl::StatusOr<std::unique_ptr<PytorchPeer>> PytorchPeer::Start(const std::string& model,
                                                                const InputShape& shape,
                                                                uint32_t batch) {
  for (const char* file : {kPython, kScript}) {
    if (access(file, R_OK) != 0) {
      return absl::UnavailableError(absl::StrCat(file, " is not there"));
    }
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::UnavailableError(absl::StrCat("no pair of sockets: ", std::strerror(errno)));
  }
  std::vector<std::string> words = {kPython,
                                    kScript,
                                    model,
                                    std::to_string(shape.height),
                                    std::to_string(shape.width),
                                    std::to_string(shape.channels),
                                    std::to_string(batch)};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, kPython, &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    return absl::UnavailableError(absl::StrCat(kPython, ": ", std::strerror(error)));
  }
  std::unique_ptr<PytorchPeer> peer(new PytorchPeer(pid, ends[0]));
  auto line = peer->ReadLine();
  if (!line.ok()) return line.status();
  absl::string_view text = *line;
  if (!absl::ConsumePrefix(&text, "ready ")) return absl::UnavailableError(*line);
  peer->description_ = std::string(text);
  return peer;
}

// A closed standard input ends the script; one that hangs is killed.
PytorchPeer::~PytorchPeer() {
  close(connection_);
  for (int i = 0; i < 50; ++i) {
    if (waitpid(pid_, nullptr, WNOHANG) != 0) return;
    usleep(100'000);
  }
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

absl::StatusOr<std::string> PytorchPeer::ReadLine() {
  size_t end = 0;
  while ((end = unread_.find('\n')) == std::string::npos) {
    pollfd wait{connection_, POLLIN, 0};
    if (poll(&wait, 1, kWaitMilliseconds) <= 0) {
      return absl::UnavailableError(absl::StrCat(kScript, " does not answer"));
    }
    char bytes[256];
    const ssize_t got = read(connection_, bytes, sizeof bytes);
    if (got <= 0) return absl::UnavailableError(absl::StrCat(kScript, " has ended"));
    unread_.append(bytes, static_cast<size_t>(got));
  }
  const std::string line = unread_.substr(0, end);
  unread_.erase(0, end + 1);
  return line;
}

absl::StatusOr<double> PytorchPeer::SecondsPerStep(uint32_t steps) {
  const std::string question = absl::StrCat(steps, "\n");
  if (send(connection_, question.data(), question.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(question.size())) {
    return absl::UnavailableError(absl::StrCat(kScript, " has ended"));
  }
  auto line = ReadLine();
  if (!line.ok()) return line.status();
  double seconds = 0;
  if (!absl::SimpleAtod(*line, &seconds) || !(seconds > 0)) {
    return absl::UnavailableError(absl::StrCat(kScript, " answered '", *line, "'"));
  }
  return seconds;
}

}  // namespace foreshard::bench
