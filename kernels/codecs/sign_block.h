// One scale and one bit an element: the block format that one_bit and
// one_bit_mean share (internal to kernels/codecs; README.md has the bytes). The
// two differ in the scale alone.
#pragma once

#include <cstdint>

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

// Whether the scale is a finite number.
bool IsFinite(const uint8_t* in);

}  // namespace foreshard::sign_block
