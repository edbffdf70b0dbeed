// XXH3-64 (libxxhash) of bytes that come one part after the other.
//
//   RunningChecksum checksum;
//   checksum.Add(first);
//   checksum.Add(second);
//   checksum.value();        // Checksum of both as one run
#pragma once

#include <cstdint>

#include "common/core/bytes.h"

namespace foreshard {

// Thread-compatible.
class RunningChecksum {
 public:
  RunningChecksum();
  ~RunningChecksum();
  RunningChecksum(const RunningChecksum&) = delete;
  RunningChecksum& operator=(const RunningChecksum&) = delete;

  void Add(ByteSpan bytes);
  // Of what was added so far.
  uint64_t value() const;

 private:
  void* const state_;
};

}  // namespace foreshard
