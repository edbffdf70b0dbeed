#include "common/net/exchange_message.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "grpcpp/support/status.h"

namespace foreshard {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

constexpr uint32_t kHeaderTag = (1 << 3) | 2;
constexpr uint32_t kPayloadTag = (15 << 3) | 2;
// A header is a few dozen bytes; anything beyond this is no header of ours.
constexpr uint64_t kMaxHeaderBytes = 16 << 10;

// Walks a list of slices as one run of bytes.
class SliceCursor {
 public:
  explicit SliceCursor(const std::vector<grpc::Slice>& slices) : slices_(slices) {
    for (const grpc::Slice& slice : slices) left_ += slice.size();
  }

  uint64_t left() const { return left_; }

  // False at the end, or for more than ten bytes.
  bool ReadVarint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (left_ == 0) return false;
      while (at_ == slices_[index_].size()) NextSlice();
      const uint8_t byte = slices_[index_].begin()[at_];
      Advance(1);
      *value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool Skip(uint64_t bytes) {
    if (bytes > left_) return false;
    ForEachRun(bytes, [](ByteSpan) {});
    return true;
  }

  template <typename Visit>
  bool Read(uint64_t bytes, Visit visit) {
    if (bytes > left_) return false;
    ForEachRun(bytes, visit);
    return true;
  }

 private:
  void NextSlice() {
    ++index_;
    at_ = 0;
  }
  void Advance(uint64_t bytes) {
    at_ += bytes;
    left_ -= bytes;
  }
  template <typename Visit>
  void ForEachRun(uint64_t bytes, Visit visit) {
    while (bytes > 0) {
      while (at_ == slices_[index_].size()) NextSlice();
      const uint64_t run = std::min<uint64_t>(bytes, slices_[index_].size() - at_);
      visit(ByteSpan(slices_[index_].begin() + at_, run));
      Advance(run);
      bytes -= run;
    }
  }

  const std::vector<grpc::Slice>& slices_;
  size_t index_ = 0;
  uint64_t at_ = 0;
  uint64_t left_ = 0;
};

bool SkipField(uint32_t wire_type, SliceCursor& cursor) {
  uint64_t value = 0;
  switch (wire_type) {
    case 0:
      return cursor.ReadVarint(&value);
    case 1:
      return cursor.Skip(8);
    case 2:
      return cursor.ReadVarint(&value) && cursor.Skip(value);
    case 5:
      return cursor.Skip(4);
    default:
      return false;
  }
}

template <typename Header>
bool MergeHeader(ByteSpan bytes, Header* header) {
  CodedInputStream stream(bytes.data(), static_cast<int>(bytes.size()));
  return header->MergeFromCodedStream(&stream) && stream.ConsumedEntireMessage();
}

}  // namespace

grpc::ByteBuffer MakeMessage(const google::protobuf::MessageLite& header,
                             const std::vector<grpc::Slice>& payload) {
  uint64_t payload_bytes = 0;
  for (const grpc::Slice& slice : payload) payload_bytes += slice.size();
  const size_t header_bytes = header.ByteSizeLong();
  size_t front = 1 + CodedOutputStream::VarintSize64(header_bytes) + header_bytes;
  if (payload_bytes > 0) front += 1 + CodedOutputStream::VarintSize64(payload_bytes);

  grpc::Slice first(front);
  auto* out = const_cast<uint8_t*>(first.begin());
  out = CodedOutputStream::WriteTagToArray(kHeaderTag, out);
  out = CodedOutputStream::WriteVarint64ToArray(header_bytes, out);
  out = header.SerializeWithCachedSizesToArray(out);
  if (payload_bytes == 0) return grpc::ByteBuffer(&first, 1);
  out = CodedOutputStream::WriteTagToArray(kPayloadTag, out);
  CodedOutputStream::WriteVarint64ToArray(payload_bytes, out);

  std::vector<grpc::Slice> slices;
  slices.reserve(1 + payload.size());
  slices.push_back(std::move(first));
  slices.insert(slices.end(), payload.begin(), payload.end());
  return grpc::ByteBuffer(slices.data(), slices.size());
}

template <typename Header>
absl::StatusOr<ParsedMessage<Header>> ParsedMessage<Header>::Parse(
    const grpc::ByteBuffer& buffer) {
  ParsedMessage message;
  if (const grpc::Status dumped = buffer.Dump(&message.slices_); !dumped.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("exchange message: ", dumped.error_message()));
  }
  SliceCursor cursor(message.slices_);
  const auto malformed = [](const char* what) {
    return absl::InvalidArgumentError(
        absl::StrCat("exchange message: not a valid protobuf message: ", what));
  };
  while (cursor.left() > 0) {
    uint64_t tag = 0;
    if (!cursor.ReadVarint(&tag)) return malformed("a cut field tag");
    if (tag >> 3 == 0 || tag > UINT32_MAX) return malformed("a field number out of range");
    if (tag != kHeaderTag && tag != kPayloadTag) {
      if (!SkipField(tag & 7, cursor)) return malformed("a cut or unknown field");
      continue;
    }
    uint64_t bytes = 0;
    if (!cursor.ReadVarint(&bytes)) return malformed("a cut length");
    if (bytes > cursor.left()) return malformed("a length beyond the message's end");
    if (tag == kPayloadTag) {
      message.pieces_.clear();
      message.bytes_ = bytes;
      cursor.Read(bytes, [&](ByteSpan run) { message.pieces_.push_back(run); });
      continue;
    }
    if (bytes > kMaxHeaderBytes) return malformed("a header that is too long");
    ByteSpan whole;
    std::string joined;
    cursor.Read(bytes, [&](ByteSpan run) {
      if (run.size() == bytes) {
        whole = run;
      } else {
        joined.append(reinterpret_cast<const char*>(run.data()), run.size());
      }
    });
    if (!joined.empty()) {
      whole = {reinterpret_cast<const uint8_t*>(joined.data()), joined.size()};
    }
    if (!MergeHeader(whole, &message.header_)) return malformed("a header that does not parse");
  }
  return message;
}

template class ParsedMessage<v1::ExchangeHeader>;
template class ParsedMessage<v1::ReplyHeader>;

// The two status enumerations number their codes alike.
grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()),
                      std::string(status.message()));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message());
}

}  // namespace foreshard
