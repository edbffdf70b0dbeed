#include "tools/fleet.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/core/exit_code.h"
#include "nlohmann/json.hpp"
#include "tools/files.h"

namespace foreshard {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(10);
constexpr size_t kLogLines = 8;

ChildExit Report(const Child& child) {
  return {child.role, child.index, child.name, *child.exit, child.log_path};
}

// Appends "--flag=value" arguments; one of a flag that is there already replaces it.
void Merge(const std::vector<std::string>& from, std::vector<std::string>* arguments) {
  for (const std::string& argument : from) {
    const std::string flag = argument.substr(0, argument.find('=') + 1);
    const auto same = std::find_if(
        arguments->begin(), arguments->end(),
        [&](const std::string& other) { return !flag.empty() && absl::StartsWith(other, flag); });
    if (same != arguments->end() && flag != "--set=") {
      *same = argument;
    } else {
      arguments->push_back(argument);
    }
  }
}

}  // namespace

std::string ChildExit::Describe() const {
  std::string text = absl::StrCat(name, " ", exit.Describe(), "; log: ", log_path);
  if (exit.ok()) return text;
  const std::vector<std::string> lines = LastLines(log_path, kLogLines);
  if (lines.empty()) return absl::StrCat(text, " (empty)");
  absl::StrAppend(&text, ", which ends with");
  for (const std::string& line : lines) absl::StrAppend(&text, "\n    ", line);
  return text;
}

absl::StatusOr<ReadyFile> ReadReadyFile(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const auto string_at = [&](const char* name) -> std::string {
    const auto at = json.find(name);
    return at != json.end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is no ready file: not a JSON object"));
  }
  ReadyFile ready;
  ready.address = string_at("address");
  ready.metrics_address = string_at("metrics_address");
  if (const auto at = json.find("pid"); at != json.end() && at->is_number_integer()) {
    ready.pid = at->get<int64_t>();
  }
  return ready;
}

absl::Status Fleet::Start(Role role, uint32_t index, const std::string& name,
                          const std::string& program, std::vector<std::string> arguments) {
  Child child;
  child.role = role;
  child.index = index;
  child.name = name;
  child.log_path = absl::StrCat(options_.folder, "/", name, ".log");
  if (role == Role::kServer) {
    child.ready_path = absl::StrCat(options_.folder, "/", name, ".ready.json");
    unlink(child.ready_path.c_str());
    arguments.push_back(absl::StrCat("--ready-file=", child.ready_path));
  }
  ProcessOptions process;
  process.program = absl::StrCat(options_.programs, "/", program);
  process.arguments = options_.job;
  for (std::string& argument : arguments) process.arguments.push_back(std::move(argument));
  process.log_path = child.log_path;
  absl::StatusOr<std::unique_ptr<Process>> started = Process::Start(process);
  if (!started.ok()) {
    if (!absl::IsNotFound(started.status())) return started.status();
    return absl::NotFoundError(absl::StrCat(
        started.status().message(), "; the programs belong into one folder: build them with ",
        "tools/build release foreshard foreshard-server foreshard-worker"));
  }
  child.process = *std::move(started);
  if (Child* old = Find(name); old != nullptr) {
    *old = std::move(child);
  } else {
    children_.push_back(std::move(child));
  }
  return absl::OkStatus();
}

absl::Status Fleet::StartServer(uint32_t shard, std::vector<std::string> arguments) {
  std::vector<std::string> all = {absl::StrCat("--shard=", shard), "--listen=127.0.0.1:0",
                                  "--metrics-listen=127.0.0.1:0"};
  Merge(arguments, &all);
  return Start(Role::kServer, shard, absl::StrCat("server-", shard), "foreshard-server",
               std::move(all));
}

absl::Status Fleet::StartWorker(uint32_t index, std::vector<std::string> arguments) {
  const std::string name = absl::StrCat("worker-", index);
  std::vector<std::string> all = {absl::StrCat("--servers=", address_list()), "--role=worker",
                                  absl::StrCat("--name=", name), "--metrics-listen=127.0.0.1:0"};
  Merge(arguments, &all);
  return Start(Role::kWorker, index, name, "foreshard-worker", std::move(all));
}

