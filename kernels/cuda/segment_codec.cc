#include "kernels/cuda/segment_codec.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/codecs.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

// How many of its elements a block sends, from how long it is.
uint32_t Selected(const Codec& codec, uint32_t elements) {
  switch (codec.id()) {
    case CodecId::kTopK: return codec.BlockBytes(elements) / (sizeof(uint16_t) + sizeof(float));
    case CodecId::kRandomK: return codec.BlockBytes(elements) / sizeof(float);
    default: return 0;
  }
}

// Eight elements are a scale and one byte a bit.
uint32_t BitsOf(const Codec& codec) {
  return codec.id() == CodecId::kQuantized
             ? codec.BlockBytes(8) - static_cast<uint32_t>(sizeof(float))
             : 0;
}

}  // namespace

absl::StatusOr<SegmentCodec> SegmentCodec::Make(const Codec& codec, absl::Span<const Block> blocks,
                                                NativeStream stream) {
  SegmentCodec made;
  made.id_ = codec.id();
  made.bits_ = BitsOf(codec);
  made.replies_carry_values_ = codec.replies_carry_values();
  std::vector<DeviceBlock> described;
  for (const Block& block : blocks) {
    if (block.elements == 0 || block.elements > kMaxBlockElements) {
      return absl::InvalidArgumentError(absl::StrCat("the block at element ", block.offset, " has ",
                                                     block.elements, " elements: 1 to ",
                                                     kMaxBlockElements, " are possible"));
    }
    const Codec& by = BlockCodec(codec, block);
    if (by.id() == CodecId::kNothing) {
      return absl::UnimplementedError(absl::StrCat(
          "the block at element ", block.offset,
          " is of a dead tensor (apmsqueeze.dead), which no kernel leaves out; take the codec on the CPU"));
    }
    described.push_back({.offset = block.offset,
                         .position = made.encoded_bytes_,
                         .elements = block.elements,
                         .selected = static_cast<uint16_t>(Selected(by, block.elements)),
                         .decayed = block.decayed,
                         .plain = by.id() == CodecId::kNone});
    made.encoded_bytes_ += by.BlockBytes(block.elements);
  }
  if (described.size() > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat(described.size(), " blocks are more than a launch takes"));
  }
  absl::StatusOr<DeviceArray<DeviceBlock>> table =
      DeviceArray<DeviceBlock>::Allocate(described.size());
  if (!table.ok()) return table.status();
  made.blocks_ = *std::move(table);
  made.table_ = {made.blocks_.data(), static_cast<uint32_t>(described.size())};
  // From memory that is not pinned: the copy is over when this returns.
  const absl::Status copied =
      CopyToDevice(made.blocks_.data(), described.data(), made.blocks_.bytes(), stream);
  if (!copied.ok()) return copied;
  const absl::Status waited = WaitFor(stream);
  if (!waited.ok()) return waited;
  return made;
}

absl::Status SegmentCodec::Encode(const float* values, float* error, const CodecKey& key,
                                  uint8_t* out, const uint32_t* stop, NativeStream stream) const {
  const EncodeArguments arguments = {
      .table = table_, .values = values, .error = error, .key = key, .out = out, .stop = stop};
  switch (id_) {
    case CodecId::kNone: return EncodeWords(WordFormat::kFp32, arguments, stream);
    case CodecId::kFp16: return EncodeWords(WordFormat::kFp16, arguments, stream);
    case CodecId::kBf16: return EncodeWords(WordFormat::kBf16, arguments, stream);
    case CodecId::kOneBit: return EncodeSigns(SignScale::kRootMeanSquare, arguments, stream);
    case CodecId::kOneBitMean: return EncodeSigns(SignScale::kMeanMagnitude, arguments, stream);
    case CodecId::kTopK: return EncodeTopK(arguments, stream);
    case CodecId::kRandomK: return EncodeRandomK(arguments, stream);
    case CodecId::kQuantized: return EncodeQuantized(bits_, arguments, stream);
    case CodecId::kNothing: break;
  }
  return absl::InternalError(absl::StrCat("no kernel encodes codec ", static_cast<int>(id_)));
}

absl::Status SegmentCodec::Launch(const DecodeArguments& arguments, NativeStream stream) const {
  switch (id_) {
    case CodecId::kNone: return DecodeWords(WordFormat::kFp32, arguments, stream);
    case CodecId::kFp16: return DecodeWords(WordFormat::kFp16, arguments, stream);
    case CodecId::kBf16: return DecodeWords(WordFormat::kBf16, arguments, stream);
    case CodecId::kOneBit:
    case CodecId::kOneBitMean: return DecodeSigns(arguments, stream);
    case CodecId::kTopK: return DecodeTopK(arguments, stream);
    case CodecId::kRandomK: return DecodeRandomK(arguments, stream);
    case CodecId::kQuantized: return DecodeQuantized(bits_, arguments, stream);
    case CodecId::kNothing: break;
  }
  return absl::InternalError(absl::StrCat("no kernel decodes codec ", static_cast<int>(id_)));
}

absl::Status SegmentCodec::Decode(const uint8_t* in, const CodecKey& key, float* values,
                                  NativeStream stream) const {
  return Launch(
      {.table = table_, .in = in, .key = key, .into = DecodeInto::kValues, .values = values},
      stream);
}

absl::Status SegmentCodec::DecodeReply(const uint8_t* in, const CodecKey& key, float* values,
                                       NativeStream stream) const {
  const DecodeInto into = replies_carry_values_ ? DecodeInto::kValues : DecodeInto::kDifference;
  return Launch({.table = table_, .in = in, .key = key, .into = into, .values = values}, stream);
}

absl::Status SegmentCodec::DecodeAdd(const uint8_t* in, const CodecKey& key, float* values,
                                     NativeStream stream) const {
  return Launch({.table = table_, .in = in, .key = key, .into = DecodeInto::kSum, .values = values},
                stream);
}

absl::Status SegmentCodec::DecodeFrozenAdam(const uint8_t* in, const CodecKey& key,
                                            const FrozenAdamStep& step, float* momentum,
                                            const float* denominator, float* theta,
                                            NativeStream stream) const {
  return Launch({.table = table_,
                 .in = in,
                 .key = key,
                 .into = DecodeInto::kFrozenAdam,
                 .values = theta,
                 .momentum = momentum,
                 .denominator = denominator,
                 .eta = step.eta,
                 .beta1 = step.beta1,
                 .weight_decay = step.weight_decay,
                 .of_gradients = step.of_gradients},
                stream);
}

}  // namespace FORESHARD_CUDA_NAMESPACE
