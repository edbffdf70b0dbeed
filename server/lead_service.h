// The Lead service: hands calls to the Lead of shard 0, and on the other shards
// says where it is.
#pragma once

#include <cstdint>

#include "foreshard/v1/exchange.grpc.pb.h"
#include "server/lead.h"
#include "server/typed_call.h"

namespace foreshard {

using LeadServiceBase =
    v1::Lead::WithRawCallbackMethod_Register<
        v1::Lead::WithRawCallbackMethod_FetchTickets<
            v1::Lead::WithRawCallbackMethod_Report<
                v1::Lead::WithRawCallbackMethod_Leave<v1::Lead::Service>>>>;

class LeadService final : public LeadServiceBase {
 public:
  // `lead` is null on shards other than 0.
  LeadService(ServerContext& context, Lead* lead) : context_(context), lead_(lead) {}

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* message, grpc::ByteBuffer* out) override;
  grpc::ServerUnaryReactor* FetchTickets(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* message, grpc::ByteBuffer* out) override;
  grpc::ServerUnaryReactor* Report(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* message, grpc::ByteBuffer* out) override;
  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* message, grpc::ByteBuffer* out) override;

 private:
  // Answers with method(lead, request).
  template <typename Request, typename Reply, typename Method>
  grpc::ServerUnaryReactor* Ask(grpc::CallbackServerContext* context, const grpc::ByteBuffer* message,
                                grpc::ByteBuffer* out, Turn turn, Method method);

  ServerContext& context_;
  Lead* const lead_;
};

}  // namespace foreshard
