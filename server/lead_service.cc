#include "server/lead_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/exchange_message.h"

namespace foreshard {

template <typename Request, typename Reply, typename Method>
grpc::ServerUnaryReactor* LeadService::Ask(grpc::CallbackServerContext* context,
                                           const Request* request, Reply* reply, bool heavy,
                                           Method method) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (lead_ == nullptr) {
    reactor->Finish(ToGrpc(absl::FailedPreconditionError(
        absl::StrCat("this is the server of shard ", context_.shard.index(),
                     "; the lead is the server of shard 0, the first of --servers"))));
    return reactor;
  }
  const auto answer = [this, request, reply, method, reactor] {
    absl::StatusOr<Reply> answered = method(*lead_, *request);
    // Nobody may build upon what the journal has not taken.
    const absl::Status status = answered.ok() ? context_.shard.recorded() : answered.status();
    if (status.ok()) *reply = *std::move(answered);
    reactor->Finish(ToGrpc(status));
  };
  if (heavy) {
    context_.threads.Run(answer);
  } else {
    answer();
  }
  return reactor;
}

// Register may make all segments, Leave gives their memory of a worker back.
grpc::ServerUnaryReactor* LeadService::Register(grpc::CallbackServerContext* context,
                                                const v1::RegisterRequest* request,
                                                v1::RegisterReply* reply) {
  return Ask(context, request, reply, true,
             [](Lead& lead, const auto& asked) { return lead.Register(asked); });
}

grpc::ServerUnaryReactor* LeadService::FetchTickets(grpc::CallbackServerContext* context,
                                                    const v1::FetchTicketsRequest* request,
                                                    v1::FetchTicketsReply* reply) {
  return Ask(context, request, reply, false,
             [](Lead& lead, const auto& asked) { return lead.FetchTickets(asked); });
}

grpc::ServerUnaryReactor* LeadService::Report(grpc::CallbackServerContext* context,
                                              const v1::ReportRequest* request,
                                              v1::ReportReply* reply) {
  return Ask(context, request, reply, false,
             [](Lead& lead, const auto& asked) { return lead.Report(asked); });
}

grpc::ServerUnaryReactor* LeadService::Leave(grpc::CallbackServerContext* context,
                                             const v1::LeaveRequest* request,
                                             v1::LeaveReply* reply) {
  return Ask(context, request, reply, true,
             [](Lead& lead, const auto& asked) { return lead.Leave(asked); });
}

}  // namespace foreshard
