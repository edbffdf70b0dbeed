// The memory that an emulated kernel may touch, and who has touched it: finds accesses beyond
// the end and races (internal to the emulation).
//
// Every allocation of device memory, and every array that a thread block shares, is a region. For
// each word, and for each byte where bytes are accessed alone, it is kept who last wrote and who
// last read it. Two accesses of one byte, one of them a write, are a race unless something orders
// them: being of one thread; a barrier of the block between them; __syncwarp between them, for
// threads of one warp. Nothing orders two blocks of one launch. Atomic accesses are no race among
// each other. What is found does not depend on the order in which the emulation happens to run the
// threads.
//
// Memory has guard words on both sides (under the address sanitizer its red zones instead), so
// that a write by an address that did not come from a Pointer is found too, at the launch's
// end.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace foreshard::kernels::cuda::emulation {

// Where and when an access was made, comparable between all of a launch.
struct Stamp {
  uint32_t launch = 0;  // 0: never
  uint32_t block = 0;
  uint32_t thread = 0;      // of the block
  uint32_t epoch = 0;       // barriers that the block has passed
  uint32_t warp_epoch = 0;  // __syncwarp that the thread has passed
  bool atomic = false;
};

enum class AccessKind : uint8_t { kRead, kWrite, kAtomic };

class Region {
 public:
  // Owns `bytes` of memory, aligned to 256, filled with `fill`.
  Region(std::string name, uint64_t bytes, uint8_t fill);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  void* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  const std::string& name() const { return name_; }
  bool Contains(uintptr_t address, uint64_t bytes) const {
    const auto begin = reinterpret_cast<uintptr_t>(data_);
    return address >= begin && address - begin <= bytes_ && bytes <= bytes_ - (address - begin);
  }

  // Notes an access by `who`, which is inside. False where it is a race; then Conflict() says
  // with what.
  bool Touch(uintptr_t address, uint64_t bytes, AccessKind kind, const Stamp& who);
  std::string Conflict() const;

  // Empty, or where the guard words have been overwritten.
  std::string BrokenGuard() const;

 private:
  enum class Readers : uint8_t { kOne, kOfWarp, kOfBlock, kOfGrid };
  // Who touched a word of four bytes, or one byte of it.
  struct Touched {
    Stamp writer;
    Stamp reader;  // the last one
    Readers readers = Readers::kOne;
    bool with_reader = false;  // of the last race
    uint32_t split = 0;        // of a word: its bytes are told apart, in split_[split - 1]
  };

  static bool TouchOne(Touched& touched, AccessKind kind, const Stamp& who);
  bool TouchPart(uint64_t begin, uint64_t end, AccessKind kind, const Stamp& who);

  const std::string name_;
  const uint64_t bytes_;
  uint8_t* allocation_ = nullptr;
  uint8_t* data_ = nullptr;
  std::vector<Touched> words_;  // empty until the first access
  std::vector<std::array<Touched, 4>> split_;
  // What the last race was with.
  uint64_t conflict_at_ = 0;
  const Touched* conflict_ = nullptr;
};

// Device and pinned memory, by address. Safe from any thread.
void AddRegion(std::shared_ptr<Region> region);
void RemoveRegion(const void* data);
// The one that `address` lies in, its end included; null where there is none.
Region* FindRegion(const void* address);
// Of all of them: empty, or which guard is broken.
std::string BrokenGuards();

}  // namespace foreshard::kernels::cuda::emulation
