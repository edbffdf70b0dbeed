#include "tools/commands.h"

#include <cstdio>
#include <string>

#include "common/core/exit_code.h"

namespace foreshard {

int Fail(const char* command, const absl::Status& status) {
  std::fprintf(stderr, "foreshard %s: %s\n", command, std::string(status.message()).c_str());
  return ExitCodeFor(status);
}

}  // namespace foreshard
