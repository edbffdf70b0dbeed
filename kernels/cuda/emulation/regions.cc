#include "kernels/cuda/emulation/regions.h"

#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/emulation/sanitizers.h"

namespace foreshard::kernels::cuda::emulation {
namespace {

constexpr uint64_t kAlignment = 256;
// Red zones do the same, to the byte and at once.
constexpr uint64_t kGuardBytes = FORESHARD_ADDRESS_SANITIZER ? 0 : 256;
constexpr uint8_t kGuardByte = 0xc3;
constexpr uint32_t kWarp = 32;
constexpr uint64_t kWordBytes = 4;

// Whether nothing orders the earlier access before the later one.
bool Concurrent(const Stamp& earlier, const Stamp& later) {
  if (earlier.launch != later.launch) return false;
  if (earlier.block != later.block) return true;
  if (earlier.thread == later.thread || earlier.epoch != later.epoch) return false;
  const bool same_warp = earlier.thread / kWarp == later.thread / kWarp;
  return !same_warp || earlier.warp_epoch == later.warp_epoch;
}

std::string Describe(const char* what, const Stamp& stamp) {
  return absl::StrCat(what, " by thread ", stamp.thread, " of block ", stamp.block);
}

struct Registry {
  std::mutex mutex;
  std::map<uintptr_t, std::shared_ptr<Region>> regions;  // by where they begin
};

Registry& TheRegistry() {
  static auto& registry = *new Registry;
  return registry;
}

}  // namespace

Region::Region(std::string name, uint64_t bytes, uint8_t fill)
    : name_(std::move(name)), bytes_(bytes) {
  allocation_ =
      static_cast<uint8_t*>(::operator new (bytes + 2 * kGuardBytes, std::align_val_t{kAlignment}));
  data_ = allocation_ + kGuardBytes;
  std::memset(allocation_, kGuardByte, kGuardBytes);
  std::memset(data_, fill, bytes);
  std::memset(data_ + bytes, kGuardByte, kGuardBytes);
}

Region::~Region() { ::operator delete (allocation_, std::align_val_t{kAlignment}); }

// Called for every access: kept free of objects that would need a stack frame watched.
bool Region::Touch(uintptr_t address, uint64_t bytes, AccessKind kind, const Stamp& who) {
  if (words_.empty()) words_.resize((bytes_ + kWordBytes - 1) / kWordBytes);
  const uint64_t begin = address - reinterpret_cast<uintptr_t>(data_);
  const uint64_t end = begin + bytes;
  if (begin % kWordBytes != 0 || bytes % kWordBytes != 0) return TouchPart(begin, end, kind, who);
  for (uint64_t at = begin; at < end; at += kWordBytes) {
    Touched& word = words_[at / kWordBytes];
    if (word.split != 0) {
      if (!TouchPart(at, at + kWordBytes, kind, who)) return false;
    } else if (!TouchOne(word, kind, who)) {
      conflict_at_ = at;
      conflict_ = &word;
      return false;
    }
  }
  return true;
}

// Byte by byte.
bool Region::TouchPart(uint64_t begin, uint64_t end, AccessKind kind, const Stamp& who) {
  for (uint64_t at = begin; at < end; ++at) {
    Touched& word = words_[at / kWordBytes];
    if (word.split == 0) {
      split_.push_back({word, word, word, word});
      word.split = static_cast<uint32_t>(split_.size());
    }
    Touched& byte = split_[word.split - 1][at % kWordBytes];
    if (!TouchOne(byte, kind, who)) {
      conflict_at_ = at;
      conflict_ = &byte;
      return false;
    }
  }
  return true;
}

bool Region::TouchOne(Touched& touched, AccessKind kind, const Stamp& who) {
  const bool atomic = kind == AccessKind::kAtomic;
  touched.with_reader = false;
  if (Concurrent(touched.writer, who) && !(atomic && touched.writer.atomic)) return false;
  const Stamp& reader = touched.reader;
  const bool same_launch = reader.launch == who.launch;
  const bool same_epoch = same_launch && reader.block == who.block && reader.epoch == who.epoch;
  if (kind == AccessKind::kRead) {
    // Several readers that nothing orders are remembered as how far they are apart.
    if (same_launch && reader.block != who.block) {
      touched.readers = Readers::kOfGrid;
    } else if (!same_launch) {
      touched.readers = Readers::kOne;
    } else if (touched.readers != Readers::kOfGrid) {
      if (!same_epoch) {
        touched.readers = Readers::kOne;
      } else if (reader.thread / kWarp != who.thread / kWarp) {
        touched.readers = Readers::kOfBlock;
      } else if (reader.thread != who.thread && touched.readers == Readers::kOne) {
        touched.readers = Readers::kOfWarp;
      }
    }
    touched.reader = who;
    return true;
  }
  // Readers before a barrier of their block are in order with this; those of other blocks never
  // are.
  touched.with_reader =
      Concurrent(reader, who) || (same_launch && touched.readers == Readers::kOfGrid) ||
      (same_epoch && touched.readers == Readers::kOfBlock) ||
      (same_epoch && touched.readers == Readers::kOfWarp && reader.warp_epoch == who.warp_epoch);
  if (touched.with_reader) return false;
  touched.writer = who;
  touched.writer.atomic = atomic;
  return true;
}

std::string Region::Conflict() const {
  const bool reader = conflict_->with_reader;
  return absl::StrCat(
      "a race in ", name_, " at byte ", conflict_at_, " with the ",
      reader ? Describe("read", conflict_->reader) : Describe("write", conflict_->writer),
      reader && conflict_->readers != Readers::kOne ? " and others" : "");
}

std::string Region::BrokenGuard() const {
  for (uint64_t i = 0; i < kGuardBytes; ++i) {
    if (allocation_[kGuardBytes - 1 - i] != kGuardByte) {
      return absl::StrCat(name_, " was written ", i + 1, " bytes before its beginning");
    }
    if (data_[bytes_ + i] != kGuardByte) {
      return absl::StrCat(name_, " was written ", i + 1, " bytes beyond its end");
    }
  }
  return {};
}

void AddRegion(std::shared_ptr<Region> region) {
  Registry& registry = TheRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  registry.regions[reinterpret_cast<uintptr_t>(region->data())] = std::move(region);
}

void RemoveRegion(const void* data) {
  Registry& registry = TheRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  registry.regions.erase(reinterpret_cast<uintptr_t>(data));
}

Region* FindRegion(const void* address) {
  Registry& registry = TheRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  auto after = registry.regions.upper_bound(reinterpret_cast<uintptr_t>(address));
  if (after == registry.regions.begin()) return nullptr;
  Region* const region = std::prev(after)->second.get();
  return region->Contains(reinterpret_cast<uintptr_t>(address), 0) ? region : nullptr;
}

std::string BrokenGuards() {
  Registry& registry = TheRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  for (const auto& [begin, region] : registry.regions) {
    std::string broken = region->BrokenGuard();
    if (!broken.empty()) return broken;
  }
  return {};
}

}  // namespace foreshard::kernels::cuda::emulation
