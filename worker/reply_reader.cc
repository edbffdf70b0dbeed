#include "worker/reply_reader.h"

#include <cstring>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/vector_math.h"

namespace foreshard {

struct ReplyReader::Scratch {
  alignas(64) float values[kMaxBlockElements];
  alignas(64) uint8_t straddle[kMaxBlockElements * sizeof(float) + 64];
};

ReplyReader::ReplyReader() : scratch_(std::make_unique<Scratch>()) {}
ReplyReader::~ReplyReader() = default;

absl::Status ReplyReader::Check(const SegmentPlan& plan, const Codec& codec,
                                const Payload& payload) {
  if (const uint64_t expected = EncodedBytes(codec, plan.blocks); payload.bytes != expected) {
    return absl::DataLossError(absl::StrCat(payload.bytes, " bytes where ", expected, " belong (",
                                            std::string(codec.name()), ")"));
  }
  if (codec.replies_carry_values()) return absl::OkStatus();
  // All of it first: what has been added in part could not be taken back.
  PayloadReader reader(payload);
  for (const Block& block : plan.blocks) {
    const Codec& by = BlockCodec(codec, block);
    const uint8_t* bytes = reader.Next(by.BlockBytes(block.elements), scratch_->straddle);
    if (by.replies_carry_values()) continue;
    if (const std::string_view fault = by.Fault(bytes, block.elements); !fault.empty()) {
      return absl::DataLossError(absl::StrCat("the block at element ", plan.begin + block.offset,
                                              " has ", std::string(fault)));
    }
  }
  return absl::OkStatus();
}

absl::Status ReplyReader::Read(const SegmentPlan& plan, const Codec& codec, const CodecKey& key,
                               const Payload& payload, float* values) {
  if (const absl::Status checked = Check(plan, codec, payload); !checked.ok()) return checked;
  if (codec.id() == CodecId::kNone) {
    auto* to = reinterpret_cast<uint8_t*>(values);
    for (const ByteSpan& piece : payload.pieces) {
      if (!piece.empty()) std::memcpy(to, piece.data(), piece.size());
      to += piece.size();
    }
    return absl::OkStatus();
  }
  PayloadReader reader(payload);
  for (const Block& block : plan.blocks) {
    const Codec& by = BlockCodec(codec, block);
    const uint8_t* bytes = reader.Next(by.BlockBytes(block.elements), scratch_->straddle);
    const float* decoded =
        by.DecodeBlock(bytes, block.elements, BlockKey(key, block.offset), scratch_->values);
    float* to = values + block.offset;
    if (by.replies_carry_values()) {
      std::memcpy(to, decoded, block.elements * sizeof(float));
    } else {
      kernels::Add(to, decoded, block.elements);
    }
  }
  return absl::OkStatus();
}

}  // namespace foreshard
