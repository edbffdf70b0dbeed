// foreshard status: what is going on, and what are we waiting for?
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/core/exit_code.h"
#include "common/net/channel.h"
#include "common/net/credential_flags.h"
#include "tools/admin_client.h"
#include "tools/commands.h"
#include "tools/message_json.h"
#include "tools/progress.h"
#include "tools/status_text.h"

namespace foreshard {
namespace {

struct StatusFlags {
  std::string servers;
  CredentialFlags credentials;
  bool json = false;
  double timeout_seconds = 5;
};

int Status(const StatusFlags& flags) {
  const absl::StatusOr<std::unique_ptr<AdminClient>> connected = AdminClient::Connect(flags.servers, flags.credentials);
  if (!connected.ok()) return Fail("status", connected.status());
  AdminClient& admin = **connected;
  const std::vector<std::string>& addresses = admin.addresses();
  const std::vector<absl::StatusOr<v1::StatusReply>> replies =
      admin.GetStatus(absl::Seconds(flags.timeout_seconds));
  if (flags.json) {
    std::printf("%s", JsonText(ServersJson(addresses, replies)).c_str());
  } else {
    std::printf("%s", StatusText(addresses, replies).c_str());
  }
  std::fflush(stdout);
  int exit_code = kExitDone;
  for (const absl::StatusOr<v1::StatusReply>& reply : replies) {
    if (reply.ok()) continue;
    Fail("status", reply.status());
    exit_code = kExitFailed;
  }
  return exit_code;
}

}  // namespace

void AddStatusCommand(CLI::App& program, int* exit_code) {
  auto flags = std::make_shared<StatusFlags>();
  CLI::App* status = program.add_subcommand(
      "status", "Ask running servers what is going on and what they wait for");
  status->add_option("--servers", flags->servers, "The servers, as in host1:7001,host2:7001")
      ->required()
      ->type_name("ADDRESSES");
  status->add_flag("--json", flags->json, "As JSON, with every field of every server");
  status->add_option("--timeout", flags->timeout_seconds, "Seconds to wait for an answer")
      ->check(NumberAboveZero())
      ->capture_default_str();
  flags->credentials.AddTo(*status);
  status->footer("Exit status: 0 all servers answered, 1 one did not, 2 bad arguments.");
  status->callback([flags, exit_code] { *exit_code = Status(*flags); });
}

}  // namespace foreshard
