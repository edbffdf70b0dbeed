#include "common/net/exchange_message.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "gtest/gtest.h"

namespace foreshard {
namespace {

v1::ExchangeHeader SomeHeader() {
  v1::ExchangeHeader header;
  header.set_kind(v1::ExchangeHeader::PUSH);
  header.mutable_contract()->set_job(0x0123456789abcdef);
  header.set_segment(7);
  header.set_sequence(1ull << 40);
  header.set_checksum(99);
  return header;
}

std::string Bytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// The same bytes in slices of the given length.
grpc::ByteBuffer Cut(const std::string& bytes, size_t length) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += length) {
    slices.emplace_back(bytes.substr(at, length));
  }
  if (slices.empty()) slices.emplace_back(std::string());
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Joined(const Payload& payload) {
  std::string bytes;
  for (const ByteSpan& piece : payload.pieces) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return bytes;
}

using Request = ParsedMessage<v1::ExchangeHeader>;

TEST(ExchangeMessage, IsTheGeneratedMessageOnTheWire) {
  const std::string payload(100'000, 'x');
  const grpc::ByteBuffer buffer =
      MakeMessage(SomeHeader(), {grpc::Slice(payload.substr(0, 10)), grpc::Slice(payload.substr(10))});
  v1::ExchangeRequest request;
  ASSERT_TRUE(request.ParseFromString(Bytes(buffer)));
  EXPECT_EQ(request.header().SerializeAsString(), SomeHeader().SerializeAsString());
  EXPECT_EQ(request.payload(), payload);
  EXPECT_EQ(request.SerializeAsString(), Bytes(buffer));
}

TEST(ExchangeMessage, ReadsSlicesOfEveryLength) {
  v1::ExchangeRequest request;
  *request.mutable_header() = SomeHeader();
  std::string payload(300, 0);
  std::iota(payload.begin(), payload.end(), 0);
  request.set_payload(payload);
  const std::string bytes = request.SerializeAsString();
  for (size_t length = 1; length <= bytes.size(); ++length) {
    absl::StatusOr<Request> parsed = Request::Parse(Cut(bytes, length));
    ASSERT_TRUE(parsed.ok()) << length << parsed.status();
    const Request moved = std::move(*parsed);
    EXPECT_EQ(moved.header().SerializeAsString(), SomeHeader().SerializeAsString());
    EXPECT_EQ(moved.payload().bytes, payload.size());
    EXPECT_EQ(Joined(moved.payload()), payload);
  }
}

TEST(ExchangeMessage, LeavesALargePayloadWhereItLies) {
  static uint8_t data[1 << 16];
  const grpc::Slice slice(data, sizeof data, grpc::Slice::STATIC_SLICE);
  absl::StatusOr<Request> parsed = Request::Parse(MakeMessage(SomeHeader(), {slice}));
  ASSERT_TRUE(parsed.ok());
  ASSERT_EQ(parsed->payload().pieces.size(), 1);
  EXPECT_EQ(parsed->payload().pieces[0].data(), data);
}

TEST(ExchangeMessage, TakesOtherOrdersUnknownFieldsAndTheLastPayload) {
  v1::ExchangeRequest first, second;
  first.set_payload("first");
  second.set_payload("last one");
  v1::ExchangeRequest head;
  *head.mutable_header() = SomeHeader();
  // Unknown: field 3 varint, 4 fixed64, 5 bytes, 6 fixed32.
  const std::string unknown("\x18\x05\x21" "12345678" "\x2a\x02hi\x35" "abcd", 20);
  const std::string bytes = first.SerializeAsString() + unknown + second.SerializeAsString() +
                            head.SerializeAsString() + unknown;
  for (size_t length : {1, 3, 1000}) {
    absl::StatusOr<Request> parsed = Request::Parse(Cut(bytes, length));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(Joined(parsed->payload()), "last one");
    EXPECT_EQ(parsed->header().segment(), 7);
  }
}

TEST(ExchangeMessage, EmptyIsAMessageOfDefaults) {
  absl::StatusOr<Request> parsed = Request::Parse(Cut("", 1));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->payload().bytes, 0);
  EXPECT_EQ(parsed->header().segment(), 0);
}

TEST(ExchangeMessage, RefusesWhatIsCut) {
  v1::ExchangeRequest request;
  *request.mutable_header() = SomeHeader();
  request.set_payload("payload");
  const std::string bytes = request.SerializeAsString();
  const size_t header_end = bytes.size() - 9;  // tag, length, seven bytes
  for (size_t length = 1; length < bytes.size(); ++length) {
    absl::StatusOr<Request> parsed = Request::Parse(Cut(bytes.substr(0, length), 5));
    EXPECT_EQ(parsed.ok(), length == header_end) << length;
  }
  for (const std::string& bad :
       {std::string("\x7a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11),  // a length of 2^64 - 1
        std::string("\x0a\x02\x0a\x05", 4),                              // header inside out
        std::string("\x00\x01", 2),                                      // field number 0
        std::string("\x1b\x1c", 2)}) {                                   // a group
    EXPECT_EQ(Request::Parse(Cut(bad, 3)).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(ExchangeMessage, AgreesWithProtobufOnGarbage) {
  std::mt19937 random(5);
  v1::ExchangeRequest request;
  *request.mutable_header() = SomeHeader();
  request.set_payload(std::string(40, 'p'));
  const std::string good = request.SerializeAsString();
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = good;
    for (int changes = 1 + random() % 3; changes > 0; --changes) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    absl::StatusOr<Request> parsed = Request::Parse(Cut(bytes, 1 + random() % 30));
    v1::ExchangeRequest reference;
    const bool valid = reference.ParseFromString(bytes);
    // Groups are valid protobuf that we refuse; nothing is taken that protobuf refuses.
    if (!parsed.ok()) continue;
    ++accepted;
    ASSERT_TRUE(valid) << round;
    EXPECT_EQ(Joined(parsed->payload()), reference.payload());
    EXPECT_EQ(parsed->header().SerializeAsString(), reference.header().SerializeAsString());
  }
  EXPECT_GT(accepted, 1000);
}

TEST(Status, GoesThereAndBack) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), code == 0 ? "" : "why");
    EXPECT_EQ(ToGrpc(status).error_code(), code);
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
  }
}

}  // namespace
}  // namespace foreshard
