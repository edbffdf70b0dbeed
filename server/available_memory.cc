#include "server/available_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

namespace foreshard {
namespace {

std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // no file, or "max"
}

std::optional<uint64_t> MachineBytes(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  std::string name;
  for (uint64_t kibibytes = 0; file >> name >> kibibytes;) {
    if (name == "MemAvailable:") return kibibytes * 1024;
    file.ignore(256, '\n');
  }
  return std::nullopt;
}

// The group's path of /proc/self/cgroup; version 2 has the empty controller list.
std::string GroupPath(const std::string& root, const std::string& controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    if (line.substr(first + 1, second - first - 1) == controller) return line.substr(second + 1);
  }
  return "/";
}

std::optional<uint64_t> GroupBytes(const std::string& folder, const char* limit,
                                   const char* usage) {
  const std::optional<uint64_t> most = ReadNumber(folder + limit);
  const std::optional<uint64_t> now = ReadNumber(folder + usage);
  if (!most.has_value() || !now.has_value()) return std::nullopt;
  return *most > *now ? *most - *now : 0;
}

}  // namespace

uint64_t AvailableMemoryBytes(const std::string& root) {
  uint64_t bytes = UINT64_MAX;
  const auto bound = [&](std::optional<uint64_t> other) {
    if (other.has_value()) bytes = std::min(bytes, *other);
  };
  bound(MachineBytes(root));
  const std::string second = root + "/sys/fs/cgroup";
  const std::string first = root + "/sys/fs/cgroup/memory";
  // Inside a container the group's own folder is often mounted as the root.
  for (const std::string& folder : {second + GroupPath(root, "") + "/", second + "/"}) {
    bound(GroupBytes(folder, "memory.max", "memory.current"));
  }
  for (const std::string& folder : {first + GroupPath(root, "memory") + "/", first + "/"}) {
    bound(GroupBytes(folder, "memory.limit_in_bytes", "memory.usage_in_bytes"));
  }
  return bytes;
}

}  // namespace foreshard
