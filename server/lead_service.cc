#include "server/lead_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/durability.h"

namespace foreshard {

template <typename Request, typename Reply, typename Method>
grpc::ServerUnaryReactor* LeadService::Ask(grpc::CallbackServerContext* context,
                                           const grpc::ByteBuffer* message, grpc::ByteBuffer* out,
                                           Turn turn, Method method) {
  return ServeTyped<Request, Reply>(context_.buffers, context, message, out, turn, [&](const auto& call) {
    if (lead_ == nullptr) {
      return call->Finish(absl::FailedPreconditionError(
          absl::StrCat("this is the server of shard ", context_.shard.index(),
                       "; the lead is the server of shard 0, the first of --servers")));
    }
    const auto answer = [this, call, method] {
      absl::StatusOr<Reply> answered = method(*lead_, call->request);
      // Nobody may build upon what the journal has not taken.
      const absl::Status status = answered.ok() ? context_.shard.recorded() : answered.status();
      if (status.ok()) call->reply = *std::move(answered);
      call->Finish(status);
    };
    if (turn == Turn::kLater || (context_.durability != nullptr && context_.durability->slow())) {
      context_.threads.Run(answer);
    } else {
      answer();
    }
  });
}

// Register may make all segments, Leave gives their memory of a worker back.
grpc::ServerUnaryReactor* LeadService::Register(grpc::CallbackServerContext* context,
                                                const grpc::ByteBuffer* message, grpc::ByteBuffer* out) {
  return Ask<v1::RegisterRequest, v1::RegisterReply>(
      context, message, out, Turn::kLater,
      [](Lead& lead, const auto& asked) { return lead.Register(asked); });
}

grpc::ServerUnaryReactor* LeadService::FetchTickets(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* message,
                                                    grpc::ByteBuffer* out) {
  return Ask<v1::FetchTicketsRequest, v1::FetchTicketsReply>(
      context, message, out, Turn::kAtOnce,
      [](Lead& lead, const auto& asked) { return lead.FetchTickets(asked); });
}

grpc::ServerUnaryReactor* LeadService::Report(grpc::CallbackServerContext* context,
                                              const grpc::ByteBuffer* message, grpc::ByteBuffer* out) {
  return Ask<v1::ReportRequest, v1::ReportReply>(
      context, message, out, Turn::kAtOnce,
      [](Lead& lead, const auto& asked) { return lead.Report(asked); });
}

grpc::ServerUnaryReactor* LeadService::Leave(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* message, grpc::ByteBuffer* out) {
  return Ask<v1::LeaveRequest, v1::LeaveReply>(
      context, message, out, Turn::kLater,
      [](Lead& lead, const auto& asked) { return lead.Leave(asked); });
}

}  // namespace foreshard
