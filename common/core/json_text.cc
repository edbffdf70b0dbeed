#include "common/core/json_text.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace foreshard {

absl::StatusOr<std::string> JsonText(const std::string& text) {
  using Json = nlohmann::json;
  const std::string quoted = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  // Where something was replaced, it is another text.
  const Json back = Json::parse(quoted, nullptr, false);
  if (!back.is_string() || back.get_ref<const std::string&>() != text) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", absl::CHexEscape(text), "' is no UTF-8; JSON holds nothing else"));
  }
  return quoted;
}

}  // namespace foreshard
