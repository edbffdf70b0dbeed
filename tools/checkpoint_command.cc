// foreshard checkpoint: has servers write one now, or lists what there is.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/core/exit_code.h"
#include "common/net/admin_client.h"
#include "common/net/channel.h"
#include "common/net/credential_flags.h"
#include "tools/commands.h"
#include "tools/message_json.h"
#include "tools/progress.h"
#include "tools/state/verify.h"

namespace foreshard {
namespace {

struct CheckpointFlags {
  std::string servers;
  std::vector<std::string> list;
  CredentialFlags credentials;
  bool json = false;
  double timeout_seconds = 600;
};

int Write(const CheckpointFlags& flags) {
  const absl::StatusOr<std::unique_ptr<AdminClient>> connected = AdminClient::Connect(flags.servers, flags.credentials);
  if (!connected.ok()) return Fail("checkpoint", connected.status());
  AdminClient& admin = **connected;
  const std::vector<std::string>& addresses = admin.addresses();
  const auto replies = admin.Checkpoint(absl::Seconds(flags.timeout_seconds));
  int exit_code = kExitDone;
  for (size_t k = 0; k < replies.size(); ++k) {
    const absl::StatusOr<v1::CheckpointReply>& reply = replies[k];
    if (!reply.ok()) {
      Fail("checkpoint", reply.status());
      exit_code = kExitFailed;
    } else if (!flags.json) {
      std::printf("server %s: %s, step %s, epoch %u, %s in %.2f s, no segment held for more than %.2f ms\n",
                  addresses[k].c_str(), reply->path().c_str(),
                  FormatCount(reply->step()).c_str(), reply->epoch(),
                  FormatBytes(static_cast<double>(reply->bytes())).c_str(), reply->seconds(),
                  reply->longest_hold_seconds() * 1e3);
    }
  }
  if (flags.json) std::printf("%s", JsonText(ServersJson(addresses, replies)).c_str());
  return exit_code;
}

int List(const CheckpointFlags& flags) {
  const absl::StatusOr<StoredRun> run = OpenRun(flags.list, Shards::kAny);
  if (!run.ok()) return Fail("checkpoint", run.status());
  LongWork work;
  int exit_code = kExitDone;
  nlohmann::ordered_json directories = nlohmann::ordered_json::array();
  for (const StateDirectory& shard : run->shards) {
    const auto reports = ListCheckpoints(shard, true, &work);
    work.Clear();
    if (!reports.ok()) return Fail("checkpoint", reports.status());
    nlohmann::ordered_json checkpoints = nlohmann::ordered_json::array();
    if (!flags.json) std::printf("%s (shard %u)%s\n", shard.folder.c_str(), shard.shard, reports->empty() ? ": no checkpoint" : "");
    for (const CheckpointReport& report : *reports) {
      if (!report.status.ok()) exit_code = kExitFailed;
      if (flags.json) {
        checkpoints.push_back(CheckpointJson(report));
      } else {
        std::printf("  %s%s\n", CheckpointText(report).c_str(), report.status.ok() ? ", whole" : "");
      }
    }
    directories.push_back({{"folder", shard.folder}, {"shard", shard.shard}, {"checkpoints", std::move(checkpoints)}});
  }
  if (flags.json) {
    std::printf("%s", JsonText({{"job", run->job.name()}, {"directories", std::move(directories)}}).c_str());
  }
  return exit_code;
}

}  // namespace

void AddCheckpointCommand(CLI::App& program, int* exit_code) {
  auto flags = std::make_shared<CheckpointFlags>();
  CLI::App* checkpoint = program.add_subcommand(
      "checkpoint", "Have running servers write a checkpoint each, or list those in their state directories");
  CLI::Option* servers =
      checkpoint->add_option("--servers", flags->servers, "All servers of the job, as in host1:7001,host2:7001")
          ->type_name("ADDRESSES");
  CLI::Option* list = checkpoint
                          ->add_option("--list", flags->list,
                                       "List what lies in these state directories (or a folder with shard-0, "
                                       "shard-1 ...) instead, and whether it is whole")
                          ->type_name("DIR...")
                          ->excludes(servers);
  checkpoint->add_flag("--json", flags->json, "As JSON");
  checkpoint->add_option("--timeout", flags->timeout_seconds, "Seconds to wait for the servers to finish")
      ->check(NumberAboveZero())
      ->capture_default_str();
  flags->credentials.AddTo(*checkpoint);
  checkpoint->footer(
      "Servers are asked at once and go on training meanwhile.\n"
      "Exit status: 0 done, 1 a server refused or did not answer, or a listed checkpoint is damaged, 2 bad "
      "arguments, 130 interrupted.");
  checkpoint->callback([flags, servers, list, exit_code] {
    if (servers->count() + list->count() == 0) throw CLI::RequiredError("--servers or --list");
    *exit_code = list->count() > 0 ? List(*flags) : Write(*flags);
  });
}

}  // namespace foreshard
