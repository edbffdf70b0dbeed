#include "server/boot_id.h"

#include <fstream>

namespace foreshard {

std::string ReadBootId(const std::string& file) {
  std::ifstream stream(file);
  std::string id;
  std::getline(stream, id);
  return id;
}

bool IsAnotherBoot(const std::string& then, const std::string& now) { return !then.empty() && then != now; }

}  // namespace foreshard
