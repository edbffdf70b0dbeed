// The JSON of a safetensors file (internal to common/core/safetensors.cc).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/core/safetensors.h"

namespace foreshard::internal {

// Of all values of a file: no sum of sizes overflows below it.
inline constexpr uint64_t kMaxSafetensorsBytes = uint64_t{1} << 60;

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // by offset, which counts from the values' first byte
  std::map<std::string, std::string> metadata;
};

// INVALID_ARGUMENT: more than 64 dimensions, or more elements than a file can hold.
absl::StatusOr<uint64_t> SafetensorsElements(const std::vector<uint64_t>& shape);

// `values_bytes`: what the file has behind the header. INVALID_ARGUMENT, DATA_LOSS.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(const std::string& json, uint64_t values_bytes);

}  // namespace foreshard::internal
