// Numbers with what they count, for messages.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace foreshard {

// "1 server", "2 servers".
inline std::string Counted(uint64_t count, const char* what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

}  // namespace foreshard
