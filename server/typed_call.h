// A call whose request is a message of protobuf's, small and not for the hot path, taken raw so that
// its length is looked at before it is parsed: in memory a message can be 40 times as large as on the wire
// (repeated empty messages, measured), and those that wait for a thread lie there until they have one.
//
//   grpc::ServerUnaryReactor* Service::Hello(context, const grpc::ByteBuffer* message, grpc::ByteBuffer* out) {
//     return ServeTyped<v1::HelloRequest, v1::HelloReply>(buffers, context, message, out, Turn::kLater,
//                                                         [this](auto call) {
//       threads.Run([this, call] { call->Finish(SayHello(call->request, &call->reply)); });
//     });
//   }
//
// What it takes is counted against servers.inflight_bytes; a short message that is answered at once is
// served without, so that leases and tickets go on while there is no room.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/net/exchange_message.h"
#include "common/net/retry_after.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/reply_buffers.h"

namespace foreshard {

// The largest: a schema of some 15,000 tensors.
inline constexpr uint64_t kMostTypedBytes = 1 << 20;
inline constexpr uint64_t kShortTypedBytes = 4 << 10;
inline constexpr uint64_t kRoomPerTypedByte = 40;
inline constexpr absl::Duration kTypedRetryAfter = absl::Milliseconds(100);

enum class Turn : uint8_t {
  kAtOnce,  // on the thread that has brought it
  kLater,   // it may wait for a thread
};

// Whoever serves it calls Finish, once, from any thread.
template <typename Request, typename Reply>
class TypedCall {
 public:
  TypedCall(ReplyBuffers& buffers, grpc::CallbackServerContext* context, grpc::ByteBuffer* out)
      : buffers_(buffers), context_(context), out_(out), reactor_(context->DefaultReactor()) {}
  TypedCall(const TypedCall&) = delete;

  // Fields that this release does not know are dropped.
  // INVALID_ARGUMENT: too long, or no such message. RESOURCE_EXHAUSTED: no room for it now.
  absl::Status Parse(grpc::ByteBuffer message, Turn turn) {
    const uint64_t length = message.Length(), room = length * kRoomPerTypedByte;
    const auto name = [] { return std::string(Request::descriptor()->name()); };
    if (length > kMostTypedBytes || room > buffers_.budget_bytes()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a ", name(), " of ", length, " bytes: at most ", kMostTypedBytes, " are taken, and ", kRoomPerTypedByte,
          " times as many must fit into servers.inflight_bytes (", buffers_.budget_bytes(), ")"));
    }
    if (buffers_.Reserve(room)) {
      reserved_ = room;
    } else if (turn == Turn::kLater || length > kShortTypedBytes) {
      AddRetryAfter(*context_, kTypedRetryAfter);
      return absl::ResourceExhaustedError(
          absl::StrCat("no room for a ", name(), " within servers.inflight_bytes: try again after a pause"));
    }
    if (!grpc::SerializationTraits<Request>::Deserialize(&message, &request).ok()) {
      return absl::InvalidArgumentError(absl::StrCat("bytes that are no ", name()));
    }
    // Nobody looks at them, and what is kept of the request would keep them.
    request.DiscardUnknownFields();
    return absl::OkStatus();
  }

  void Finish(const absl::Status& status) {
    grpc::Status answer = ToGrpc(status);
    bool own = false;
    if (answer.ok()) answer = grpc::SerializationTraits<Reply>::Serialize(reply, out_, &own);
    buffers_.Release(reserved_);
    reactor_->Finish(answer);
  }

  grpc::ServerUnaryReactor* reactor() const { return reactor_; }

  Request request;
  Reply reply;

 private:
  ReplyBuffers& buffers_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const out_;
  grpc::ServerUnaryReactor* const reactor_;
  uint64_t reserved_ = 0;
};

// serve(std::shared_ptr<TypedCall<Request, Reply>>), unless it was refused.
template <typename Request, typename Reply, typename Serve>
grpc::ServerUnaryReactor* ServeTyped(ReplyBuffers& buffers, grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* message, grpc::ByteBuffer* out, Turn turn,
                                     Serve serve) {
  auto call = std::make_shared<TypedCall<Request, Reply>>(buffers, context, out);
  if (absl::Status taken = call->Parse(*message, turn); taken.ok()) {
    serve(call);
  } else {
    call->Finish(taken);
  }
  return call->reactor();
}

}  // namespace foreshard
