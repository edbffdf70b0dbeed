#include "tools/admin_client.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/channel.h"
#include "common/net/exchange_message.h"
#include "common/net/pending_calls.h"

namespace foreshard {
namespace {

template <typename Request, typename Reply>
struct Call {
  grpc::ClientContext context;
  Request request;
  Reply reply;
  grpc::Status status;
};

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

std::vector<absl::StatusOr<v1::StatusReply>> AdminClient::GetStatus(absl::Duration timeout) {
  std::vector<Call<v1::StatusRequest, v1::StatusReply>> calls(stubs_.size());
  const auto pending = std::make_shared<PendingCalls>(stubs_.size());
  for (size_t i = 0; i < stubs_.size(); ++i) {
    auto& call = calls[i];
    call.context.set_deadline(Deadline(timeout));
    stubs_[i]->async()->GetStatus(&call.context, &call.request, &call.reply,
                                  [&call, pending](const grpc::Status& status) {
                                    pending->Done([&] { call.status = status; });
                                  });
  }
  pending->Wait();
  std::vector<absl::StatusOr<v1::StatusReply>> replies;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].status.ok()) {
      replies.emplace_back(std::move(calls[i].reply));
    } else {
      replies.emplace_back(Named(i, calls[i].status));
    }
  }
  return replies;
}

std::vector<absl::StatusOr<v1::CheckpointReply>> AdminClient::Checkpoint(absl::Duration timeout) {
  std::vector<Call<v1::CheckpointRequest, v1::CheckpointReply>> calls(stubs_.size());
  const auto pending = std::make_shared<PendingCalls>(stubs_.size());
  for (size_t i = 0; i < stubs_.size(); ++i) {
    auto& call = calls[i];
    call.context.set_deadline(Deadline(timeout));
    stubs_[i]->async()->Checkpoint(&call.context, &call.request, &call.reply,
                                   [&call, pending](const grpc::Status& status) {
                                     pending->Done([&] { call.status = status; });
                                   });
  }
  pending->Wait();
  std::vector<absl::StatusOr<v1::CheckpointReply>> replies;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].status.ok()) {
      replies.emplace_back(std::move(calls[i].reply));
    } else {
      replies.emplace_back(Named(i, calls[i].status));
    }
  }
  return replies;
}

std::vector<absl::Status> AdminClient::Stop(const std::string& reason, bool exit_process,
                                            absl::Duration timeout) {
  std::vector<Call<v1::StopRequest, v1::StopReply>> calls(stubs_.size());
  const auto pending = std::make_shared<PendingCalls>(stubs_.size());
  for (size_t i = 0; i < stubs_.size(); ++i) {
    auto& call = calls[i];
    call.context.set_deadline(Deadline(timeout));
    call.request.set_reason(reason);
    call.request.set_exit_process(exit_process);
    stubs_[i]->async()->Stop(&call.context, &call.request, &call.reply,
                             [&call, pending](const grpc::Status& status) {
                               pending->Done([&] { call.status = status; });
                             });
  }
  pending->Wait();
  std::vector<absl::Status> statuses;
  for (size_t i = 0; i < calls.size(); ++i) statuses.push_back(Named(i, calls[i].status));
  return statuses;
}

}  // namespace foreshard
