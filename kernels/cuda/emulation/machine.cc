#include "kernels/cuda/emulation/machine.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/core/random.h"
#include "kernels/cuda/emulation/fiber.h"

namespace foreshard::kernels::cuda::emulation {
namespace {

constexpr uint32_t kMostThreads = 1024;
constexpr uint64_t kMostSharedBytes = 227 << 10;  // of a block, on sm_90
constexpr uint64_t kOrderStream = 0x7264726f;     // "ordr"

enum class State : uint8_t { kReady, kAtBarrier, kInWarp, kEnded };

struct Thread {
  uint32_t number = 0;  // in the block
  Dimensions index;
  State state = State::kReady;
  uint32_t warp_epoch = 0;
  uint64_t result = 0;  // of the last warp operation
  struct Carrier* carrier = nullptr;
};

// A fiber to run a thread of each block on, one after another.
struct Carrier {
  Fiber fiber{Fiber::kStackBytes};
  bool ready = false;  // has ended the last one's work, so it only has to be gone on with
};

// A warp operation that some of its threads have reached.
struct Gathering {
  WarpOperation operation = WarpOperation::kSync;
  uint32_t mask = 0;
  uint32_t arrived = 0;
  uint64_t values[kWarpThreads] = {};
  uint32_t sources[kWarpThreads] = {};
};

struct SharedRegion {
  const void* site;
  std::unique_ptr<Region> region;
};

class Machine {
 public:
  Machine(const char* kernel, const Grid& grid, uint64_t seed, const std::function<void()>& body)
      : kernel_(kernel), grid_(grid), seed_(seed), body_(body) {
    stamp_.launch = ++launches_;
  }

  absl::Status Run();

  const Grid& grid() const { return grid_; }
  const Dimensions& block() const { return block_; }
  Thread& thread() { return *running_; }
  const Stamp& stamp() const { return stamp_; }  // of the thread that runs

  void GiveWay(State state) {
    running_->state = state;
    Fiber::Switch(running_->carrier->fiber, scheduler_);
  }
  uint64_t Together(WarpOperation operation, uint32_t mask, uint64_t value, uint32_t source);
  Region* Shared(const void* site, const char* name, uint64_t bytes);
  [[noreturn]] void Fail(std::string text);

 private:
  static Carrier* CarrierOf(uint32_t thread);
  static Fiber& Scheduler();
  static void RunThreads(void*);
  void RunBlock(uint32_t number);
  bool Sweep();
  bool PassBarrier();
  std::string Waiting() const;
  void Complete(const Gathering& gathering, uint32_t warp);
  [[noreturn]] void FailMask(WarpOperation operation, uint32_t mask, uint32_t present);
  [[noreturn]] void FailMixed(WarpOperation operation, uint32_t mask, WarpOperation other);
  [[noreturn]] void FailShuffle(uint32_t lane, uint32_t source, uint32_t mask);
  std::vector<uint32_t> Order(uint32_t n, uint64_t draw) const {
    if (seed_ != 0)
      return RandomPermutation(RandomBits(seed_, kOrderStream, draw), kOrderStream, n);
    std::vector<uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0u);
    return order;
  }

  const char* const kernel_;
  const Grid grid_;
  const uint64_t seed_;
  const std::function<void()>& body_;
  std::vector<Thread> threads_;
  std::vector<std::vector<Gathering>> warps_;
  std::vector<SharedRegion> shared_;
  Fiber& scheduler_ = Scheduler();
  Thread* running_ = nullptr;
  Stamp stamp_;
  Dimensions block_;
  uint64_t sweeps_ = 0;
  std::string fault_;