absl::Status Fleet::StartEvaluator(std::vector<std::string> arguments) {
  std::vector<std::string> all = {absl::StrCat("--servers=", address_list()), "--role=evaluator",
                                  "--name=evaluator", "--metrics-listen=127.0.0.1:0"};
  Merge(arguments, &all);
  return Start(Role::kEvaluator, 0, "evaluator", "foreshard-worker", std::move(all));
}

absl::Status Fleet::WaitForServers(absl::Duration timeout, const std::function<bool()>& give_up) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    std::vector<std::string> waiting;
    for (Child& child : children_) {
      if (child.role != Role::kServer) continue;
      if (!child.exit.has_value()) child.exit = child.process->Poll();
      if (child.exit.has_value()) {
        child.reported = true;
        const auto code = child.exit->signal == 0 && child.exit->status == kExitBadConfiguration
                              ? absl::StatusCode::kInvalidArgument
                              : absl::StatusCode::kUnavailable;
        return absl::Status(code, Report(child).Describe());
      }
      absl::StatusOr<ReadyFile> ready = ReadReadyFile(child.ready_path);
      if (!ready.ok() || ready->address.empty()) waiting.push_back(child.name);
    }
    if (waiting.empty()) return absl::OkStatus();
    if (give_up && give_up()) return absl::CancelledError("interrupted while servers start");
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          absl::StrJoin(waiting, ", "), " not up within ", absl::FormatDuration(timeout),
          "; see the logs in ", options_.folder));
    }
    absl::SleepFor(kPollInterval);
  }
}

std::vector<std::string> Fleet::addresses() const {
  std::vector<std::pair<uint32_t, std::string>> servers;
  for (const Child& child : children_) {
    if (child.role != Role::kServer) continue;
    absl::StatusOr<ReadyFile> ready = ReadReadyFile(child.ready_path);
    servers.emplace_back(child.index, ready.ok() ? ready->address : "");
  }
  std::sort(servers.begin(), servers.end());
  std::vector<std::string> addresses;
  for (auto& [shard, address] : servers) addresses.push_back(std::move(address));
  return addresses;
}

std::string Fleet::address_list() const { return absl::StrJoin(addresses(), ","); }

Child* Fleet::Find(const std::string& name) {
  for (Child& child : children_) {
    if (child.name == name) return &child;
  }
  return nullptr;
}

std::vector<ChildExit> Fleet::TakeExits() {
  std::vector<ChildExit> exits;
  for (Child& child : children_) {
    if (!child.exit.has_value()) child.exit = child.process->Poll();
    if (!child.exit.has_value() || child.reported) continue;
    child.reported = true;
    exits.push_back(Report(child));
  }
  return exits;
}

size_t Fleet::Running(Role role) {
  size_t running = 0;
  for (Child& child : children_) {
    if (!child.exit.has_value()) child.exit = child.process->Poll();
    running += child.role == role && !child.exit.has_value();
  }
  return running;
}

bool Fleet::WaitForExits(Role role, absl::Duration timeout,
                         const std::function<bool()>& give_up) {
  const absl::Time deadline = absl::Now() + timeout;
  while (Running(role) > 0) {
    if (absl::Now() >= deadline || (give_up && give_up())) return false;
    absl::SleepFor(kPollInterval);
  }
  return true;
}

void Fleet::Terminate(Role role, absl::Duration grace) {
  for (Child& child : children_) {
    if (child.role == role) child.process->Signal(SIGTERM);
  }
  WaitForExits(role, grace);
  for (Child& child : children_) {
    if (child.role == role) child.exit = child.process->Terminate(absl::ZeroDuration());
  }
}

void Fleet::End(absl::Duration grace) {
  for (Child& child : children_) {
    if (child.role != Role::kServer) child.process->Signal(SIGTERM);
  }
  Terminate(Role::kEvaluator, grace);
  Terminate(Role::kWorker, grace);
  Terminate(Role::kServer, grace);
}

}  // namespace foreshard
