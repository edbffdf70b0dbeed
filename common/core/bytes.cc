#include "common/core/bytes.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "common/core/checksum.h"

namespace foreshard {

uint64_t Checksum(ByteSpan bytes) {
  const ChecksumPiece piece = {bytes.data(), bytes.size()};
  return ChecksumPieces(&piece, 1);
}

uint64_t Checksum(const Payload& payload) {
  absl::InlinedVector<ChecksumPiece, 16> pieces;
  for (const ByteSpan piece : payload.pieces) pieces.push_back({piece.data(), piece.size()});
  return ChecksumPieces(pieces.data(), pieces.size());
}

absl::StatusOr<std::string_view> Unsealed(std::string_view bytes) {
  if (bytes.size() < sizeof(uint64_t)) return absl::DataLossError("is truncated");
  const std::string_view body = bytes.substr(0, bytes.size() - sizeof(uint64_t));
  if (ByteReader(bytes.substr(body.size())).Get<uint64_t>() != Checksum(AsBytes(body))) {
    return absl::DataLossError("has a wrong checksum");
  }
  return body;
}

const uint8_t* PayloadReader::Next(uint64_t bytes, uint8_t* straddle) {
  if (bytes > left_) return nullptr;
  left_ -= bytes;
  while (!pieces_.empty() && offset_ == pieces_.front().size()) {
    pieces_.remove_prefix(1);
    offset_ = 0;
  }
  if (bytes == 0) return straddle;
  if (pieces_.front().size() - offset_ >= bytes) {
    const uint8_t* run = pieces_.front().data() + offset_;
    offset_ += bytes;
    return run;
  }
  uint64_t copied = 0;
  while (copied < bytes) {
    const ByteSpan piece = pieces_.front();
    const uint64_t here = std::min<uint64_t>(bytes - copied, piece.size() - offset_);
    if (here > 0) std::memcpy(straddle + copied, piece.data() + offset_, here);
    copied += here;
    offset_ += here;
    if (offset_ == piece.size()) {
      pieces_.remove_prefix(1);
      offset_ = 0;
    }
  }
  return straddle;
}

}  // namespace foreshard
