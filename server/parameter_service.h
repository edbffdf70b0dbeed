// The ParameterServer service: the hand-shake, and the exchange of one segment.
//
// An exchange goes: header parsed in place -> identity, sizes, checksum and
// finite values checked, without a lock -> Shard::Perform under the segment's
// mutex, which decodes from the slices as they arrived and writes the reply into a
// pooled buffer -> header in front of it. Up to 64 KiB all of that happens on
// gRPC's thread, above on the apply threads. FETCH waits parked, without a thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "foreshard/v1/exchange.grpc.pb.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/lead.h"
#include "server/server_context.h"

namespace foreshard {

using ParameterServiceBase =
    v1::ParameterServer::WithRawCallbackMethod_Hello<
        v1::ParameterServer::WithRawCallbackMethod_Exchange<
            v1::ParameterServer::WithRawCallbackMethod_Heartbeat<
                v1::ParameterServer::WithRawCallbackMethod_ChangeView<v1::ParameterServer::Service>>>>;

class ParameterService final : public ParameterServiceBase {
 public:
  // `lead` is null on shards other than 0.
  ParameterService(ServerContext& context, Lead* lead) : context_(context), lead_(lead) {
    context_.resume = [this](RoundWaiter* waiter) { Resume(waiter); };
  }

  grpc::ServerUnaryReactor* Hello(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* message, grpc::ByteBuffer* out) override;
  grpc::ServerUnaryReactor* Exchange(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* message,
                                      grpc::ByteBuffer* out) override;
  grpc::ServerUnaryReactor* ChangeView(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* message,
                                       grpc::ByteBuffer* out) override;

  // training.straggler_seconds.
  void CloseWithoutStragglers(int64_t now);
  // Answers parked fetches that have waited for 20 s (`all`: every one, since the
  // server stops) and, where `lost` says why rounds cannot close any more, with
  // that error.
  void AnswerWaiters(bool all, const std::string& lost);

 private:
  struct Call;
  class FetchReactor;

  absl::Status SayHello(const v1::HelloRequest& request, v1::HelloReply* reply);
  absl::Status CheckIncarnation(const v1::HelloRequest& request) const;
  absl::Status BringView(const v1::View& view);
  absl::Status Identify(Call& call) const;
  absl::Status MakeEvent(Call& call) const;
  // Whether a call may wait for the disk, which gRPC's own threads must not.
  bool WaitsForDisk() const;
  // Whether this start has lost what came after a checkpoint.
  bool AfterLoss() const;
  void Serve(std::unique_ptr<Call> call);
  absl::Status Answer(Call& call);
  uint64_t KeptFree(const Call& call) const;
  void WriteReply(Call& call, const Shard::Performed& performed, const Reply& parameters,
                  const ReplyBuffers::Buffer* buffer);
  void Finish(std::unique_ptr<Call> call, const absl::Status& status);
  void Resume(RoundWaiter* waiter);
  grpc::ServerUnaryReactor* Fetch(std::unique_ptr<Call> call);
  void Await(FetchReactor* reactor, Shard::Cell& cell);

  ServerContext& context_;
  Lead* const lead_;
  // Calls for which there was no room, since the last that was served.
  std::atomic<uint32_t> refused_in_a_row_{0};
};

}  // namespace foreshard
