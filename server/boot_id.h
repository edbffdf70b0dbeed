// Under which start of the kernel a process runs: what a process has given the kernel to write survives
// the process, and not the kernel.
//
//   const std::string boot = ReadBootId();
//   if (IsAnotherBoot(stored, boot)) ...   // what was not synced then may be gone
#pragma once

#include <string>

namespace foreshard {

// Another one with each start of each machine; the same for all containers of one machine.
inline constexpr char kBootIdFile[] = "/proc/sys/kernel/random/boot_id";

// Empty where it cannot be read.
std::string ReadBootId(const std::string& file = kBootIdFile);

// Whether what was given to the kernel `then` may be lost `now`. Where it was not known then
// (empty), nothing can be said of it: false. Where it is not known now, it cannot be told to be the same: true.
bool IsAnotherBoot(const std::string& then, const std::string& now);

}  // namespace foreshard
