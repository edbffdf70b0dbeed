#include "worker/reply_reader.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/vector_math.h"

namespace foreshard {

struct ReplyReader::Scratch {
  alignas(64) float values[kMaxBlockElements];
  alignas(64) uint8_t straddle[kMaxBlockElements * sizeof(float) + 64];
};

ReplyReader::ReplyReader() : scratch_(std::make_unique<Scratch>()) {}
ReplyReader::~ReplyReader() = default;

absl::Status ReplyReader::Read(const SegmentPlan& plan, const Codec& codec, const Payload& payload,
                               float* values) {
  if (const uint64_t expected = EncodedBytes(codec, plan.blocks); payload.bytes != expected) {
    return absl::DataLossError(absl::StrCat(payload.bytes, " bytes where ", expected, " belong (",
                                            std::string(codec.name()), ")"));
  }
  if (codec.id() == CodecId::kNone) {
    auto* to = reinterpret_cast<uint8_t*>(values);
    for (const ByteSpan& piece : payload.pieces) {
      if (!piece.empty()) std::memcpy(to, piece.data(), piece.size());
      to += piece.size();
    }
    return absl::OkStatus();
  }
  const bool differences = !codec.replies_carry_values();
  if (differences) {
    // All of it first: what has been added in part could not be taken back.
    PayloadReader reader(payload);
    for (const Block& block : plan.blocks) {
      const uint8_t* bytes = reader.Next(codec.BlockBytes(block.elements), scratch_->straddle);
      if (!codec.BlockIsFinite(bytes, block.elements)) {
        return absl::DataLossError(absl::StrCat("a difference that is not finite, in the block at ",
                                                plan.begin + block.offset));
      }
    }
  }
  PayloadReader reader(payload);
  for (const Block& block : plan.blocks) {
    const uint8_t* bytes = reader.Next(codec.BlockBytes(block.elements), scratch_->straddle);
    const float* decoded = codec.DecodeBlock(bytes, block.elements, scratch_->values);
    float* to = values + block.offset;
    if (differences) {
      kernels::Add(to, decoded, block.elements);
    } else {
      std::memcpy(to, decoded, block.elements * sizeof(float));
    }
  }
  return absl::OkStatus();
}

}  // namespace foreshard
