// Numbers in JSON.
#pragma once

#include <cmath>

#include "nlohmann/json.hpp"

namespace foreshard {

// null for infinities and NaN, which JSON does not have.
inline nlohmann::ordered_json Number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

}  // namespace foreshard
