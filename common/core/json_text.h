// Texts as JSON has them.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace foreshard {

// The text in quotes, with escapes where JSON wants them. INVALID_ARGUMENT: it is no UTF-8.
absl::StatusOr<std::string> JsonText(const std::string& text);

}  // namespace foreshard
