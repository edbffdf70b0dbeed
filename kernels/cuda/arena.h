// Where each piece of a step's memory lies, planned before any of it is allocated: what is given
// back may be given out again, so a step needs as much as it holds at its fullest moment. Knows
// no GPU.
//
//   ArenaPlan plan;
//   const ArenaPlan::Region activation = plan.Take(bytes);
//   ... steps that use it ...
//   plan.Give(activation);
//   Memory arena = Memory::Allocate(MemoryKind::kDevice, plan.bytes());   // once
//   void* address = arena.data() + activation.offset;
//
// Thread-compatible. Offsets and lengths are multiples of kAlignment, what cuDNN's and cuBLAS's
// fastest kernels ask for.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/namespace.h"

namespace FORESHARD_CUDA_NAMESPACE {

class ArenaPlan {
 public:
  static constexpr uint64_t kAlignment = 256;

  struct Region {
    uint64_t offset = 0, bytes = 0;
  };

  // Live until given back; never empty.
  Region Take(uint64_t bytes);
  // What is taken from here on may lie there. Each region once.
  void Give(const Region& region);

  // What all that was ever live at one time needs.
  uint64_t bytes() const { return bytes_; }
  uint64_t live_bytes() const { return live_bytes_; }

 private:
  std::vector<Region> free_;  // sorted by offset, none touching another
  uint64_t bytes_ = 0;
  uint64_t live_bytes_ = 0;
};

}  // namespace FORESHARD_CUDA_NAMESPACE