  static std::atomic<uint32_t> launches_;  // of all threads: regions are told apart by it
};

std::atomic<uint32_t> Machine::launches_{0};
thread_local Machine* machine = nullptr;
thread_local uint64_t order_seed = 0;

// Stacks are kept, since making them costs more than most launches; and so is what a sanitizer
// keeps of them.
Carrier* Machine::CarrierOf(uint32_t thread) {
  thread_local std::vector<std::unique_ptr<Carrier>> carriers;
  while (carriers.size() <= thread) carriers.push_back(std::make_unique<Carrier>());
  return carriers[thread].get();
}

Fiber& Machine::Scheduler() {
  thread_local Fiber scheduler;
  return scheduler;
}

Dimensions IndexIn(const Dimensions& size, uint32_t number) {
  return {number % size.x, number / size.x % size.y, number / size.x / size.y};
}

std::string Text(const Dimensions& index) {
  if (index.y == 0 && index.z == 0) return absl::StrCat(index.x);
  return absl::StrCat("(", index.x, ", ", index.y, ", ", index.z, ")");
}

const char* Name(WarpOperation operation) {
  switch (operation) {
    case WarpOperation::kSync: return "__syncwarp";
    case WarpOperation::kShuffle: return "a shuffle";
    case WarpOperation::kBallot: return "__ballot_sync";
    case WarpOperation::kAdd: return "__reduce_add_sync";
    case WarpOperation::kMinimum: return "__reduce_min_sync";
    case WarpOperation::kMaximum: return "__reduce_max_sync";
    case WarpOperation::kOr: return "__reduce_or_sync";
    case WarpOperation::kAnd: return "__reduce_and_sync";
  }
  return "an unknown operation";
}

// What a carrier does: the body for one thread after another, each when it is switched to.
void Machine::RunThreads(void*) {
  while (true) {
    machine->body_();
    machine->running_->state = State::kEnded;
    Carrier* const carrier = machine->running_->carrier;
    carrier->ready = true;
    Fiber::Switch(carrier->fiber, Scheduler());
    carrier->ready = false;
  }
}

// The stack it is called on is left as it is: nothing there may still own memory.
void Machine::Fail(std::string text) {
  if (fault_.empty()) {
    fault_ = absl::StrCat("kernel ", kernel_, ", block ", Text(block_), ", thread ",
                          Text(running_->index), ": ", text);
  }
  std::string().swap(text);
  running_->state = State::kEnded;
  Fiber::Switch(running_->carrier->fiber, scheduler_, true);
  std::abort();  // not gone back to
}

absl::Status Machine::Run() {
  const Dimensions& threads = grid_.threads;
  const uint64_t count = uint64_t{threads.x} * threads.y * threads.z;
  if (count == 0 || count > kMostThreads || grid_.shared_bytes > kMostSharedBytes ||
      grid_.blocks.count() == 0 || grid_.blocks.y > 65535 || grid_.blocks.z > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("kernel ", kernel_, ": no GPU takes a grid of ",
                                                   Text(grid_.blocks), " blocks of ", Text(threads),
                                                   " threads and ", grid_.shared_bytes, " bytes"));
  }
  threads_.resize(count);
  for (const uint32_t number : Order(grid_.blocks.count(), 0)) {
    RunBlock(number);
    if (!fault_.empty()) return absl::InternalError(fault_);
  }
  const std::string broken = BrokenGuards();
  if (!broken.empty()) return absl::InternalError(absl::StrCat("kernel ", kernel_, ": ", broken));
  return absl::OkStatus();
}

void Machine::RunBlock(uint32_t number) {
  stamp_.block = number;
  stamp_.epoch = 0;
  block_ = IndexIn(grid_.blocks, number);
  shared_.clear();
  warps_.assign((threads_.size() + kWarpThreads - 1) / kWarpThreads, {});
  for (uint32_t i = 0; i < threads_.size(); ++i) {
    threads_[i] = {.number = i, .index = IndexIn(grid_.threads, i), .carrier = CarrierOf(i)};
    if (!threads_[i].carrier->ready)
      threads_[i].carrier->fiber.Start(&Machine::RunThreads, nullptr);
  }
  while (Sweep() || PassBarrier()) {
  }
  for (const SharedRegion& shared : shared_) {
    const std::string broken = shared.region->BrokenGuard();
    if (fault_.empty() && !broken.empty()) fault_ = absl::StrCat("kernel ", kernel_, ": ", broken);
  }
}

// Runs each thread that can, once. Whether any could.
bool Machine::Sweep() {
  bool any = false;
  for (const uint32_t i : Order(static_cast<uint32_t>(threads_.size()), ++sweeps_)) {
    if (threads_[i].state != State::kReady) continue;
    any = true;
    running_ = &threads_[i];
    stamp_.thread = i;
    stamp_.warp_epoch = running_->warp_epoch;
    Fiber::Switch(scheduler_, running_->carrier->fiber);
    if (!fault_.empty()) return false;
  }
  return any;
}

