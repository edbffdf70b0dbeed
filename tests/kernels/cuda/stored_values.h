// Values as activations are stored, fp32 or bf16, on the device.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/cuda/layer_library.h"
#include "tests/kernels/cuda/on_device.h"

namespace foreshard::kernels::cuda {

inline uint16_t Bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float FromBf16(uint16_t stored) {
  const uint32_t bits = uint32_t{stored} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline std::vector<uint16_t> ToBf16(const std::vector<float>& values) {
  std::vector<uint16_t> stored;
  for (float value : values) stored.push_back(Bf16(value));
  return stored;
}

// Values as a storage holds them, on the device.
class StoredValues {
 public:
  StoredValues(Storage storage, const std::vector<float>& values)
      : storage_(storage), whole_(Upload(values)), half_(Upload(ToBf16(values))) {}
  void* data() const { return storage_ == Storage::kFp32 ? static_cast<void*>(whole_.data()) : half_.data(); }
  std::vector<float> Download() const {
    if (storage_ == Storage::kFp32) return whole_.Download();
    std::vector<float> values;
    for (uint16_t value : half_.Download()) values.push_back(FromBf16(value));
    return values;
  }

 private:
  Storage storage_;
  Uploaded<float> whole_;
  Uploaded<uint16_t> half_;
};

// What a storage makes of the values.
inline std::vector<float> Rounded(Storage storage, std::vector<float> values) {
  if (storage == Storage::kBf16) {
    for (float& value : values) value = FromBf16(Bf16(value));
  }
  return values;
}
inline constexpr Storage kStorages[] = {Storage::kFp32, Storage::kBf16};
// Of a value that is rounded once.
inline double RoundingOf(Storage storage) { return storage == Storage::kBf16 ? 1.0 / 256 : 0; }

}  // namespace foreshard::kernels::cuda
