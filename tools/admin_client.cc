#include "tools/admin_client.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/channel.h"
#include "common/net/exchange_message.h"
#include "common/net/pending_calls.h"

namespace foreshard {
namespace {

std::chrono::system_clock::time_point Deadline(absl::Duration timeout) {
  return std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout);
}

}  // namespace

AdminClient::AdminClient(std::vector<std::string> addresses, Credentials credentials)
    : addresses_(std::move(addresses)), credentials_(std::move(credentials)) {
  for (const std::string& address : addresses_) {
    stubs_.push_back(v1::Admin::NewStub(MakeChannel(address, credentials_)));
  }
}

absl::StatusOr<std::unique_ptr<AdminClient>> AdminClient::Connect(const std::string& servers,
                                                                  const CredentialFlags& credentials) {
  absl::StatusOr<std::vector<std::string>> addresses = ParseAddresses(servers);
  if (!addresses.ok()) return addresses.status();
  absl::StatusOr<Credentials> loaded = credentials.Load(TlsSide::kClient);
  if (!loaded.ok()) return loaded.status();
  if (absl::Status calls = loaded->CheckCall(*addresses); !calls.ok()) return calls;
  return std::make_unique<AdminClient>(*std::move(addresses), *std::move(loaded));
}

absl::Status AdminClient::Named(size_t server, const grpc::Status& status) const {
  const absl::Status plain = FromGrpc(status);
  if (plain.ok()) return plain;
  const std::string& address = addresses_[server];
  std::string remedy;
  if (absl::IsUnavailable(plain)) {
    if (const std::string why = credentials_.Explain(address); !why.empty()) {
      remedy = absl::StrCat(": ", why);
    }
  }
  if (!remedy.empty()) {
    // Said already.
  } else if (absl::IsUnavailable(plain) || absl::IsDeadlineExceeded(plain)) {
    remedy = "; is foreshard-server running there, and is this its --listen address?";
  } else if (absl::IsUnimplemented(plain)) {
    remedy = "; whatever listens there is no foreshard-server (its metrics port, perhaps?)";
  }
  return absl::Status(plain.code(),
                      absl::StrCat("server ", address, ": ", plain.message(), remedy));
}

template <typename Reply, typename Request, typename Start>
std::vector<absl::StatusOr<Reply>> AdminClient::AskAll(const Request& request, absl::Duration timeout, Start start) {
  struct Call {
    grpc::ClientContext context;
    Reply reply;
    grpc::Status status;
  };
  std::vector<Call> calls(stubs_.size());
  const auto pending = std::make_shared<PendingCalls>(stubs_.size());
  for (size_t i = 0; i < stubs_.size(); ++i) {
    Call& call = calls[i];
    call.context.set_deadline(Deadline(timeout));
    start(stubs_[i]->async(), &call.context, &request, &call.reply, [&call, pending](const grpc::Status& status) {
      pending->Done([&] { call.status = status; });
    });
  }
  pending->Wait();
  std::vector<absl::StatusOr<Reply>> replies;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].status.ok()) {
      replies.emplace_back(std::move(calls[i].reply));
    } else {
      replies.emplace_back(Named(i, calls[i].status));
    }
  }
  return replies;
}

std::vector<absl::StatusOr<v1::StatusReply>> AdminClient::GetStatus(absl::Duration timeout) {
  return AskAll<v1::StatusReply>(v1::StatusRequest(), timeout,
                                 [](auto* server, auto&&... call) { server->GetStatus(call...); });
}

std::vector<absl::StatusOr<v1::CheckpointReply>> AdminClient::Checkpoint(absl::Duration timeout) {
  return AskAll<v1::CheckpointReply>(v1::CheckpointRequest(), timeout,
                                     [](auto* server, auto&&... call) { server->Checkpoint(call...); });
}

std::vector<absl::Status> AdminClient::Stop(const std::string& reason, bool exit_process,
                                            absl::Duration timeout) {
  v1::StopRequest request;
  request.set_reason(reason);
  request.set_exit_process(exit_process);
  std::vector<absl::Status> statuses;
  for (const auto& reply : AskAll<v1::StopReply>(
           request, timeout, [](auto* server, auto&&... call) { server->Stop(call...); })) {
    statuses.push_back(reply.status());
  }
  return statuses;
}

}  // namespace foreshard