// No thread can run: all are at the barrier, or have ended, or wait for nothing that comes.
bool Machine::PassBarrier() {
  if (!fault_.empty()) return false;
  size_t at_barrier = 0, ended = 0;
  for (const Thread& thread : threads_) {
    at_barrier += thread.state == State::kAtBarrier ? 1 : 0;
    ended += thread.state == State::kEnded ? 1 : 0;
  }
  if (ended == threads_.size()) return false;
  if (at_barrier != threads_.size()) {
    fault_ = absl::StrCat("kernel ", kernel_, ", block ", Text(block_), ": ", Waiting());
    return false;
  }
  ++stamp_.epoch;
  for (Thread& thread : threads_) thread.state = State::kReady;
  return true;
}

std::string Machine::Waiting() const {
  for (size_t warp = 0; warp < warps_.size(); ++warp) {
    for (const Gathering& gathering : warps_[warp]) {
      return absl::StrCat("threads of warp ", warp, " wait in ", Name(gathering.operation),
                          " for others of its mask that never come (mask ",
                          absl::Hex(gathering.mask), ", there ", absl::Hex(gathering.arrived), ")");
    }
  }
  for (const Thread& thread : threads_) {
    if (thread.state == State::kEnded) {
      return absl::StrCat("threads wait at __syncthreads, but thread ", thread.number,
                          " has ended");
    }
  }
  return "threads wait for ones that never come";
}

// Texts are made where they cost the threads that go on nothing.
void Machine::FailMask(WarpOperation operation, uint32_t mask, uint32_t present) {
  Fail(absl::StrCat(Name(operation), " with the mask ", absl::Hex(mask), " by lane ",
                    running_->number % kWarpThreads, " of a warp that has the lanes ",
                    absl::Hex(present)));
}
void Machine::FailMixed(WarpOperation operation, uint32_t mask, WarpOperation other) {
  Fail(absl::StrCat(Name(operation), " with the mask ", absl::Hex(mask),
                    ", while others of it are in ", Name(other)));
}
void Machine::FailShuffle(uint32_t lane, uint32_t source, uint32_t mask) {
  Fail(absl::StrCat("lane ", lane, " shuffles from lane ", source, ", which is not in the mask ",
                    absl::Hex(mask)));
}

uint64_t Machine::Together(WarpOperation operation, uint32_t mask, uint64_t value,
                           uint32_t source) {
  const uint32_t warp = running_->number / kWarpThreads;
  const uint32_t lane = running_->number % kWarpThreads;
  const uint32_t behind = static_cast<uint32_t>(threads_.size()) - warp * kWarpThreads;
  const uint32_t lanes = behind < kWarpThreads ? behind : kWarpThreads;
  const uint32_t present = lanes == kWarpThreads ? ~0u : (1u << lanes) - 1;
  if ((mask >> lane & 1) == 0 || (mask & ~present) != 0) FailMask(operation, mask, present);
  std::vector<Gathering>& gatherings = warps_[warp];
  Gathering* found = nullptr;
  for (Gathering& gathering : gatherings) {
    // Some of a mask may be on while others still are in an operation of fewer lanes.
    if (gathering.mask != mask) continue;
    if (gathering.operation != operation) FailMixed(operation, mask, gathering.operation);
    found = &gathering;
  }
  if (found == nullptr) {
    found = &gatherings.emplace_back();
    found->operation = operation;
    found->mask = mask;
  }
  found->arrived |= 1u << lane;
  found->values[lane] = value;
  found->sources[lane] = source;
  Thread& self = *running_;
  if (found->arrived == mask) {
    Complete(*found, warp);
    *found = gatherings.back();
    gatherings.pop_back();
    stamp_.warp_epoch = self.warp_epoch;
  } else {
    GiveWay(State::kInWarp);
  }
  return self.result;
}

void Machine::Complete(const Gathering& gathering, uint32_t warp) {
  const uint32_t first = static_cast<uint32_t>(std::countr_zero(gathering.mask));
  uint64_t all = gathering.operation == WarpOperation::kBallot ? 0 : gathering.values[first];
  for (uint32_t lane = 0; lane < kWarpThreads; ++lane) {
    if ((gathering.mask >> lane & 1) == 0) continue;
    const uint64_t value = gathering.values[lane];
    const bool later = lane != first;
    switch (gathering.operation) {
      case WarpOperation::kSync: break;
      case WarpOperation::kShuffle:
        if (gathering.sources[lane] >= kWarpThreads ||
            (gathering.mask >> gathering.sources[lane] & 1) == 0) {
          FailShuffle(lane, gathering.sources[lane], gathering.mask);
        }
        break;
      case WarpOperation::kBallot: all |= uint64_t{value != 0} << lane; break;
      case WarpOperation::kAdd: all = later ? static_cast<uint32_t>(all + value) : all; break;
      case WarpOperation::kMinimum: all = value < all ? value : all; break;
      case WarpOperation::kMaximum: all = value > all ? value : all; break;
      case WarpOperation::kOr: all |= value; break;
      case WarpOperation::kAnd: all &= value; break;
    }
  }
  for (uint32_t lane = 0; lane < kWarpThreads; ++lane) {
    if ((gathering.mask >> lane & 1) == 0) continue;
    Thread& thread = threads_[warp * kWarpThreads + lane];
    thread.state = State::kReady;
    const bool shuffle = gathering.operation == WarpOperation::kShuffle;
    thread.result = shuffle ? gathering.values[gathering.sources[lane]] : all;
    if (gathering.operation == WarpOperation::kSync) ++thread.warp_epoch;
  }
}

