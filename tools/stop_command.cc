// foreshard stop: ends a running job on all its servers.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/core/exit_code.h"
#include "common/net/channel.h"
#include "common/net/credential_flags.h"
#include "tools/admin_client.h"
#include "tools/commands.h"

namespace foreshard {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(200);
// Evaluators and launchers look at the lead about once a second; they should see that
// the job has ended, not only that the servers are gone.
constexpr absl::Duration kLastLook = absl::Milliseconds(2500);

struct StopFlags {
  std::string servers;
  CredentialFlags credentials;
  std::string reason = "stopped by foreshard stop";
  double grace_seconds = 20;
  double timeout_seconds = 5;
};

// Workers that have not left, as the lead sees it; 0 where the lead does not answer.
int WorkersTraining(AdminClient& admin, absl::Duration timeout) {
  int training = 0;
  for (const absl::StatusOr<v1::StatusReply>& reply : admin.GetStatus(timeout)) {
    if (!reply.ok() || !reply->lead()) continue;
    training = std::count_if(reply->workers().begin(), reply->workers().end(),
                             [](const auto& worker) { return worker.state() == "training"; });
  }
  return training;
}

int Stop(const StopFlags& flags) {
  const absl::StatusOr<std::unique_ptr<AdminClient>> connected = AdminClient::Connect(flags.servers, flags.credentials);
  if (!connected.ok()) return Fail("stop", connected.status());
  AdminClient& admin = **connected;
  const std::vector<std::string>& addresses = admin.addresses();
  const absl::Duration timeout = absl::Seconds(flags.timeout_seconds);

  // First the job, so that workers hear of it from the lead; then the processes.
  int exit_code = kExitDone;
  for (const absl::Status& status : admin.Stop(flags.reason, false, timeout)) {
    if (status.ok()) continue;
    Fail("stop", status);
    exit_code = kExitFailed;
  }
  const absl::Time deadline = absl::Now() + absl::Seconds(flags.grace_seconds);
  int training = 0;
  while ((training = WorkersTraining(admin, timeout)) > 0 && absl::Now() < deadline) {
    absl::SleepFor(kPollInterval);
  }
  if (training > 0) {
    std::printf("%d workers have not left within %g s; ending the servers all the same\n",
                training, flags.grace_seconds);
  }
  if (exit_code == kExitDone) absl::SleepFor(kLastLook);
  const std::vector<absl::Status> ended = admin.Stop(flags.reason, true, timeout);
  for (size_t i = 0; i < ended.size(); ++i) {
    if (ended[i].ok()) {
      std::printf("server %s is ending\n", addresses[i].c_str());
    } else if (exit_code == kExitDone && absl::IsUnavailable(ended[i])) {
      // It took the first word, so whoever started it has ended it meanwhile.
      std::printf("server %s has ended\n", addresses[i].c_str());
    } else if (exit_code == kExitDone) {
      Fail("stop", ended[i]);
      exit_code = kExitFailed;
    }
  }
  return exit_code;
}

}  // namespace

void AddStopCommand(CLI::App& program, int* exit_code) {
  auto flags = std::make_shared<StopFlags>();
  CLI::App* stop =
      program.add_subcommand("stop", "End a running job: its workers leave, its servers end");
  stop->add_option("--servers", flags->servers,
                   "All servers of the job, as in host1:7001,host2:7001")
      ->required()
      ->type_name("ADDRESSES");
  stop->add_option("--reason", flags->reason, "Said in logs and to the workers")
      ->capture_default_str();
  stop->add_option("--grace", flags->grace_seconds, "Seconds that workers have to leave")
      ->check(NumberFromZero())
      ->capture_default_str();
  stop->add_option("--timeout", flags->timeout_seconds, "Seconds to wait for an answer")
      ->check(NumberAboveZero())
      ->capture_default_str();
  flags->credentials.AddTo(*stop);
  stop->footer("Exit status: 0 all servers are ending, 1 one did not answer, 2 bad arguments.");
  stop->callback([flags, exit_code] { *exit_code = Stop(*flags); });
}

}  // namespace foreshard
