// A Codec on the GPU for one segment: its block list lies in device memory, made once; each
// encode or decode is one launch. The bytes are those of EncodeSegment (kernels/codecs/codec.h).
//
//   ASSIGN(SegmentCodec codec, SegmentCodec::Make(*cpu_codec, plan.blocks, stream));
//   codec.Encode(gradient, error, PushKey(...), device_bytes, &norm->not_finite, stream);
//   CopyToHost(payload, device_bytes, codec.encoded_bytes(), stream);
//   ... exchange; Codec::Fault of each block of the reply ...
//   CopyToDevice(device_bytes, reply, codec.encoded_bytes(), stream);
//   codec.DecodeReply(device_bytes, key, parameters, stream);
//
// Pointers are to device memory and are the segment's own: blocks' offsets count from them.
// Immutable; safe from any thread; lives until the streams it was used on have run.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/codecs/codec.h"
#include "kernels/cuda/block_table.h"
#include "kernels/cuda/memory.h"
#include "kernels/frozen_adam.h"

namespace FORESHARD_CUDA_NAMESPACE {

class SegmentCodec {
 public:
  // Waits for `stream`. INVALID_ARGUMENT: a block with no elements, or with too many;
  // UNIMPLEMENTED: a block of a dead tensor;
  // RESOURCE_EXHAUSTED.
  static absl::StatusOr<SegmentCodec> Make(const Codec& codec, absl::Span<const Block> blocks,
                                           NativeStream stream);

  uint64_t encoded_bytes() const { return encoded_bytes_; }
  // For the other launches of the segment (updates.h).
  const BlockTable& table() const { return table_; }

  // c = values + error (values alone where error is null) to `out`; error = c - decoded. Nothing
  // where `stop` is not null and not 0 when it runs.
  absl::Status Encode(const float* values, float* error, const CodecKey& key, uint8_t* out,
                      const uint32_t* stop, NativeStream stream) const;

  // `in` is free of faults.
  absl::Status Decode(const uint8_t* in, const CodecKey& key, float* values,
                      NativeStream stream) const;
  // As the codec's replies carry it: the values themselves, or differences to what `values` holds.
  absl::Status DecodeReply(const uint8_t* in, const CodecKey& key, float* values,
                           NativeStream stream) const;
  // values += decoded, of all blocks.
  absl::Status DecodeAdd(const uint8_t* in, const CodecKey& key, float* values,
                         NativeStream stream) const;
  // Decodes the shared result of a compressed round and takes it, in one pass
  // (TakeResult of kernels/frozen_adam.h; weight decay in decayed blocks only).
  absl::Status DecodeFrozenAdam(const uint8_t* in, const CodecKey& key, const FrozenAdamStep& step,
                                float* momentum, const float* denominator, float* theta,
                                NativeStream stream) const;

 private:
  absl::Status Launch(const DecodeArguments& arguments, NativeStream stream) const;

  CodecId id_ = CodecId::kNone;
  uint32_t bits_ = 0;  // quantized
  bool replies_carry_values_ = true;
  uint64_t encoded_bytes_ = 0;
  DeviceArray<DeviceBlock> blocks_;
  BlockTable table_;
};

}  // namespace FORESHARD_CUDA_NAMESPACE