Region* Machine::Shared(const void* site, const char* name, uint64_t bytes) {
  uint64_t total = bytes;
  for (const SharedRegion& shared : shared_) {
    if (shared.site == site) return shared.region.get();
    total += shared.region->bytes();
  }
  if (total > kMostSharedBytes) {
    Fail(absl::StrCat(total, " bytes of shared memory, of which a block has ", kMostSharedBytes));
  }
  const auto fill = static_cast<uint8_t>(0xa5 + 37 * seed_);
  shared_.push_back({site, std::make_unique<Region>(absl::StrCat("shared ", name), bytes, fill)});
  return shared_.back().region.get();
}

// Ends the launch: what is wrong with an access that Access found wrong.
[[noreturn]] void FailAccess(Region* region, uintptr_t at, uint64_t bytes, uint64_t alignment,
                             AccessKind kind) {
  const char* const what = kind == AccessKind::kRead ? "a read" : "a write";
  if (region == nullptr) {
    Fail(absl::StrCat(what, " of ", bytes, " bytes at ", absl::Hex(at),
                      ", which is no memory of the GPU"));
  }
  const auto begin = reinterpret_cast<uintptr_t>(region->data());
  if (!region->Contains(at, bytes)) {
    Fail(absl::StrCat(what, " of ", bytes, " bytes out of bounds, at byte ",
                      static_cast<int64_t>(at - begin), " of ", region->name(), ", which has ",
                      region->bytes()));
  }
  if (at % alignment != 0) {
    Fail(absl::StrCat(what, " of ", bytes, " bytes that is not aligned, at byte ", at - begin,
                      " of ", region->name()));
  }
  std::string text = region->Conflict();
  text.insert(0, " that is ").insert(0, what);
  Fail(std::move(text));
}

}  // namespace

ScopedOrder::ScopedOrder(uint64_t seed) : previous_(std::exchange(order_seed, seed)) {}
ScopedOrder::~ScopedOrder() { order_seed = previous_; }

absl::Status Run(const char* kernel, const Grid& grid, const std::function<void()>& body) {
  Machine made(kernel, grid, order_seed, body);
  machine = &made;
  absl::Status status = made.Run();
  machine = nullptr;
  return status;
}

const Dimensions& ThreadIndex() { return machine->thread().index; }
const Dimensions& BlockIndex() { return machine->block(); }
const Dimensions& BlockSize() { return machine->grid().threads; }
const Dimensions& GridSize() { return machine->grid().blocks; }

void Barrier() { machine->GiveWay(State::kAtBarrier); }

uint64_t Together(WarpOperation operation, uint32_t mask, uint64_t value, uint32_t source) {
  return machine->Together(operation, mask, value, source);
}

uint32_t Lane() { return machine->thread().number % kWarpThreads; }

void Access(Region* region, const void* address, uint64_t bytes, uint64_t alignment,
            AccessKind kind) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  if (region == nullptr || !region->Contains(at, bytes) || at % alignment != 0 ||
      !region->Touch(at, bytes, kind, machine->stamp())) {
    FailAccess(region, at, bytes, alignment, kind);
  }
}

Region* SharedArray(const void* site, const char* name, uint64_t bytes) {
  return machine->Shared(site, name, bytes);
}

Region* DynamicShared() {
  static const char site = 0;
  const uint32_t bytes = machine->grid().shared_bytes;
  return machine->Shared(&site, "dynamic", bytes);
}

void Fail(std::string text) { machine->Fail(std::move(text)); }

}  // namespace foreshard::kernels::cuda::emulation
