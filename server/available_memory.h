// How much memory this process may still take, so that a model that does not fit
// is refused with the figures instead of being killed half way.
#pragma once

#include <cstdint>
#include <string>

namespace foreshard {

// The least of what the machine has available (MemAvailable of /proc/meminfo) and
// what the control group leaves (memory.max - memory.current of version 2,
// memory.limit_in_bytes - memory.usage_in_bytes of version 1). UINT64_MAX where
// nothing is known. `root` is put before the paths.
uint64_t AvailableMemoryBytes(const std::string& root = "");

}  // namespace foreshard
