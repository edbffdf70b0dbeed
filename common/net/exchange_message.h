// Exchange messages without copies: valid protobuf on the wire, a small header
// followed by a payload that is never put into a string.
//
//   grpc::ByteBuffer request = MakeMessage(header, {payload_slice});
//   auto parsed = ParsedMessage<v1::ReplyHeader>::Parse(reply_buffer);
//   PayloadReader reader(parsed->payload());
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/core/bytes.h"
#include "foreshard/v1/exchange.pb.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace foreshard {


// ExchangeRequest or ExchangeReply: field 1 the header, field 15 the payload (left
// out when there are no bytes). Slices are shared, not copied.
grpc::ByteBuffer MakeMessage(const google::protobuf::MessageLite& header,
                             const std::vector<grpc::Slice>& payload);

// A received message: the header parsed, the payload left where it arrived. Also
// reads fields in other orders and skips unknown ones; where `payload` comes more
// than once the last one counts, as protobuf says. Movable; owns the slices.
template <typename Header>
class ParsedMessage {
 public:
  // INVALID_ARGUMENT for bytes that are no such message.
  static absl::StatusOr<ParsedMessage> Parse(const grpc::ByteBuffer& buffer);

  const Header& header() const { return header_; }
  // Valid while this object lives where it is or has been moved to.
  Payload payload() const { return {pieces_, bytes_}; }

 private:
  Header header_;
  std::vector<grpc::Slice> slices_;
  std::vector<ByteSpan> pieces_;
  uint64_t bytes_ = 0;
};

extern template class ParsedMessage<v1::ExchangeHeader>;
extern template class ParsedMessage<v1::ReplyHeader>;

// absl <-> gRPC status, code for code.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace foreshard
