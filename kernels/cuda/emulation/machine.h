// Runs kernels on the CPU as the CUDA model says, and finds what a GPU would not tell: threads of
// a block are fibers that give way at barriers and at warp operations. Between two such points
// they run in an order permuted by a seed, and so do blocks; a result that depends on the order
// differs between seeds. Faults end the launch, and name kernel, block and thread:
//
//   an access outside its memory, of host memory, or not aligned to its type
//   a race (regions.h), whichever order it was run in
//   guard words overwritten
//   a barrier or warp operation that some thread it waits for never reaches, or reaches
//   with another operation
//
//   const ScopedOrder order(3);
//   absl::Status status = Run("Scale", {.blocks = 2, .threads = 64}, [&] { Scale(values, 2); });
//
// One launch at a time on a thread. What it does not show: kernels of different streams that race
// with each other; speed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "kernels/cuda/emulation/regions.h"

namespace foreshard::kernels::cuda::emulation {

inline constexpr uint32_t kWarpThreads = 32;

struct Dimensions {
  uint32_t x = 1, y = 1, z = 1;
  uint32_t count() const { return x * y * z; }
};

struct Grid {
  Dimensions blocks;
  Dimensions threads;  // of a block; 1024 at most
  uint32_t shared_bytes = 0;
};

// In which order threads and blocks run while it lives, on the thread that made it. Seed 0, as
// without it: by their numbers. Other seeds fill shared memory with other bytes, too.
class ScopedOrder {
 public:
  explicit ScopedOrder(uint64_t seed);
  ~ScopedOrder();
  ScopedOrder(const ScopedOrder&) = delete;
  ScopedOrder& operator=(const ScopedOrder&) = delete;

 private:
  const uint64_t previous_;
};

// Calls `body` once for each thread of the grid. INTERNAL: a fault. INVALID_ARGUMENT: a grid
// that no GPU takes.
absl::Status Run(const char* kernel, const Grid& grid, const std::function<void()>& body);

// ---- For the thread that runs (device_code.h gives them CUDA's names) ----

const Dimensions& ThreadIndex();
const Dimensions& BlockIndex();
const Dimensions& BlockSize();
const Dimensions& GridSize();

// Returns once all threads of the block are here.
void Barrier();

enum class WarpOperation : uint8_t {
  kSync,
  kShuffle,
  kBallot,
  kAdd,
  kMinimum,
  kMaximum,
  kOr,
  kAnd
};

// Returns once all threads of `mask` are here with the same operation: of a shuffle the value that
// lane `source` gave, of the others the same for all.
uint64_t Together(WarpOperation operation, uint32_t mask, uint64_t value, uint32_t source = 0);
// Of this thread in its warp.
uint32_t Lane();

// An access of the region: notes it, or ends the launch.
void Access(Region* region, const void* address, uint64_t bytes, uint64_t alignment,
            AccessKind kind);

// An array that the block's threads share, told from others by `site`; made by the first that
// asks for it.
Region* SharedArray(const void* site, const char* name, uint64_t bytes);
// That of the launch's shared_bytes.
Region* DynamicShared();

// Ends the launch with this text.
[[noreturn]] void Fail(std::string text);

}  // namespace foreshard::kernels::cuda::emulation
