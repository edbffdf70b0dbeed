// The hot message: our own parser, over slices cut anywhere, against protobuf's.
#include "common/net/exchange_message.h"
#include "common/net/protocol.h"
#include "google/protobuf/stubs/common.h"
#include "tests/fuzz/fuzz.h"

namespace foreshard::fuzz {
namespace {

grpc::ByteBuffer Cut(ByteSpan bytes, size_t piece) {
  std::vector<grpc::Slice> slices;
  while (!bytes.empty()) {
    const size_t size = std::min(piece, bytes.size());
    slices.emplace_back(bytes.data(), size);
    bytes.remove_prefix(size);
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Joined(const Payload& payload) {
  std::string bytes;
  for (const ByteSpan piece : payload.pieces) bytes += AsText(piece);
  FUZZ_CHECK(bytes.size() == payload.bytes);
  return bytes;
}

template <typename Header, typename Whole>
void Check(ByteSpan bytes, size_t piece) {
  const auto whole = ParsedMessage<Header>::Parse(Cut(bytes, bytes.size() + 1));
  const auto cut = ParsedMessage<Header>::Parse(Cut(bytes, piece));
  FUZZ_CHECK(whole.ok() == cut.ok());
  if (!whole.ok()) return;
  const std::string header = whole->header().SerializeAsString(), payload = Joined(whole->payload());
  FUZZ_CHECK(cut->header().SerializeAsString() == header && Joined(cut->payload()) == payload);
  FUZZ_CHECK(Checksum(cut->payload()) == Checksum(AsBytes(payload)));
  Whole theirs;
  if (theirs.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    FUZZ_CHECK(theirs.header().SerializeAsString() == header && theirs.payload() == payload);
  }
  std::vector<grpc::Slice> slices;
  if (!payload.empty()) slices.emplace_back(payload);
  const auto again = ParsedMessage<Header>::Parse(MakeMessage(whole->header(), slices));
  FUZZ_CHECK(again.ok() && Joined(again->payload()) == payload);
}

void Run(ByteSpan bytes) {
  Input input(bytes);
  const bool reply = input.Below(2) == 1;
  const size_t piece = 1 + input.Below(40);
  if (reply) {
    Check<v1::ReplyHeader, v1::ExchangeReply>(input.rest(), piece);
  } else {
    Check<v1::ExchangeHeader, v1::ExchangeRequest>(input.rest(), piece);
  }
}

Seeds MakeSeeds() {
  v1::ExchangeRequest push;
  v1::ExchangeHeader& header = *push.mutable_header();
  header.set_kind(v1::ExchangeHeader::PUSH);
  header.mutable_contract()->set_protocol(kProtocolVersion);
  header.mutable_contract()->set_job(0x1122334455667788);
  header.set_segment(3);
  header.set_worker(2);
  header.set_incarnation(1700000000000000);
  header.set_sequence(300);
  header.set_ticket(70000);
  header.set_codec(3);
  push.set_payload(std::string(37, 'p'));
  header.set_checksum(Checksum(AsBytes(push.payload())));
  v1::ExchangeReply reply;
  reply.mutable_header()->set_version(9);
  reply.mutable_header()->set_learning_rate(0.5f);
  reply.mutable_header()->add_missing_workers(4);
  reply.mutable_header()->mutable_measure()->set_variance_sum(2);
  reply.set_payload(std::string(16, 'r'));
  return {{"push", std::string("\0\3", 2) + push.SerializeAsString()},
          {"reply", std::string("\1\7", 2) + reply.SerializeAsString()},
          {"empty", std::string("\0\1", 2)}};
}

const Registration registration({.name = "exchange_message", .run = Run, .seeds = MakeSeeds});

}  // namespace
}  // namespace foreshard::fuzz
