// How numbers become bytes. A codec works block by block: the encoded form of a
// segment is the encoded blocks one after another, without padding, so any
// block's position follows from the block list alone.
//
//   const CodecSet codecs(settings);
//   const Codec* codec = codecs.Find("one_bit");
//   std::vector<uint8_t> bytes(EncodedBytes(*codec, blocks));
//   EncodeSegment(*codec, blocks, gradient, error, key, bytes.data());
//   DecodeSegment(*codec, blocks, bytes.data(), key, values);
//
// Codecs keep no state but their settings; all calls are thread-safe.
// Every implementation of one codec makes the same bytes: sums for scales are
// fp64 in eight lanes (element i of a block goes to lane i % 8), joined as
// ((l0+l4)+(l2+l6))+((l1+l5)+(l3+l7)); no multiply-add is contracted; denormals
// are kept. kernels/codecs/README.md describes the bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "common/core/block.h"
#include "common/core/codec_settings.h"
#include "kernels/codecs/codec_key.h"

namespace foreshard {

// The number on the wire; never reused.
enum class CodecId : uint8_t {
  kNone = 0,
  kFp16 = 1,
  kBf16 = 2,
  kOneBit = 3,
  kOneBitMean = 4,
  kTopK = 5,
  kRandomK = 6,
  kQuantized = 7,
  // Of dead tensors' blocks, which are no bytes; never on the wire, and FindCodec has none.
  kNothing = 255,
};

class Codec {
 public:
  virtual ~Codec() = default;
  virtual CodecId id() const = 0;
  // The JobSpec's name: "none", "one_bit_mean".
  virtual std::string_view name() const = 0;
  // How replies carry parameters in this codec: as they are where true, else as the
  // difference to those that the worker holds.
  virtual bool replies_carry_values() const = 0;

  // Encoded bytes of a block of `elements`.
  virtual uint32_t BlockBytes(uint32_t elements) const = 0;

  // Encodes c = values + error (values alone where error is null) and leaves
  // error = c - decoded(c). `values` are finite; `error` must not overlap them. The
  // block's key is read by the codecs that make random choices.
  virtual void EncodeBlock(const float* values, float* error, uint32_t elements,
                           const CodecKey& key, uint8_t* out) const = 0;

  // Decoded values: `scratch` (elements long, aligned to 64), or `in` itself
  // where the encoding is plain fp32 and aligned. Of the key, `shared` is read.
  virtual const float* DecodeBlock(const uint8_t* in, uint32_t elements, const CodecKey& key,
                                   float* scratch) const = 0;

  // Empty where `in` is what an encoder can have made of finite numbers; else what
  // lies in it, as "a negative scale" or kNotFinite. What is faulty is not to be decoded,
  // but for kNotFinite.
  virtual std::string_view Fault(const uint8_t* in, uint32_t elements) const = 0;

  // EncodeBlock as plainly as possible: what parity tests and golden vectors
  // compare every other implementation with.
  virtual void EncodeBlockReference(const float* values, float* error, uint32_t elements,
                                    const CodecKey& key, uint8_t* out) const = 0;
};

// Codec::Fault of a value that is an infinity or NaN.
inline constexpr std::string_view kNotFinite = "a value that is not finite";

// The codecs without parameters. nullptr when there is no such one.
const Codec* FindCodec(std::string_view name);
const Codec* FindCodec(CodecId id);

// All codecs, those with parameters made from a job's settings. The codecs live as long
// as the set, wherever it is moved. Immutable.
class CodecSet {
 public:
  // `settings` are in the ranges that CodecSettings says.
  explicit CodecSet(const CodecSettings& settings = {});

  // nullptr when there is no such codec.
  const Codec* Find(std::string_view name) const;
  const Codec* Find(CodecId id) const;

 private:
  friend std::vector<std::string_view> CodecNames();
  std::vector<std::unique_ptr<const Codec>> made_;
};

// Whether there is a codec with this number, whatever the settings.
bool IsCodec(CodecId id);
// All names, in the order of their numbers.
std::vector<std::string_view> CodecNames();

// The codec by which this block really goes: plain fp32 where the block stays in full
// precision, or where `codec` would not make it shorter; no bytes at all, decoded to zeros and
// without error, where its tensor is dead and `codec` is not `none`; else `codec`.
// Everything that reads or writes the blocks of a segment asks this.
const Codec& BlockCodec(const Codec& codec, const Block& block);

// Bytes of a whole segment; at most 4 an element.
uint64_t EncodedBytes(const Codec& codec, absl::Span<const Block> blocks);

// Encodes a whole segment: values and error (may be null) are indexed by the
// blocks' offsets; the key is the message's.
void EncodeSegment(const Codec& codec, absl::Span<const Block> blocks, const float* values,
                   float* error, const CodecKey& key, uint8_t* out);

// Decodes a whole segment, free of faults, to `values` by the blocks' offsets.
void DecodeSegment(const Codec& codec, absl::Span<const Block> blocks, const uint8_t* in,
                   const CodecKey& key, float* values);

}  // namespace foreshard
