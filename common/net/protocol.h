// The protocols between workers and servers that this release speaks. Each side says its range in
// every Contract; two sides use the newest that both speak (common/net/job_parts.h).
//
//   const v1::Contract contract = MakeContract(job, schema, plan);               // this release's
//   MakeContract(job, schema, plan, {.oldest = 3, .newest = kProtocolVersion + 1});  // the next one's
#pragma once

#include <cstdint>

namespace foreshard {

// The newest, and the oldest: the last one stays for rolling upgrades, where there was one that was
// released.
inline constexpr uint32_t kProtocolVersion = 3;
inline constexpr uint32_t kOldestProtocol = 3;

struct ProtocolRange {
  uint32_t oldest = kOldestProtocol;
  uint32_t newest = kProtocolVersion;
};

}  // namespace foreshard
