#include "server/reply_buffers.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace foreshard {
namespace {

constexpr uint64_t kAlignment = 4096;
// Size classes are powers of two; pages beyond what is written are never touched.
constexpr int kSmallestClass = 12;
constexpr int kClasses = 52;

int ClassOf(uint64_t bytes) {
  return std::max(kSmallestClass, static_cast<int>(std::bit_width(std::max<uint64_t>(bytes, 1) - 1)));
}

}  // namespace

struct ReplyBuffers::Block {
  uint8_t* data = nullptr;
  int size_class = 0;
  uint64_t counted = 0;          // bytes taken from the budget
  std::shared_ptr<State> owner;  // while it is out
};

struct ReplyBuffers::State {
  explicit State(uint64_t budget) : budget_bytes(budget) {}
  ~State() {
    for (auto& blocks : free) {
      for (Block* block : blocks) {
        std::free(block->data);
        delete block;
      }
    }
  }

  bool Reserve(uint64_t bytes, uint64_t keep_free) {
    const uint64_t most = budget_bytes - std::min(keep_free, budget_bytes);
    uint64_t used = used_bytes.load(std::memory_order_relaxed);
    do {
      if (bytes > most || used > most - bytes) return false;
    } while (!used_bytes.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    return true;
  }

  const uint64_t budget_bytes;
  std::atomic<uint64_t> used_bytes{0};
  std::atomic<uint64_t> allocations{0};
  absl::Mutex mutex;
  // Last used first: the likeliest to be in cache.
  std::array<std::vector<Block*>, kClasses> free ABSL_GUARDED_BY(mutex);
};

ReplyBuffers::ReplyBuffers(uint64_t budget_bytes)
    : state_(std::make_shared<State>(budget_bytes)) {}

ReplyBuffers::~ReplyBuffers() = default;

bool ReplyBuffers::Reserve(uint64_t bytes) { return state_->Reserve(bytes, 0); }

void ReplyBuffers::Release(uint64_t bytes) {
  state_->used_bytes.fetch_sub(bytes, std::memory_order_relaxed);
}

std::optional<ReplyBuffers::Buffer> ReplyBuffers::Take(uint64_t capacity, uint64_t keep_free) {
  const int size_class = ClassOf(capacity);
  if (size_class >= kClasses || !state_->Reserve(capacity, keep_free)) return std::nullopt;
  Block* block = nullptr;
  {
    absl::MutexLock lock(&state_->mutex);
    auto& free = state_->free[size_class];
    if (!free.empty()) {
      block = free.back();
      free.pop_back();
    }
  }
  if (block == nullptr) {
    auto* data = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, uint64_t{1} << size_class));
    if (data == nullptr) {
      Release(capacity);
      return std::nullopt;
    }
    block = new Block{.data = data, .size_class = size_class};
    state_->allocations.fetch_add(1, std::memory_order_relaxed);
  }
  block->counted = capacity;
  block->owner = state_;
  return Buffer{.data = block->data, .block = block};
}

void ReplyBuffers::Recycle(void* pointer) {
  auto* block = static_cast<Block*>(pointer);
  const std::shared_ptr<State> state = std::move(block->owner);
  state->used_bytes.fetch_sub(block->counted, std::memory_order_relaxed);
  absl::MutexLock lock(&state->mutex);
  state->free[block->size_class].push_back(block);
}

void ReplyBuffers::Return(const Buffer& buffer) { Recycle(buffer.block); }

grpc::Slice ReplyBuffers::Share(const Buffer& buffer, uint64_t bytes) {
  return grpc::Slice(buffer.data, bytes, &Recycle, buffer.block);
}

uint64_t ReplyBuffers::used_bytes() const {
  return state_->used_bytes.load(std::memory_order_relaxed);
}
uint64_t ReplyBuffers::budget_bytes() const { return state_->budget_bytes; }
uint64_t ReplyBuffers::allocations() const {
  return state_->allocations.load(std::memory_order_relaxed);
}

}  // namespace foreshard
