#include "tools/commands.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/core/exit_code.h"

namespace foreshard {

// CLI::PositiveNumber refuses with the range of a double, all 309 digits of it.
CLI::Validator WholeNumberFromOne() {
  return CLI::Validator(
      [](std::string& text) {
        uint32_t value = 0;
        if (absl::SimpleAtoi(text, &value) && value > 0) return std::string();
        return absl::StrCat("'", text, "': give a whole number of 1 or more");
      },
      "COUNT");
}

CLI::Validator NumberAboveZero() {
  return CLI::Validator(
      [](std::string& text) {
        double value = 0;
        const bool good = absl::SimpleAtod(text, &value) && std::isfinite(value) && value > 0;
        return good ? std::string() : absl::StrCat("'", text, "': give a number above 0");
      },
      "NUMBER");
}

CLI::Validator NumberFromZero() {
  return CLI::Validator(
      [](std::string& text) {
        double value = 0;
        const bool good = absl::SimpleAtod(text, &value) && std::isfinite(value) && value >= 0;
        return good ? std::string() : absl::StrCat("'", text, "': give a number of 0 or more");
      },
      "NUMBER");
}

int Fail(const char* command, const absl::Status& status) {
  std::fprintf(stderr, "foreshard %s: %s\n", command, std::string(status.message()).c_str());
  return ExitCodeFor(status);
}

}  // namespace foreshard
