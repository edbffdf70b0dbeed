// One scale and one bit an element: the block format that one_bit and
// one_bit_mean share (internal to kernels/codecs; README.md has the bytes). The
// two differ in the scale alone.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/codecs/codec.h"

namespace foreshard::sign_block {

enum class Scale : uint8_t {
  kRootMeanSquare,  // ||c||_2 / sqrt(n)
  kMeanMagnitude,   // mean |c|
};

// fp32 scale, then bit i % 8 of byte i / 8 for element i; padding bits are zero.
constexpr uint32_t Bytes(uint32_t elements) { return 4 + (elements + 7) / 8; }

// As Codec::EncodeBlock, on the active instruction set.
void Encode(Scale scale, const float* values, float* error, uint32_t elements, uint8_t* out);

// The definition, one element at a time; also the path of a baseline machine.
void EncodeReference(Scale scale, const float* values, float* error, uint32_t elements,
                     uint8_t* out);

// Writes +scale or -scale for each bit to `out`.
void Decode(const uint8_t* in, uint32_t elements, float* out);

// As Codec::Fault: the scale is a finite number of 0 or more, padding bits are zero.
std::string_view Fault(const uint8_t* in, uint32_t elements);

// The codec of this format with the scale of its file.
class SignCodec final : public Codec {
 public:
  SignCodec(CodecId id, std::string_view name, Scale scale)
      : id_(id), name_(name), scale_(scale) {}

  CodecId id() const override { return id_; }
  std::string_view name() const override { return name_; }
  bool replies_carry_values() const override { return false; }
  uint32_t BlockBytes(uint32_t elements) const override { return Bytes(elements); }

  void EncodeBlock(const float* values, float* error, uint32_t elements, const CodecKey&,
                   uint8_t* out) const override {
    Encode(scale_, values, error, elements, out);
  }

  const float* DecodeBlock(const uint8_t* in, uint32_t elements, const CodecKey&,
                           float* scratch) const override {
    Decode(in, elements, scratch);
    return scratch;
  }

  std::string_view Fault(const uint8_t* in, uint32_t elements) const override {
    return sign_block::Fault(in, elements);
  }

  void EncodeBlockReference(const float* values, float* error, uint32_t elements, const CodecKey&,
                            uint8_t* out) const override {
    EncodeReference(scale_, values, error, elements, out);
  }

 private:
  const CodecId id_;
  const std::string_view name_;
  const Scale scale_;
};

}  // namespace foreshard::sign_block
