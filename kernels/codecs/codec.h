// How numbers become bytes. A codec works block by block: the encoded form of a
// segment is the encoded blocks one after another, without padding, so any
// block's position follows from the block list alone.
//
//   const Codec* codec = FindCodec("one_bit");
//   std::vector<uint8_t> bytes(EncodedBytes(*codec, blocks));
//   EncodeSegment(*codec, blocks, gradient, error, bytes.data());
//
// Codecs are stateless singletons of the registry; all calls are thread-safe.
// Every implementation of one codec makes the same bytes: sums for scales are
// fp64 in eight lanes (element i of a block goes to lane i % 8), joined as
// ((l0+l4)+(l2+l6))+((l1+l5)+(l3+l7)); no multiply-add is contracted; denormals
// are kept. kernels/codecs/README.md describes the bytes.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "common/core/block.h"

namespace foreshard {

// The number on the wire; never reused.
enum class CodecId : uint8_t { kNone = 0, kFp16 = 1, kBf16 = 2, kOneBit = 3, kOneBitMean = 4 };

class Codec {
 public:
  virtual ~Codec() = default;
  virtual CodecId id() const = 0;
  // The JobSpec's name: "none", "fp16", "bf16", "one_bit", "one_bit_mean".
  virtual std::string_view name() const = 0;
  // How replies carry parameters in this codec: as they are where true, else as the
  // difference to those that the worker holds.
  virtual bool replies_carry_values() const = 0;

  // Encoded bytes of a block of `elements`.
  virtual uint32_t BlockBytes(uint32_t elements) const = 0;

  // Encodes c = values + error (values alone where error is null) and leaves
  // error = c - decoded(c). `values` are finite; `error` must not overlap them.
  virtual void EncodeBlock(const float* values, float* error, uint32_t elements,
                           uint8_t* out) const = 0;

  // Decoded values: `scratch` (elements long, aligned to 64), or `in` itself
  // where the encoding is plain fp32 and aligned.
  virtual const float* DecodeBlock(const uint8_t* in, uint32_t elements, float* scratch) const = 0;

  // Whether every decoded value is finite, without decoding all of it.
  virtual bool BlockIsFinite(const uint8_t* in, uint32_t elements) const = 0;

  // EncodeBlock as plainly as possible: what parity tests and golden vectors
  // compare every other implementation with.
  virtual void EncodeBlockReference(const float* values, float* error, uint32_t elements,
                                    uint8_t* out) const = 0;
};

// nullptr when there is no such codec.
const Codec* FindCodec(std::string_view name);
const Codec* FindCodec(CodecId id);
// All names, for error messages.
std::vector<std::string_view> CodecNames();

// Sum of BlockBytes over the blocks.
uint64_t EncodedBytes(const Codec& codec, absl::Span<const Block> blocks);

// Encodes a whole segment: values and error (may be null) are indexed by the
// blocks' offsets.
void EncodeSegment(const Codec& codec, absl::Span<const Block> blocks, const float* values,
                   float* error, uint8_t* out);

}  // namespace foreshard
