// The Lead service: hands calls to the Lead of shard 0, and on the other shards
// says where it is.
#pragma once

#include <cstdint>

#include "foreshard/v1/exchange.grpc.pb.h"
#include "server/lead.h"

namespace foreshard {

class LeadService final : public v1::Lead::CallbackService {
 public:
  // `lead` is null on shards other than 0.
  LeadService(ServerContext& context, Lead* lead) : context_(context), lead_(lead) {}

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const v1::RegisterRequest* request,
                                     v1::RegisterReply* reply) override;
  grpc::ServerUnaryReactor* FetchTickets(grpc::CallbackServerContext* context,
                                         const v1::FetchTicketsRequest* request,
                                         v1::FetchTicketsReply* reply) override;
  grpc::ServerUnaryReactor* Report(grpc::CallbackServerContext* context,
                                   const v1::ReportRequest* request,
                                   v1::ReportReply* reply) override;
  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context,
                                  const v1::LeaveRequest* request,
                                  v1::LeaveReply* reply) override;

 private:
  // Answers with method(lead, request); `heavy`: on the apply threads.
  template <typename Request, typename Reply, typename Method>
  grpc::ServerUnaryReactor* Ask(grpc::CallbackServerContext* context, const Request* request,
                                Reply* reply, bool heavy, Method method);

  ServerContext& context_;
  Lead* const lead_;
};

}  // namespace foreshard
