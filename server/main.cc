// foreshard-server: one shard of a job.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/core/exit_code.h"
#include "common/net/credential_flags.h"
#include "common/net/job_flags.h"
#include "common/net/logging.h"
#include "common/net/process.h"
#include "common/net/version.h"
#include "glog/logging.h"
#include "nlohmann/json.hpp"
#include "server/arrivals.h"
#include "server/listener.h"
#include "server/shard_server.h"
#include "server/start_interrupt.h"

namespace foreshard {
namespace {

// If an end takes longer than this, it is forced.
constexpr std::chrono::seconds kShutdownBound{25};
// With a last checkpoint to be written.
constexpr std::chrono::seconds kCheckpointBound{300};
// A signal of our own to the main thread: the admin asked for the end.
constexpr int kExitRequested = SIGUSR1;

std::string HostName() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

// "2" to 2; "ordinal" to the number after the last '-' of the host's name.
absl::StatusOr<uint32_t> ParseShard(const std::string& text) {
  uint32_t shard = 0;
  if (text != "ordinal") {
    if (absl::SimpleAtoi(text, &shard)) return shard;
    return absl::InvalidArgumentError(
        absl::StrCat("--shard: ", text, ": give a number from 0 on, or 'ordinal'"));
  }
  const std::string host = HostName();
  const std::string name = host.substr(0, host.find('.'));
  const size_t dash = name.rfind('-');
  if (dash != std::string::npos && absl::SimpleAtoi(name.substr(dash + 1), &shard)) return shard;
  return absl::InvalidArgumentError(absl::StrCat(
      "--shard: ordinal: the host name '", name,
      "' does not end in '-' and a number; say --shard=N"));
}

// An address that others can use: a wildcard gives way to the host's name.
std::string ReachableAddress(const std::string& bound) {
  const size_t colon = bound.rfind(':');
  const std::string host = bound.substr(0, colon);
  if (host != "0.0.0.0" && host != "[::]") return bound;
  return HostName() + bound.substr(colon);
}

// Readers see the whole file or none.
absl::Status WriteReadyFile(const std::string& path, const std::string& address,
                            const std::string& metrics_address) {
  const nlohmann::json content = {
      {"address", address}, {"metrics_address", metrics_address}, {"pid", getpid()}};
  const std::string part = absl::StrCat(path, ".", getpid(), ".part");
  std::ofstream file(part);
  file << content.dump() << "\n";
  file.close();
  if (file.fail() || std::rename(part.c_str(), path.c_str()) != 0) {
    std::remove(part.c_str());
    return absl::UnavailableError(absl::StrCat("--ready-file: cannot write ", path,
                                               ": does its folder exist, is there room?"));
  }
  return absl::OkStatus();
}

int Report(const absl::Status& status) {
  LOG(ERROR) << status.message();
  return ExitCodeFor(status);
}

int Main(int argc, char** argv) {
  CLI::App app("Serves one shard of a job's parameters to its workers.", "foreshard-server");
  JobFlags job_flags;
  job_flags.AddTo(app);
  CredentialFlags credential_flags;
  credential_flags.AddTo(app);
  std::string shard_text = "0", metrics = "127.0.0.1:0", ready_file, advertise, arrivals_file;
  ShardServerOptions options;
  options.listen = "127.0.0.1:50051";
  app.add_option("--shard", shard_text,
                 "Which shard: a number from 0 on, or 'ordinal' for the one at the end of the "
                 "host's name. Shard 0 is the lead")
      ->capture_default_str();
  app.add_option("--listen", options.listen, "Address for workers and tools; port 0: any")
      ->capture_default_str();
  app.add_option("--metrics-listen", metrics,
                 "Address of /metrics for Prometheus, and of the live page, at /; port 0: any; empty: none")
      ->capture_default_str();
  app.add_option("--health-listen", options.health_listen,
                 "Answer gRPC health checks here as well, in plain text and without a token, as the "
                 "probes of Kubernetes ask; port 0: any [none]");
  app.add_option("--ready-file", ready_file,
                 "Write address, metrics_address and pid to this file, as JSON, once listening");
  app.add_option("--record-arrivals", arrivals_file,
                 "Write the order in which events took effect to this file, a line an event, from "
                 "which the run can be recomputed")
      ->type_name("FILE");
  CLI::Option* const state = app.add_option("--state-directory", options.state_directory,
                 "Keep journal and checkpoints in this folder, of this server alone, and go on from what is "
                 "there (the job's durability settings)")
      ->type_name("DIR");
  app.add_option("--advertise", advertise,
                 "The address that others should use, where it is not the one bound");
  app.set_version_flag("--version", std::string("foreshard-server ") + kVersion);
  app.footer(
      "Exit status: 0 ended by SIGTERM or `foreshard stop`; 1 failed, a port or state directory that is in use; 2 bad\n"
      "configuration, or the state of another job or shard; 130 interrupted.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitDone : kExitBadConfiguration;
  }

  InitLogging(argv[0], absl::StrCat("server ", shard_text));
  PrepareProcess();
  RaiseFileLimit();
  // abseil's search for lock cycles was measured to take 2 % of small exchanges.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const absl::StatusOr<uint32_t> shard = ParseShard(shard_text);
  if (!shard.ok()) return Report(shard.status());
  SetLogRole(absl::StrCat("server ", *shard));
  absl::StatusOr<v1::JobSpec> job = job_flags.Load();
  if (!job.ok()) return Report(job.status());
  options.job = *std::move(job);
  options.shard = *shard;
  options.metrics_listen = metrics;
  const absl::StatusOr<Credentials> credentials = credential_flags.Load(TlsSide::kServer);
  if (!credentials.ok()) return Report(credentials.status());
  options.credentials = *credentials;

  std::unique_ptr<ArrivalRecorder> arrivals;  // ends after the server
  if (!arrivals_file.empty()) {
    auto created = ArrivalRecorder::Create(arrivals_file);
    if (!created.ok()) return Report(created.status());
    arrivals = *std::move(created);
    options.events = arrivals.get();
  }

  // Before any thread is made, so that only the wait below sees these signals.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT, kExitRequested}) sigaddset(&signals, number);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  const pthread_t main_thread = pthread_self();
  options.exit_requested = [main_thread] { pthread_kill(main_thread, kExitRequested); };
  std::atomic<bool> failed{false};
  options.failed = [&failed, main_thread](const absl::Status&) {
    failed = true;
    pthread_kill(main_thread, kExitRequested);
  };

  // Of `--state-directory=$UNSET` the parser makes the next flag.
  if (state->count() > 0 && (options.state_directory.empty() || options.state_directory.front() == '-')) {
    return Report(absl::InvalidArgumentError(
        absl::StrCat("--state-directory: '", options.state_directory,
                     "' is no folder; is a variable not set? Give one, or leave the flag out, and nothing is kept")));
  }
  if (arrivals != nullptr && !options.state_directory.empty()) {
    return Report(absl::InvalidArgumentError(
        "--record-arrivals: a server with --state-directory has them in its journal; give one of the two"));
  }

  absl::StatusOr<std::unique_ptr<ShardServer>> server = [&] {
    const StartInterrupt interrupt;
    return ShardServer::Start(options);
  }();
  if (!server.ok()) return Report(server.status());
  const std::string address =
      advertise.empty() ? ReachableAddress((*server)->address()) : advertise;
  LOG(INFO) << "job '" << options.job.name() << "', shard " << *shard << " of "
            << options.job.servers().shards() << ": listening on " << (*server)->address()
            << " (" << credentials->Describe() << ")"
            << (advertise.empty() ? "" : ", known as " + advertise)
            << (metrics.empty() ? "" : ", metrics on " + (*server)->metrics_address());
  if (!ready_file.empty()) {
    if (absl::Status status = WriteReadyFile(ready_file, address, (*server)->metrics_address());
        !status.ok()) {
      return Report(status);
    }
  }

  int number = 0;
  sigwait(&signals, &number);
  LOG(INFO) << "ending: "
            << (failed                     ? "its state cannot be kept"
                : number == kExitRequested ? "asked to by the admin"
                                           : strsignal(number));
  std::thread([bound = options.state_directory.empty() ? kShutdownBound : kCheckpointBound] {
    std::this_thread::sleep_for(bound);
    LOG(ERROR) << "the end has taken too long and is forced";
    _exit(kExitFailed);
  }).detach();
  const absl::Status ended = (*server)->Shutdown();
  if (!ended.ok()) LOG(ERROR) << ended.message();
  LOG(INFO) << "ended";
  const int exit_code = failed || !ended.ok() ? kExitFailed : number == SIGINT ? kExitInterrupted : kExitDone;
  server->reset();
  return exit_code;
}

}  // namespace
}  // namespace foreshard

int main(int argc, char** argv) { return foreshard::Main(argc, argv); }
